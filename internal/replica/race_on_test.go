//go:build race

package replica_test

// isRace tells tests that count bytes or take long.
const isRace = true
