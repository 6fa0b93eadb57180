//go:build race

package server_test

// isRace tells tests that count bytes or take long.
const isRace = true
