//go:build race

package index

// isRace tells tests that count allocations or take long.
const isRace = true
