# Reads `go test -v`, prints what plain `go test` would print, plus every skipped test with its reason, plus a last
# line with the counts. A package that failed is printed in full. Exits 1 when no test ran at all.
#
# go test prints packages one after another, each ended by a line "ok", "?" or "FAIL", a tab and its path.

function flush_package(failed,    i) {
	for (i = 1; i <= lines; i++) {
		if (failed || (keep && line[i] !~ /^(=== |PASS$|-test\.shuffle )/)) print line[i]
	}
	lines = 0
	keep = 0
}

/^=== (RUN|PAUSE) / { next }
/^ *--- PASS: / { passed++; next }
/^ *--- FAIL: / { failed++; failed_here++ }
/^ *--- SKIP: / { skipped++; keep = 1 }

/^(ok  |\?   |FAIL)\t/ {
	is_fail = /^FAIL/
	# A build error or a crash fails a package without naming a test.
	if (is_fail && !failed_here) failed++
	flush_package(is_fail)
	failed_here = 0
	print
	fflush()
	next
}

{ line[++lines] = $0 }

END {
	flush_package(1)
	printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
	if (passed + failed == 0) {
		print "no test ran"
		exit 1
	}
}
