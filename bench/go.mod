module github.com/kvoracle/kvoracle/bench

go 1.26.0

require github.com/kvoracle/kvoracle v0.0.0

require (
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/zeebo/xxh3 v1.1.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace github.com/kvoracle/kvoracle => ../
