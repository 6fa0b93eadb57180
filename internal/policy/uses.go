package policy

import "math"

// Uses counts, with decay, how many requests went on from the same end of a prefix: the last block of the deepest match
// that any target offered. A system prompt has many, the former turn of a conversation has one.
//
// It is a table of fixed size that forgets: two ends that fall on one place push each other out, the one with fewer
// uses first. A forgotten end counts as unused, which only keeps its requests together. Not safe for concurrent use.
type Uses struct {
	slots []use
}

type use struct {
	end   uint64
	count float64 // at the time at
	at    float64
}

// UsesMemory is the time constant of the decay in seconds. What matters is how many requests for one prefix come within
// the time a queue lasts.
const UsesMemory = 10.0

// usesSlots is a power of two: 24 bytes each.
const usesSlots = 1 << 15

// Add counts one more request that goes on from end at the time now (seconds, never going back), and returns how many
// there were before. The end 0 is none and is not counted.
func (u *Uses) Add(end uint64, now float64) float64 {
	if end == 0 {
		return 0
	}
	s := u.slot(end, now)
	if s.end != end {
		if s.count >= 1 {
			s.count-- // the newcomer wins when it comes again
			return 0
		}
		*s = use{end: end, at: now}
	}
	before := s.count
	s.count++
	return before
}

// Of tells how many there were, and counts nothing.
func (u *Uses) Of(end uint64, now float64) float64 {
	if end == 0 || u.slots == nil {
		return 0
	}
	if s := u.slot(end, now); s.end == end {
		return s.count
	}
	return 0
}

// slot finds the place of an end with its count decayed to now.
func (u *Uses) slot(end uint64, now float64) *use {
	if u.slots == nil {
		u.slots = make([]use, usesSlots)
	}
	s := &u.slots[(end*0x9E3779B97F4A7C15)>>(64-15)]
	if dt := now - s.at; dt > 0 {
		s.count *= math.Exp(-dt / UsesMemory)
		s.at = now
	}
	return s
}
