package load

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Confidence says where a State came from.
type Confidence uint8

// The confidences.
const (
	// Reported: the target sent a sample within Config.MaxReportAge; own bookings are on top.
	Reported Confidence = iota
	// BookedOnly: no target asked about, and no peer, has a fresh sample; only own bookings are known.
	BookedOnly
	// Imputed: the target has no fresh sample while others have; their median was assumed, own bookings on top.
	Imputed
)

// String gives the lower-case name with underscores.
func (c Confidence) String() string {
	switch c {
	case Reported:
		return "reported"
	case BookedOnly:
		return "booked_only"
	case Imputed:
		return "imputed"
	default:
		return "unknown"
	}
}

// State is how busy one target is. All numbers are finite and, but for the three that say so, at least 0.
type State struct {
	// Confidence says how much of it is known.
	Confidence Confidence
	// InFlight is the number of requests: own bookings and external ones. InFlight = Prefilling + Decoding.
	InFlight int
	// Booked is the number of own bookings.
	Booked int
	// Prefilling is the number of requests without a first token, Decoding that of the others.
	Prefilling, Decoding int
	// PendingPrefillSeconds is the prefill of the requests without a first token, PendingPrefillTokens its tokens.
	PendingPrefillSeconds, PendingPrefillTokens float64
	// ActiveTokens is the KV length of the own bookings: prompt and output so far.
	ActiveTokens float64
	// HeldTokens is the same with shared prefixes counted once: the memory they take.
	HeldTokens float64
	// UnreportedTokens is what HeldTokens grew by since KVUsed was measured, so that the two together are the memory in
	// use now; below 0 when more has ended than has come. All of HeldTokens when KVUsed is imputed or not known.
	UnreportedTokens float64
	// OutputToCome is the number of output tokens that the own bookings are still expected to make.
	OutputToCome float64
	// KVUsed is the share of KV memory in use, 0 to 1; below 0: nobody knows.
	KVUsed float64
	// LastChosen is the number of the booking that was last made on the target, counted over all targets; 0: none.
	LastChosen uint64
	// ReportAge is the time since its last accepted sample, believed or not; below 0: it never sent one.
	ReportAge time.Duration
}

// scratch is what States needs for medians; guarded by Tracker.mu.
type scratch struct {
	work []external
	kv   []float64
}

// States reads the targets at one moment, dst[i] for targets[i]. It overwrites dst and allocates only when that lacks
// capacity. What a target did not say lately is imputed from the others of the list that did: the external work of the
// target with the median load (of an even number the busier one, so that the unknown never looks best), and the median
// of KV use. A target that was dropped or never added is read as one that holds no booking.
func (t *Tracker) States(targets []fleet.TargetID, now time.Time, dst []State) []State {
	return t.StatesAmong(targets, targets, now, dst)
}

// StatesAmong is States where what is missing is imputed from peers: a request that may go to few targets must not
// narrow what is known of the fleet.
func (t *Tracker) StatesAmong(targets, peers []fleet.TargetID, now time.Time, dst []State) []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tick(now)

	dst = slices.Grow(dst[:0], len(targets))[:len(targets)]
	anyFresh, gaps := false, false
	for _, id := range targets {
		g := t.target(id)
		if g != nil {
			t.presume(g)
		}
		fresh := g != nil && t.isFresh(&g.report)
		anyFresh = anyFresh || fresh
		gaps = gaps || !fresh || !g.report.counted || g.report.kvUsed < 0
	}
	missing := gap{kvUsed: unknownKV}
	if gaps {
		for i := 0; i < len(peers) && !anyFresh; i++ {
			g := t.target(peers[i])
			anyFresh = g != nil && t.isFresh(&g.report)
		}
		if anyFresh {
			missing = t.medians(peers)
		}
	}
	for i, id := range targets {
		t.read(t.target(id), anyFresh, &missing, &dst[i])
	}
	return dst
}

