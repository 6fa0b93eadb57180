//go:build !race

package main

// isRace tells tests that count bytes or take long.
const isRace = false
