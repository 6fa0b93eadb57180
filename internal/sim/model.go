package sim

// Model is what one engine (one replica, on however many accelerators) costs and holds. Times are seconds.
type Model struct {
	Name                   string
	PrefillPerToken        float64 // linear layers, per token
	PrefillPerTokenContext float64 // prefill attention, per token and token of context it attends to
	IterationFixed         float64 // of an iteration that computes
	IterationBase          float64 // least time of an iteration: the weights have to be read
	DecodePerKVToken       float64 // decode attention, per KV token read
	KVTokens               int     // KV cache, tokens
	MaxBatch               int     // sequences running at once
	ChunkTokens            int     // tokens of one iteration
}

// Model8B is a model of 8 billion parameters in 16 bits on one H100 of 80 GB. It prefills about 45,000 tokens a second at
// short context and decodes a token in 7.5 ms.
//
// No engine was run. The constants come from published measurements and from arithmetic:
//
//   - PrefillPerToken, 22 us: Vidur's operator profiles (github.com/microsoft/vidur, MIT) give 19.9 us a token for
//     Llama-2-7B on an H100 at 2,048 tokens, and Llama-3-8B 1.09 times that of Llama-2-7B on an A100.
//   - IterationBase, 7.5 ms: the same profiles at 1 to 64 tokens, 5.8 ms, and an assumed 1.7 ms for the output layer,
//     scheduling and sampling.
//   - IterationFixed, 3 ms: assumed; launches and scheduling that do not shrink with the batch.
//   - PrefillPerTokenContext, 1.17 ns: 4 * layers * hidden size operations per pair of tokens at 450 TFLOP/s, between
//     FlashAttention-2 and FlashAttention-3 on an H100 (arXiv 2407.08608).
//   - DecodePerKVToken, 52 ns: 131,072 bytes of KV a token at 2.5 TB/s, three quarters of the H100's 3.35 TB/s.
//   - KVTokens, 400,000: 0.9 * 80 GB less 16 GB of weights and 3.6 GB of workspace.
//   - MaxBatch 256 and ChunkTokens 2,048: the order of vLLM's defaults.
func Model8B() Model {
	return Model{
		Name:                   "8b",
		PrefillPerToken:        22e-6,
		PrefillPerTokenContext: 1.17e-9,
		IterationFixed:         3e-3,
		IterationBase:          7.5e-3,
		DecodePerKVToken:       52e-9,
		KVTokens:               400_000,
		MaxBatch:               256,
		ChunkTokens:            2048,
	}
}

// Model70B is a model of 70 billion parameters in 16 bits on four H100s with tensor parallelism: about 14,700 prefill
// tokens a second at short context, 18 ms a decoded token. Sources as for Model8B:
//
//   - PrefillPerToken, 68 us: Vidur's Llama-2-70B profile with four GPUs, 55.2 us, and 12.4 us of all-reduce.
//   - IterationBase, 18 ms: 14.5 ms at 1 to 64 tokens, and an assumed 3.5 ms for the output layer, small all-reduces,
//     scheduling and sampling. IterationFixed, 5 ms: assumed.
//   - PrefillPerTokenContext, 1.46 ns, and DecodePerKVToken, 33 ns (327,680 bytes of KV a token): a quarter on each GPU.
//   - KVTokens, 410,000: 0.9 * 4 * 80 GB less 141 GB of weights and 13 GB of workspace.
func Model70B() Model {
	return Model{
		Name:                   "70b",
		PrefillPerToken:        68e-6,
		PrefillPerTokenContext: 1.46e-9,
		IterationFixed:         5e-3,
		IterationBase:          18e-3,
		DecodePerKVToken:       33e-9,
		KVTokens:               410_000,
		MaxBatch:               256,
		ChunkTokens:            2048,
	}
}

// attended is how many (token, token of context) pairs n new tokens after so many earlier ones make.
func attended(n, context int) float64 { return float64(n) * (float64(context) + float64(n)/2) }

// linear is an iteration's time without attention.
func (m *Model) linear(tokens int) float64 {
	return max(m.IterationBase, m.IterationFixed+m.PrefillPerToken*float64(tokens))
}

// check refuses what cannot run.
func (m *Model) check(blockSize int) error {
	for _, c := range []struct {
		field string
		value float64
	}{
		{"Model.PrefillPerToken", m.PrefillPerToken},
		{"Model.PrefillPerTokenContext", m.PrefillPerTokenContext},
		{"Model.IterationFixed", m.IterationFixed},
		{"Model.DecodePerKVToken", m.DecodePerKVToken},
	} {
		if err := inRange(c.field, c.value, 0, maxCost); err != nil {
			return err
		}
	}
	// Without it an iteration could take no time at all, and the clock would stand.
	if err := inRange("Model.IterationBase", m.IterationBase, minIteration, maxCost); err != nil {
		return err
	}
	if err := inRange("Model.KVTokens", m.KVTokens, blockSize, maxKVTokens); err != nil {
		return err
	}
	if err := inRange("Model.MaxBatch", m.MaxBatch, 1, maxKVTokens); err != nil {
		return err
	}
	return inRange("Model.ChunkTokens", m.ChunkTokens, 1, maxKVTokens)
}

const (
	minIteration = 1e-6    // seconds
	maxCost      = 1e3     // seconds
	maxKVTokens  = 1 << 30 // also bounds the batch and the chunk
)
