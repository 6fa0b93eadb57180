// Package e2e runs the built programs the way their users do: as processes, over real sockets, from other languages.
//
// It holds tests only, behind the build tag e2e, because they need parts that a machine with nothing but Go lacks.
// `make e2e` sets those parts up. A part that is missing fails the test; nothing is skipped.
package e2e