// gap is what is assumed of a target that did not say.
type gap struct {
	external external
	kvUsed   float64
}

// read fills s for one target; g may be nil.
func (t *Tracker) read(g *target, anyFresh bool, missing *gap, s *State) {
	*s = State{Confidence: BookedOnly, ReportAge: -1, KVUsed: missing.kvUsed}
	if anyFresh {
		s.Confidence = Imputed
	}
	e := &missing.external
	if g != nil {
		e = t.external(g, missing)
		if r := &g.report; r.seen {
			s.ReportAge = time.Duration(t.clock - r.at)
			if t.isFresh(r) {
				s.Confidence = Reported
				if r.kvUsed >= 0 {
					s.KVUsed = r.kvUsed
					s.UnreportedTokens = float64(-r.held)
				}
			}
		}
		s.Booked = int(g.booked)
		s.Prefilling = int(g.prefilling)
		s.PendingPrefillSeconds = t.pendingSeconds(g, e)
		s.PendingPrefillTokens = float64(g.pendingTok)
		s.ActiveTokens = float64(g.active)
		s.HeldTokens = float64(g.held + g.marked)
		s.UnreportedTokens += float64(g.held + g.marked)
		s.OutputToCome = float64(g.toCome)
		s.LastChosen = g.lastChosen
	} else {
		s.PendingPrefillSeconds = e.seconds
	}
	s.InFlight = s.Booked + int(e.requests())
	s.Prefilling += int(e.waiting)
	s.Decoding = s.InFlight - s.Prefilling
	s.PendingPrefillTokens += e.tokens
}

// external is the work at a target that is not booked here: as it says, or as is assumed of who does not.
func (t *Tracker) external(g *target, missing *gap) *external {
	if r := &g.report; r.seen && r.counted && t.isFresh(r) {
		return &r.external
	}
	return &missing.external
}

// pendingSeconds is the prefill of a target's requests without a first token, less what the clock has worked off.
func (t *Tracker) pendingSeconds(g *target, e *external) float64 {
	return seconds(g.pending-t.begun(g)) + e.seconds
}

// medians tells what to assume of the targets that did not say.
func (t *Tracker) medians(targets []fleet.TargetID) gap {
	work, kv := t.scratch.work[:0], t.scratch.kv[:0]
	for _, id := range targets {
		g := t.target(id)
		if g == nil || !t.isFresh(&g.report) {
			continue
		}
		if g.report.counted {
			work = append(work, g.report.external)
		}
		if g.report.kvUsed >= 0 {
			kv = append(kv, g.report.kvUsed)
		}
	}
	t.scratch.work, t.scratch.kv = work, kv

	m := gap{kvUsed: unknownKV}
	if len(work) > 0 {
		m.external = nth(work, len(work)/2, compareExternal)
	}
	if len(kv) > 0 {
		m.kvUsed = nth(kv, len(kv)/2, cmp.Compare[float64])
	}
	return m
}

// compareExternal orders by load. It compares every field, so that equal means the same and the median does not depend
// on the order of the targets.
func compareExternal(a, b external) int {
	if o := cmp.Compare(a.requests(), b.requests()); o != 0 {
		return o
	}
	return cmp.Or(cmp.Compare(a.seconds, b.seconds), cmp.Compare(a.tokens, b.tokens), cmp.Compare(a.waiting, b.waiting))
}

// nth is Hoare's selection: the element that sorting would put at k. It reorders s. Linear on average.
func nth[T any](s []T, k int, compare func(a, b T) int) T {
	lo, hi := 0, len(s)-1
	for lo < hi {
		pivot := s[lo+(hi-lo)/2]
		i, j := lo, hi
		for i <= j {
			for compare(s[i], pivot) < 0 {
				i++
			}
			for compare(s[j], pivot) > 0 {
				j--
			}
			if i <= j {
				s[i], s[j] = s[j], s[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			hi = j
		case k >= i:
			lo = i
		default:
			return s[k]
		}
	}
	return s[k]
}
