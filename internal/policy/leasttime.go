package policy

import "math"

// LeastTime sends a request where it costs the least time, its own and everyone else's. With
//
//	n    uncached tokens after ctx cached or expected ones
//	own  = PrefillPerToken*n + PrefillPerTokenContext*n*(ctx + n/2)
//	s    sequences decoding there, k KV tokens they read
//	load = PrefillPerToken*s + DecodePerKVToken*k           what company adds to an iteration
//	step = IterationFixed + load
//	out  = expected output tokens
//
// the terms are, in seconds:
//
//	Queue    = pending prefill
//	           Work of the requests there that have no first token yet.
//	Prefill  = own + iterations*step,  iterations = ceil((Queue + own) / (PrefillPerToken*ChunkTokens)) + 1
//	           Prefill comes in chunks; each iteration until the first token carries the fixed part and the decodes.
//	Fleet    = Gamma*own + Alpha*own*s
//	           The price of a second of prefill to others: later arrivals wait for it (without this a request repeats a
//	           long prefix on an idle worker because it alone gains), and every decoding sequence stalls.
//	Decode   = Delta*out*load
//	           The newcomer's own tokens come slower in company.
//	Transfer = sum over tiers of cached tokens * TransferPerToken
//	Memory   = out*(IterationBase + step) * over / (5 % of KVTokens), over = tokens beyond 95 % of KVTokens
//	           of what is held, what the prompt adds, and the output still to come, its own included. Memory frees as
//	           sequences end, so the wait is of the order of one sequence's life.
//	Batch    = out*step * q/MaxBatch,  q = requests beyond MaxBatch with this one
//
// TTFT = Queue + Prefill + Transfer + Memory + Batch. The zero value is plain least predicted TTFT.
type LeastTime struct {
	// Gamma is how often a request's own prefill is counted once more for the fleet.
	Gamma float64
	// Alpha is the charge of a second of prefill for each decoding sequence.
	Alpha float64
	// Delta is the weight of decode interference.
	Delta float64
}

// DefaultLeastTime has the weights that did best in simulation over four traces, three loads and two models.
func DefaultLeastTime() LeastTime { return LeastTime{Gamma: 2, Alpha: 0.1, Delta: 0.2} }

// Name is "least_time".
func (LeastTime) Name() string { return "least_time" }

// Choose ranks by Terms.Sum().
func (p LeastTime) Choose(req *Request, cands []Candidate, d *Decision) {
	p.score(req, cands, d)
	for i := range d.Scores {
		d.Scores[i].Cost = d.Scores[i].Terms.Sum()
	}
	rank(cands, d, req.Places)
}

// score fills everything of the scores but Cost. The other policies use it to explain themselves.
func (p LeastTime) score(req *Request, cands []Candidate, d *Decision) {
	d.reset(len(cands))
	w := LeastTime{within(p.Gamma, maxRate), within(p.Alpha, maxRate), within(p.Delta, maxRate)}
	prompt, out := max(req.PromptTokens, 0), within(req.ExpectedOutput, maxTokens)
	fallback := DefaultCostModel()

	// Candidates of one class share a model: clamp it once.
	var last *CostModel
	var m CostModel
	for i := range cands {
		c := &cands[i]
		from := c.Cost
		if from == nil {
			from = &fallback
		}
		if from != last {
			m, last = from.clamped(), from
		}
		w.one(prompt, out, c, &m, &d.Scores[i])
	}
}

// one scores a single candidate; all numbers but the candidate's are in range.
func (p LeastTime) one(prompt int, out float64, c *Candidate, m *CostModel, s *Score) {
	var t Terms

	// Credit runs from the front and stops before the last token, which is always computed.
	left := max(prompt-1, 0)
	for tier, n := range c.Cached {
		n = min(max(n, 0), left)
		left -= n
		t.Transfer += float64(n) * m.TransferPerToken[tier]
	}
	cached := max(prompt-1, 0) - left
	left -= min(max(c.Expected, 0), left)
	uncached := left + min(prompt, 1)

	own := m.prefill(uncached, prompt-uncached)
	decoding := float64(max(c.Decoding, 0))
	kv, held := memory(c, m)
	load := m.PrefillPerToken*decoding + m.DecodePerKVToken*kv
	step := m.IterationFixed + load

	t.Queue = within(c.PendingPrefill, MaxTerm)
	iterations := 1.0
	if chunk := m.PrefillPerToken * float64(m.ChunkTokens); chunk > 0 {
		iterations += min(math.Ceil((t.Queue+own)/chunk), maxTokens)
	}
	t.Prefill = own + iterations*step
	t.Fleet = p.Gamma*own + p.Alpha*own*decoding
	t.Decode = p.Delta * out * load

	if room := float64(m.KVTokens); room > 0 {
		toCome := within(c.OutputToCome, maxTokens)
		if toCome == 0 {
			toCome = decoding * out
		}
		adds := float64(prompt - min(max(c.Shared, 0), prompt))
		if over := held + adds + toCome + out - 0.95*room; over > 0 {
			t.Memory = out * (m.IterationBase + step) * over / (0.05 * room)
		}
	}
	if size := float64(m.MaxBatch); size > 0 {
		if q := float64(max(c.InFlight, 0)) + 1 - size; q > 0 {
			t.Batch = out * step * q / size
		}
	}

	t.Prefill, t.Fleet, t.Decode = min(t.Prefill, MaxTerm), min(t.Fleet, MaxTerm), min(t.Decode, MaxTerm)
	t.Transfer, t.Memory, t.Batch = min(t.Transfer, MaxTerm), min(t.Memory, MaxTerm), min(t.Batch, MaxTerm)
	*s = Score{Terms: t, TTFT: t.ttft(), Uncached: uncached, Cached: cached}
}

// memory tells the KV tokens that decoding reads and those that are held. The engine's own gauge knows of shared blocks
// and of requests that are not ours, so it is preferred for what is held, and is a floor for what is read.
func memory(c *Candidate, m *CostModel) (read, held float64) {
	read = within(c.ActiveTokens, maxTokens)
	held = within(c.HeldTokens, maxTokens)
	if held == 0 {
		held = read
	}
	if c.KVUsed >= 0 && m.KVTokens > 0 {
		since := within(c.UnreportedTokens, maxTokens) - within(-c.UnreportedTokens, maxTokens)
		held = max(min(c.KVUsed, 1)*float64(m.KVTokens)+since, 0)
		read = max(read, held)
	}
	return read, held
}
