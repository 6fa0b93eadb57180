package policy

import "math"

// Debts says when a prefix is worth another copy. Each request that goes where its prefix is held, and would have been
// served sooner elsewhere had that been held there too, leaves the difference as a debt of the prefix. The debt pays for a
// copy: a request that makes one is not charged for what is paid already (Request.Debt), so the copy is made when what its
// lack has cost is what it costs. Whatever comes next, no more than twice the least possible is spent: it is the ski
// rental rule. A conversation goes on from another block each time, and has no debt.
//
// A prefix is named by the last block of the deepest match that any target offered. Debts decay: only a copy that would
// pay within about DebtMemory is made.
//
// It is a table of fixed size that forgets: two prefixes that fall on one place push each other out, the one with less
// first. A forgotten prefix has no debt, which only keeps its requests together. Not safe for concurrent use.
type Debts struct {
	slots []debt
}

type debt struct {
	end     uint64
	seconds float64 // at the time at
	at      float64
}

// DebtMemory is the time constant of the decay in seconds.
const DebtMemory = 10.0

// debtSlots is a power of two: 24 bytes each.
const debtSlots = 1 << 15

// Of is the debt of a prefix in seconds at the time now (seconds, never going back). The end 0 is none and owes nothing.
func (d *Debts) Of(end uint64, now float64) float64 {
	if end == 0 || d.slots == nil {
		return 0
	}
	if s := d.slot(end, now); s.end == end {
		return s.seconds
	}
	return 0
}

// Add adds to the debt of a prefix, or with less than 0 takes away what was paid of it.
func (d *Debts) Add(end uint64, now, seconds float64) {
	if end == 0 || seconds == 0 || math.IsNaN(seconds) {
		return
	}
	if d.slots == nil {
		d.slots = make([]debt, debtSlots)
	}
	s := d.slot(end, now)
	if s.end != end {
		if seconds <= s.seconds {
			s.seconds -= max(seconds, 0) // the newcomer wins when it comes again
			return
		}
		*s = debt{end: end, at: now}
	}
	s.seconds = min(max(s.seconds+seconds, 0), MaxTerm)
}

// slot finds the place of an end with what is there decayed to now.
func (d *Debts) slot(end uint64, now float64) *debt {
	s := &d.slots[(end*0x9E3779B97F4A7C15)>>(64-15)]
	if dt := now - s.at; dt > 0 {
		s.seconds *= math.Exp(-dt / DebtMemory)
		s.at = now
	}
	return s
}
