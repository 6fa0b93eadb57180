package policy

import "github.com/kvoracle/kvoracle/internal/fleet"

// CostModel is what work costs on one class of engine. With n prefill tokens attending to c context tokens each, s
// decoding sequences and k KV tokens read by them, an iteration of continuous batching is taken to last
//
//	max(IterationBase, IterationFixed + PrefillPerToken*(n+s)) + PrefillPerTokenContext*n*c + DecodePerKVToken*k
//
// A field that is negative or not a number is read as 0. The zero value costs nothing and knows no limits.
type CostModel struct {
	// PrefillPerToken is the linear part of a token, in seconds.
	PrefillPerToken float64
	// PrefillPerTokenContext is what one token pays for each token it attends to, in seconds.
	PrefillPerTokenContext float64
	// IterationFixed is the part of an iteration that does not depend on what is in it, in seconds.
	IterationFixed float64
	// IterationBase is the shortest iteration (the weights have to be read), in seconds.
	IterationBase float64
	// DecodePerKVToken is reading one token's KV in decode attention, in seconds.
	DecodePerKVToken float64
	// ChunkTokens is the token budget of an iteration (vLLM's max_num_batched_tokens); 0: a prefill takes one iteration.
	ChunkTokens int
	// KVTokens is the KV memory in tokens; 0: not known, the memory term is then 0.
	KVTokens int
	// MaxBatch is the number of sequences that run at once; 0: not known, the batch term is then 0.
	MaxBatch int
	// Again is the share of the blocks that leave the cache now that will be asked for again, 0 to 1; 0: none, or not known.
	Again float64
	// Returns is how many later requests go on from a prompt, in the mean, and so come to where it was sent; 0: none, or not known.
	Returns float64
	// TransferPerToken is bringing one cached token from a tier to the device, in seconds. That of the device is not read.
	TransferPerToken [fleet.NumTiers]float64
}

// DefaultCostModel is a prior for an 8B model on one H100. 131,072 bytes of KV a token; the tiers are taken to deliver
// 25, 7 and 10 GB/s (host, disk, shared). The seconds are plausible, not measured.
func DefaultCostModel() CostModel {
	return CostModel{
		PrefillPerToken:        22e-6,
		PrefillPerTokenContext: 1.17e-9,
		IterationFixed:         3e-3,
		IterationBase:          7.5e-3,
		DecodePerKVToken:       52e-9,
		ChunkTokens:            2048,
		KVTokens:               400_000,
		MaxBatch:               256,
		TransferPerToken:       [fleet.NumTiers]float64{0, 5.2e-6, 18.7e-6, 13.1e-6},
	}
}

// PrefillTime is the compute of uncached tokens that follow context cached ones, in seconds: the linear part, and
// attention to the context and, on average, half of themselves. Finite and at least 0 for any input; a nil model is DefaultCostModel.
func (m *CostModel) PrefillTime(uncached, context int) float64 {
	if m == nil {
		fallback := DefaultCostModel()
		m = &fallback
	}
	c := m.clamped()
	return c.prefill(uncached, context)
}

func (m *CostModel) prefill(uncached, context int) float64 {
	n, ctx := float64(max(uncached, 0)), float64(max(context, 0))
	return min(m.PrefillPerToken*n+m.PrefillPerTokenContext*n*(ctx+n/2), MaxTerm)
}

// Bounds that keep every product of inputs far inside the range of a float64. None is near a value that an engine could
// have.
const (
	// MaxTerm is the greatest value of one cost term in seconds: some 30,000 years.
	MaxTerm = 1e12

	memoryFull = 0.95 // share of KV memory from which on it is short

	maxRate   = 1e3           // seconds a token
	maxTokens = 1e15          // tokens, requests
	leastRate = 1 / maxTokens // seconds a token; below it work is free, so that a second holds at most maxTokens
)

// Clamped is the model with every field in its range, as it is read in any case.
func (m *CostModel) Clamped() CostModel { return m.clamped() }

// clamped is the model with every field in its range.
func (m *CostModel) clamped() CostModel {
	c := CostModel{
		PrefillPerToken:        within(m.PrefillPerToken, maxRate),
		PrefillPerTokenContext: within(m.PrefillPerTokenContext, maxRate),
		IterationFixed:         within(m.IterationFixed, maxRate),
		IterationBase:          within(m.IterationBase, maxRate),
		DecodePerKVToken:       within(m.DecodePerKVToken, maxRate),
		ChunkTokens:            max(m.ChunkTokens, 0),
		KVTokens:               max(m.KVTokens, 0),
		MaxBatch:               max(m.MaxBatch, 0),
		Again:                  within(m.Again, 1),
		Returns:                within(m.Returns, maxTokens),
	}
	if c.PrefillPerToken < leastRate {
		c.PrefillPerToken = 0
	}
	for t, v := range m.TransferPerToken {
		c.TransferPerToken[t] = within(v, maxRate)
	}
	return c
}

// within reads v as a number in [0, hi]; what is no number is 0.
func within(v, hi float64) float64 {
	if !(v > 0) {
		return 0
	}
	return min(v, hi)
}
