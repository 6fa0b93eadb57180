package policy

import (
	"math"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Prices is what scarce things cost everyone else now, on top of what a request waits for itself. See Market for where
// they come from. The zero value makes LeastTime plain least predicted time to first token.
type Prices struct {
	// Prefill is what a second of prefill takes from the requests that come later, in seconds.
	Prefill float64
	// Stall is what a second of prefill takes from each sequence that decodes there meanwhile, in seconds.
	Stall float64
	// Decode is what a second by which the newcomer decodes more slowly for its company counts, in seconds.
	Decode float64
}

// clamped reads impossible prices as the nearest possible ones.
func (p Prices) clamped() Prices {
	return Prices{within(p.Prefill, maxRate), within(p.Stall, maxRate), within(p.Decode, maxRate)}
}

// Row is the part of a candidate's cost that its load makes and no single request changes, so that it is computed when
// the load changes and only read by decisions. With the names of LeastTime's formula, a request of n uncached tokens
// that make p pairs with what they attend to, and that needs m tokens of memory with its output of out tokens, costs
//
//	Base + out*PerOut + (Stretch + Prices.Prefill)*(PerToken*n + PerPair*p) + out*PerOver*max(0, m - Room) + transfer
//
// less what is paid of a copy: at most (Stretch + Prices.Prefill)*(PerToken*(n-d) + PerPair*(p - pairs of d)) for d tokens
// at the deepest holder.
// It fills one cache line. Made by NewRow; all fields are finite, but for a Room without limit.
type Row struct {
	Base     float64 // seconds
	Stretch  float64 // seconds a second of own prefill
	PerToken float64 // seconds an uncached token, with what it pushes out
	PerPair  float64 // seconds a pair, likewise
	PerOut   float64 // seconds an output token
	PerOver  float64 // seconds an output token and a token beyond Room
	Room     float64 // tokens of memory before it gets short; below 0 when it is already
	InFlight int64   // requests there
}

// NewRow computes the row of a target from the load in c. What c says of a prompt is not read.
func NewRow(c *Candidate, prices Prices) Row {
	r, _ := NewFlowingRow(c, prices)
	return r
}

// NewFlowingRow is NewRow for who will change what is pending and nothing else.
func NewFlowingRow(c *Candidate, prices Prices) (Row, Flow) {
	m := c.model()
	return newRow(c, &m, prices.clamped())
}

// Flow says how Row.Base follows from what is pending.
type Flow struct {
	step       float64 // of an iteration, in seconds
	perSecond  float64 // iterations a second of prefill
	iterations float64 // without any: the one under way, and one for each of those that come after this request
}

// Base is Row.Base with so many seconds pending, as NewRow would compute it.
func (f Flow) Base(pending float64) float64 {
	queue := within(pending, MaxTerm)
	return queue + (queue*f.perSecond+f.iterations)*f.step
}

// newRow takes a model and prices that are in range.
func newRow(c *Candidate, m *CostModel, p Prices) (Row, Flow) {
	decoding := float64(max(c.Decoding, 0))
	kv, held := memory(c, m)
	company := m.PrefillPerToken*decoding + m.DecodePerKVToken*kv
	step := m.IterationFixed + company
	f := Flow{step: step, iterations: 1 + m.Returns}
	if chunk := m.PrefillPerToken * float64(m.ChunkTokens); chunk > 0 {
		f.perSecond = min(1/chunk, maxTokens)
	}
	r := Row{
		Base:     f.Base(c.PendingPrefill),
		Stretch:  1 + f.perSecond*step + p.Stall*decoding,
		PerToken: m.PrefillPerToken * (1 + m.Again),
		PerPair:  m.PrefillPerTokenContext * (1 + m.Again),
		PerOut:   p.Decode * company,
		Room:     math.Inf(1),
		InFlight: int64(max(c.InFlight, 0)),
	}
	if room := float64(m.KVTokens); room > 0 {
		r.Room = memoryFull*room - held - within(c.OutputToCome, maxTokens)
		r.PerOver = (m.IterationBase + step) / ((1 - memoryFull) * room)
	}
	if size := float64(m.MaxBatch); size > 0 {
		if q := float64(r.InFlight) + 1 - size; q > 0 {
			r.PerOut += step * q / size
		}
	}
	return r, f
}

// cost is the formula of the Row's comment, but for the transfer.
func (r *Row) cost(out, prefillPrice, n, pairs, need float64) float64 {
	cost := r.Base + out*r.PerOut + (r.Stretch+prefillPrice)*(r.PerToken*n+r.PerPair*pairs)
	if over := need - r.Room; over > 0 {
		cost += out * r.PerOver * over
	}
	return cost
}

// copyOf is what n tokens that make so many pairs cost more than fewer.
func (r *Row) copyOf(prefillPrice, n, pairs, fewer, fewerPairs float64) float64 {
	return (r.Stretch + prefillPrice) * (r.PerToken*(n-fewer) + r.PerPair*max(pairs-fewerPairs, 0))
}

// deepest is Deepest as a number to compare with: nobody computes less, or nobody holds anything.
func (r *Request) deepest() float64 {
	if r.Deepest <= 0 {
		return math.MaxInt32
	}
	return float64(narrow(r.Deepest))
}

func (r *Request) debt() float64 { return within(r.Debt, MaxTerm) }

// Holder is what one target holds of one prompt. Targets that hold nothing and expect nothing have none.
type Holder struct {
	// Target is whose it is.
	Target fleet.TargetID
	// Uncached is the number of tokens it would have to compute, Cached the number it reported to hold of the others, as
	// far as the prompt can use them.
	Uncached, Cached int32
	// Held is as in Candidate.
	Held int32
	// Shared is the number of leading tokens that take no new memory.
	Shared int32
	// Transfer is the time that bringing Cached from farther tiers takes, in seconds.
	Transfer float64
}

// NewHolder computes what c's target holds of a prompt of so many tokens. What c says of load is not read, nor what it costs
// if nothing of that is farther away than the device.
func NewHolder(prompt int, c *Candidate) Holder {
	return newHolder(int(narrow(prompt)), c, c.Cost)
}

// newHolder takes any model: of it only the transfer rates of tiers that hold something are read, and brought into range
// here.
func newHolder(prompt int, c *Candidate, m *CostModel) Holder {
	h := Holder{Target: c.Target, Held: narrow(c.Held), Shared: narrow(min(max(c.Shared, 0), prompt))}
	// Credit runs from the front and stops before the last token, which is always computed.
	left := max(prompt-1, 0)
	for tier, n := range c.Cached {
		if n = min(max(n, 0), left); n == 0 {
			continue
		}
		left -= n
		if fleet.Tier(tier) != fleet.Device {
			if m == nil {
				fallback := DefaultCostModel()
				m = &fallback
			}
			h.Transfer += float64(n) * within(m.TransferPerToken[tier], maxRate)
		}
	}
	h.Transfer = min(h.Transfer, MaxTerm)
	h.Cached = narrow(max(prompt-1, 0) - left)
	left -= min(max(c.Expected, 0), left)
	h.Uncached = narrow(left + min(prompt, 1))
	return h
}

// narrow keeps a count of tokens in 32 bits. Prompts are far shorter.
func narrow(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

// pairsOf is how many (token, token attended to) pairs n uncached tokens make after context ones.
func pairsOf(n, context float64) float64 { return n * (context + n/2) }
