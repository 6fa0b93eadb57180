//go:build !race

package storm

// isRace tells the test to weather fewer storms.
const isRace = false
