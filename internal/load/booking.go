package load

import "github.com/kvoracle/kvoracle/internal/fleet"

// DecisionID names a decision, and the booking it made. Any value is as good as another.
type DecisionID uint64

// Booking is the work of one decision on one target. Numbers that are negative or absurd are read as the nearest
// possible ones.
type Booking struct {
	// ID names it; no two living bookings have the same.
	ID DecisionID
	// Target is where the request was sent.
	Target fleet.TargetID
	// RequestID is the caller's name for the request; empty: none. No two living bookings have the same.
	RequestID string
	// Gateway is who reports its progress; empty: not known, see Dispatched.
	Gateway string
	// PromptTokens is the prompt's length.
	PromptTokens int
	// UncachedTokens is the part of it that has to be computed; at most PromptTokens.
	UncachedTokens int
	// SharedTokens is the part of it that requests in flight there hold already, so that it takes no new memory; at most
	// PromptTokens. 0: none, or not known. Not read with Marks, which know better.
	SharedTokens int
	// PrefillSeconds is the estimated compute of the uncached part, at most an hour.
	PrefillSeconds float64
	// ExpectedOutput is the number of output tokens expected; 0: the running mean of its target's model.
	ExpectedOutput int
	// DecodeSeconds is the estimated time from the first token to the end, at most an hour; 0: not known. It ends a booking
	// whose gateway tells no ends: see presume.go.
	DecodeSeconds float64
	// Note is the caller's; the tracker only carries it.
	Note Note
}

// Note is what a caller wants to know again of a booking when news of it comes.
type Note struct {
	// Decoding and ReadTokens are the sequences and the KV tokens that were decoding on the target.
	Decoding, ReadTokens float32
	// Transfer is the predicted time of bringing blocks from farther tiers, in seconds.
	Transfer float32
}

// booking is a living booking with its amounts in range.
type booking struct {
	Booking
	sent     bool  // its dispatch was told
	decoding bool  // its prefill is over, as told or as presumed; only a move to another target takes that back
	told     bool  // its first token was, by word or by output
	over     bool  // it is presumed to have ended: it lives, but is in no sum
	place    int   // among those of its target that will be, counted from 1; 0: it is not one
	end      int64 // when, on the tracker's clock
	bookedAt int64 // on the tracker's clock
	came     int64 // the same, to the target where it is
	renewed  int64 // the same; the lease counts from here
	amounts  amounts

	marks      []uint64
	room       [2]uint64 // of marks, where they are few
	markTokens int64     // of one

	links [numLists]struct{ prev, next *booking }
}

// amounts is what one booking adds to its target's sums.
type amounts struct {
	prompt, uncached, shared int64 // tokens
	prefill, decode          int64 // nanoseconds
	expected, output         int64 // tokens
}

// kv is the KV length of the request now.
func (a *amounts) kv() int64 { return a.prompt + a.output }

// held is the memory the request takes that no other took before.
func (a *amounts) held() int64 { return a.prompt - a.shared + a.output }

// toCome is the output still expected.
func (a *amounts) toCome() int64 { return max(0, a.expected-a.output) }

// The lists a booking is in.
const (
	byLease   = iota // all bookings, longest without news first
	byTarget         // of one target
	byGateway        // of one gateway
	byTurn           // of one target, without a first token
	numLists
)

// list is a doubly linked list through booking.links[which].
type list struct {
	which       uint8
	first, last *booking
}

func (l *list) pushBack(b *booking) {
	k := &b.links[l.which]
	k.prev, k.next = l.last, nil
	if l.last == nil {
		l.first = b
	} else {
		l.last.links[l.which].next = b
	}
	l.last = b
}

func (l *list) remove(b *booking) {
	k := &b.links[l.which]
	if k.prev == nil {
		l.first = k.next
	} else {
		k.prev.links[l.which].next = k.next
	}
	if k.next == nil {
		l.last = k.prev
	} else {
		k.next.links[l.which].prev = k.prev
	}
	k.prev, k.next = nil, nil
}
