package metrics

import (
	"math"

	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
)

// The engines, which kvevents names.
const (
	Unknown = kvevents.EngineUnknown // not found out
	VLLM    = kvevents.EngineVLLM
	SGLang  = kvevents.EngineSGLang
	TRTLLM  = kvevents.EngineTRTLLM // trtllm-serve, or Triton with the TensorRT-LLM backend
)

const (
	// MaxRank is the highest data-parallel rank that is believed.
	MaxRank = 1023
	// maxCount is above what any gauge of one rank says in earnest, and is exact as a float64.
	maxCount = 1 << 40
)

// Sample is one look at the gauges of one rank. A nil field was not said.
type Sample struct {
	// Running is how many requests are in the running batch, Waiting how many are queued.
	Running, Waiting *int
	// WaitingPrefillTokens is prompt tokens still to be computed (SGLang alone says it).
	WaitingPrefillTokens *int
	// UsedBlocks is KV blocks that requests refer to, TotalBlocks all there are to be used.
	UsedBlocks, TotalBlocks *int
	// UsedTokens and TotalTokens are the same in tokens, for engines that count so.
	UsedTokens, TotalTokens *int
	// Usage is used / total, 0 to 1.
	Usage *float64
}

// Complete derives the blocks from what was said in other units: tokens by the block size, a ratio by the total. What
// cannot be derived stays nil.
func (s Sample) Complete(f Facts) Sample {
	if s.TotalBlocks == nil && s.TotalTokens != nil && f.BlockSize > 0 {
		s.TotalBlocks = new(*s.TotalTokens / f.BlockSize)
	}
	if s.TotalBlocks == nil && f.TotalBlocks > 0 {
		s.TotalBlocks = new(f.TotalBlocks)
	}
	if s.TotalBlocks != nil && *s.TotalBlocks == 0 {
		s.TotalBlocks = nil // an engine that is not ready yet
	}
	if s.UsedBlocks == nil && s.UsedTokens != nil && f.BlockSize > 0 {
		s.UsedBlocks = new((*s.UsedTokens + f.BlockSize - 1) / f.BlockSize)
	}
	if s.UsedBlocks == nil && s.Usage != nil && s.TotalBlocks != nil {
		s.UsedBlocks = new(int(math.Round(*s.Usage * float64(*s.TotalBlocks))))
	}
	if s.UsedBlocks != nil && s.TotalBlocks != nil && *s.UsedBlocks > *s.TotalBlocks {
		s.UsedBlocks = new(*s.TotalBlocks)
	}
	return s
}

// Said reports whether the sample says anything.
func (s Sample) Said() bool { return s != Sample{} }

// Reading is what one document said.
type Reading struct {
	// Facts is what it said of the engine as such.
	Facts Facts
	// Ranks has a sample for each rank that was mentioned.
	Ranks map[int]Sample
	// Odd counts values that cannot be and were left out.
	Odd int
}

// change edits the sample of a rank.
func (r *Reading) change(rank int, edit func(*Sample)) {
	if rank < 0 || rank > MaxRank {
		r.Odd++
		return
	}
	if r.Ranks == nil {
		r.Ranks = make(map[int]Sample)
	}
	s := r.Ranks[rank]
	edit(&s)
	r.Ranks[rank] = s
}

// count turns a gauge into a whole number, or counts it as odd. An earlier value stays: series are sorted so that the
// first is the one to believe.
func (r *Reading) count(to **int, v float64) {
	if !(v >= 0 && v <= maxCount) {
		r.Odd++
		return
	}
	if *to == nil {
		*to = new(int(math.Round(v)))
	}
}

// ratio is count for what lies between 0 and 1. A hair above 1 is rounding.
func (r *Reading) ratio(to **float64, v float64) {
	if !(v >= 0 && v <= 1.01) {
		r.Odd++
		return
	}
	if *to == nil {
		*to = new(min(v, 1))
	}
}

// Gauges is what a source said of one rank, before anybody looked whether it can be. nil: not said. See Sample.
type Gauges struct {
	Running, Waiting, WaitingPrefillTokens, UsedTokens, TotalTokens, Usage *float64
}

// Take adds what was said of a rank. What cannot be is counted as odd, and what is known already stays.
func (r *Reading) Take(rank int, g Gauges) {
	r.change(rank, func(s *Sample) {
		r.told(&s.Running, g.Running)
		r.told(&s.Waiting, g.Waiting)
		r.told(&s.WaitingPrefillTokens, g.WaitingPrefillTokens)
		r.told(&s.UsedTokens, g.UsedTokens)
		r.told(&s.TotalTokens, g.TotalTokens)
		if g.Usage != nil {
			r.ratio(&s.Usage, *g.Usage)
		}
	})
}

// TakeFact sets a fact that is a count and was not said yet; what cannot be is not taken.
func TakeFact(to *int, v float64) { setFact(to, whole(&v)) }
