package oracle

import (
	"strconv"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// RouteRequest is one question, already validated: see internal/wire for the limits.
type RouteRequest struct {
	RequestID string // empty: not idempotent
	Model     string
	Prompt    Prompt

	LoRAName, LoRARevision, CacheSalt string

	ExpectedOutput  int // tokens; 0: unknown
	Session         string
	Role            fleet.Roles // the role wanted; 0: Aggregated
	Allowed, Denied []string    // worker names; empty Allowed: all
	Labels          map[string]string
	Preferred       map[string]string // labels that break ties
	Goals           policy.Goals      // how soon its tokens are wanted
	MaxWait         time.Duration     // for a place, while everybody who could take it is at its limit; 0: not at all
	Priority        int32             // among those that wait: the higher goes first
	Tenant          string            // among those that wait and are as urgent: whom it takes turns for
	IsPair          bool              // a prefill and a decode target are wanted; Role is Decode
	Explain, DryRun bool
	Addresses       []string // only workers that are reached there; nil: all
	NeedsAddress    bool     // only workers that say where they are reached
	MaxAlternatives int

	// Room is memory for the answer and its alternatives, which the caller may use again; nil: new memory. An answer that is
	// kept must have its own.
	Room *Answer
}

// asked sums up what must be the same in a request that has the name of another, for the other's answer to be its own: an
// answer says what is cached, which must not be told across salts.
func (r *RouteRequest) asked() uint64 {
	var room [256]byte
	b := room[:0]
	for _, name := range [...]string{r.Model, r.LoRAName, r.LoRARevision, r.CacheSalt} {
		b = append(append(b, name...), 0)
	}
	b = strconv.AppendInt(b, int64(r.Prompt.Length), 10)
	return block.Sum(strconv.AppendBool(append(b, 0), r.IsPair))
}

// Prompt is tokens, or local hashes with their block size and the token count. Either may be packed: as they lie on the
// wire, in pieces; see block.AppendPackedChain. Route reads a prompt while it runs and keeps none of it.
type Prompt struct {
	Tokens       []uint32
	PackedTokens [][]byte // instead of Tokens
	Locals       []block.Local
	PackedLocals [][]byte     // instead of Locals
	LocalsSize   int          // block size of Locals or PackedLocals; 0 when the prompt is tokens
	Length       int          // tokens in the whole prompt, at least 1; with IsText what they are taken to be
	IsText       bool         // PackedTokens are text, four bytes a token; see text.go
	Items        []block.Item // multimodal items under Tokens, which are then not packed; Locals have theirs in
}

// appendChain appends the ids of the full blocks of size tokens, in a keyspace.
func (p *Prompt) appendChain(dst []block.ID, k block.Keyspace, size int) []block.ID {
	if p.PackedTokens != nil {
		return block.AppendPackedChain(dst, k, p.PackedTokens, size)
	}
	return block.AppendTokenChain(dst, k, p.Tokens, size)
}

// TargetRef names a target to the outside.
type TargetRef struct {
	ID      fleet.TargetID
	Worker  string
	Rank    int
	Address string
}

// TierTokens counts tokens by tier.
type TierTokens [fleet.NumTiers]int

// Total is the sum over the tiers.
func (t TierTokens) Total() int {
	n := 0
	for _, v := range t {
		n += v
	}
	return n
}

// BlockConfidence is how far the picture of a target's cache can be trusted.
type BlockConfidence uint8

// The confidences.
const (
	Silent      BlockConfidence = iota // never reported
	Warming                            // first snapshot awaited
	Stale                              // a gap, a mismatch or a lost stream
	Fresh                              // every report applied, stream alive or lost for less than the grace
	Partial                            // as Fresh, but for blocks that were given up at the memory limit: there may be more
	Approximate                        // never reported; fed by the oracle's own decisions

	numConfidences
)

// String gives the lower-case name.
func (c BlockConfidence) String() string {
	switch c {
	case Silent:
		return "silent"
	case Warming:
		return "warming"
	case Stale:
		return "stale"
	case Fresh:
		return "fresh"
	case Partial:
		return "partial"
	case Approximate:
		return "approximate"
	default:
		return "unknown"
	}
}

// IsTrue says that what such a target is credited with was reported and is there, though there may be more.
func (c BlockConfidence) IsTrue() bool { return c == Fresh || c == Partial }

// Exclusion is why a target cannot be chosen.
type Exclusion uint8

// The exclusions.
const (
	NotExcluded Exclusion = iota
	ExcludedDraining
	ExcludedDenied
	ExcludedNotAllowed
	ExcludedLabel
	ExcludedRole
	ExcludedFull
	ExcludedLost
	ExcludedBlockSize

	numExclusions
)

// String gives a short name.
func (e Exclusion) String() string {
	switch e {
	case NotExcluded:
		return "none"
	case ExcludedDraining:
		return "draining"
	case ExcludedDenied:
		return "denied"
	case ExcludedNotAllowed:
		return "not allowed"
	case ExcludedLabel:
		return "label"
	case ExcludedRole:
		return "role"
	case ExcludedFull:
		return "full"
	case ExcludedLost:
		return "lost"
	case ExcludedBlockSize:
		return "block size"
	default:
		return "unknown"
	}
}

// Row is one candidate with its reasons.
type Row struct {
	Target   TargetRef
	Excluded Exclusion
	Matched  TierTokens // as reported
	Usable   TierTokens // what the cost counts of it: capped for this prompt, discounted when stale
	Expected int        // tokens beyond Usable that prompts already routed there will leave
	InFlight int
	Score    policy.Score
	Blocks   BlockConfidence
	Load     load.Confidence
	Prefill  *TargetRef // of a pair: who would prefill for it; nil: it does both, or no pair is wanted

	PrefillBlocks BlockConfidence // of Prefill
	PrefillLoad   load.Confidence
}

// Alternative is a runner-up.
type Alternative struct {
	Target  TargetRef
	Matched TierTokens
	TTFT    float64 // seconds
	Blocks  BlockConfidence
	Load    load.Confidence
	Prefill *TargetRef // of a pair: who would prefill for it; nil: it does both, or no pair is wanted

	PrefillBlocks BlockConfidence // of Prefill
	PrefillLoad   load.Confidence
}

// SessionOutcome is what a decision did to a session.
type SessionOutcome uint8

// The outcomes.
const (
	SessionNone SessionOutcome = iota // no session, or its former place is not known
	SessionStayed
	SessionMoved
	SessionWorkerGone
)

// String gives the lower-case name.
func (s SessionOutcome) String() string {
	switch s {
	case SessionNone:
		return "none"
	case SessionStayed:
		return "stayed"
	case SessionMoved:
		return "moved"
	case SessionWorkerGone:
		return "worker_gone"
	default:
		return "unknown"
	}
}

// Answer is one decision with its reasons. It is immutable once Route has returned it.
type Answer struct {
	Decision       load.DecisionID // 0 for a dry run
	Repeated       bool            // an earlier decision, given again for its request id
	Target         TargetRef
	Prefill        *TargetRef // of a pair: who prefills, Target decodes; nil: Target does all it is wanted for
	Matched        TierTokens // of Target as reported, before any discount
	Usable         TierTokens // what the cost counted of it
	PrefillMatched TierTokens // of Prefill, as reported
	PrefillBlocks  BlockConfidence
	PrefillLoad    load.Confidence
	PromptTokens   int
	IsText         bool    // they were guessed from the length of a text
	TTFT           float64 // predicted, seconds
	Alternatives   []Alternative
	Blocks         BlockConfidence
	Load           load.Confidence
	Policy         string
	Reason         policy.Reason
	Rows           []Row // candidates best first, then the excluded; only where they were asked for
	Candidates     int   // eligible targets
	Uncached       int   // prompt tokens to compute
	Terms          policy.Terms
	Shadow         *Shadow // nil: no second policy, or nothing was booked
	Lease          time.Duration
	Session        SessionOutcome
	DecidedAt      time.Time
	Model          string
	RequestID      string

	Goals      policy.Goals // as they were asked for
	TPOT       float64      // predicted, seconds; 0: no goal was set
	MissesTTFT bool         // the goal is predicted to be missed
	MissesTPOT bool

	Waited   time.Duration // for a place
	Position int           // in the queue when it came, counted from 1; 0: it did not wait

	freed uint64          // the feed's, when this was decided
	asked uint64          // of a request with a name: see RouteRequest.asked
	start load.DecisionID // the booking of Prefill; 0: there is none
}
