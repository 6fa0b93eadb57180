//go:build !race

package server_test

// isRace tells the test to weather fewer storms.
const isRace = false
