package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

func TestBench(t *testing.T) {
	addr := live(t)
	if code, _, errs := ctl(t, "--server", addr, "bench", "--duration", "100ms", "--quiet"); code == 0 {
		t.Errorf("without a worker it succeeds: %s", errs)
	}
	file := filepath.Join(t.TempDir(), "case.txt")
	if err := os.WriteFile(file, []byte("RB w1 e1 s1 +[A]\n----\nack s1 fresh held=1 stored=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := ctl(t, "--server", addr, "script", file); code != 0 {
		t.Fatalf("script: %d\n%s%s", code, out, errs)
	}
	for _, args := range [][]string{{}, {"--book"}} {
		code, out, errs := ctl(t, append([]string{"--server", addr, "bench", "--model", "m", "--tokens", "64", "--rate", "200", "--duration", "300ms"}, args...)...)
		if code != 0 || !regexp.MustCompile(`answered +[1-9]\d* `).MatchString(out) || !regexp.MustCompile(`p99\.9 +\d`).MatchString(out) {
			t.Errorf("bench %v: %d\n%s%s", args, code, out, errs)
		}
	}
	for _, bad := range [][]string{{"--rate", "0"}, {"--tokens", "-1"}, {"--duration", "0s"}} {
		if code, _, _ := ctl(t, append([]string{"--server", addr, "bench"}, bad...)...); code == 0 {
			t.Errorf("%v is accepted", bad)
		}
	}
}
