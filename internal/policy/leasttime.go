package policy

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
//	Prefill  = own + iterations*step,  iterations = (Queue + own) / (PrefillPerToken*ChunkTokens) + 1
//	           Prefill comes in chunks; each iteration until the first token carries the fixed part and the decodes. On
//	           average half an iteration is under way when the request comes, and the last chunk is half full.
//	Fleet    = Prices.Prefill*own + Prices.Stall*own*s
//	           What a second of prefill takes from others: later arrivals wait for it (without this a request repeats a
//	           long prefix on an idle worker because it alone gains), and every decoding sequence stalls.
//	Evict    = Again*(Stretch + Prices.Prefill)*own,  Stretch = 1 + step/(PrefillPerToken*ChunkTokens) + Prices.Stall*s
//	           Each token that is computed pushes an older one out of a cache that is full. What leaves and is asked for
//	           again is computed again, and costs as much as this does. The older what leaves is, the less likely that
//	           is, so work that has no home goes where nobody's is given up for it.
//	Stay     = Returns*step
//	           Who goes on from this prompt comes to where it is, and finds the company that is there: what begins where many
//	           decode has each of its turns in slow iterations, and slows those of the others. The step counts and not what is pending,
//	           which is another by then.
//	Decode   = Prices.Decode*out*load
//	           The newcomer's own tokens come slower in company.
//	Transfer = sum over tiers of cached tokens * TransferPerToken
//	Memory   = out*(IterationBase + step) * over / (5 % of KVTokens), over = tokens beyond 95 % of KVTokens
//	           of what is held, what the prompt adds, and the output still to come, its own included. Memory frees as
//	           sequences end, so the wait is of the order of one sequence's life.
//	Batch    = out*step * q/MaxBatch,  q = requests beyond MaxBatch with this one
//	Copy     = min(Debt, what own, its iterations, Fleet and Evict are more than with Deepest tokens to compute), taken away
//	           A copy that many want is no loss but an investment, and paid as far as its lack has cost already: see Debts.
//
// TTFT = Queue + Prefill + Transfer + Memory + Batch.
//
// The same sum, ordered by what depends on the load alone, is a Row; Pick reads rows and nothing else where a target
// holds nothing of the prompt. Choose takes whole candidates and fills in every term.
type LeastTime struct{}

// DefaultLeastTime is the default policy.
func DefaultLeastTime() LeastTime { return LeastTime{} }

// Name is "least_time".
func (LeastTime) Name() string { return "least_time" }

// Choose ranks by the sum of the terms.
func (p LeastTime) Choose(req *Request, cands []Candidate, d *Decision) {
	p.score(req, cands, d)
	rank(cands, d, req.Places)
}

// score fills the scores. The other policies use it to explain themselves.
func (LeastTime) score(req *Request, cands []Candidate, d *Decision) {
	d.reset(len(cands))
	prices := req.Prices.clamped()
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
		one(req, prices, c, &m, &d.Scores[i])
	}
}

// Score fills s with the terms of one candidate as Choose and Pick count them.
func (LeastTime) Score(req *Request, c *Candidate, s *Score) {
	m := c.model()
	one(req, req.Prices.clamped(), c, &m, s)
}

// ScoreRow is Score where what NewHolder and NewRow make of the candidate is known already. The market prices nothing beyond
// prefill.
func (LeastTime) ScoreRow(req *Request, c *Candidate, h *Holder, row *Row, s *Score) {
	if m := c.Cost; m != nil && c.IsClamped {
		scoreOf(req, req.Prices.clamped(), c, m, h, row, s)
		return
	}
	m := c.model()
	scoreOf(req, req.Prices.clamped(), c, &m, h, row, s)
}

// one scores a single candidate; model and prices are in range.
func one(req *Request, prices Prices, c *Candidate, m *CostModel, s *Score) {
	h := newHolder(int(narrow(req.PromptTokens)), c, m)
	row, _ := newRow(c, m, prices)
	scoreOf(req, prices, c, m, &h, &row, s)
}

// scoreOf is one with what it holds and its load.
func scoreOf(req *Request, prices Prices, c *Candidate, m *CostModel, h *Holder, row *Row, s *Score) {
	prompt, out := int(narrow(req.PromptTokens)), within(req.ExpectedOutput, maxTokens)
	var t Terms
	own := m.prefill(int(h.Uncached), prompt-int(h.Uncached))
	decoding := float64(max(c.Decoding, 0))
	kv, _ := memory(c, m)
	load := m.PrefillPerToken*decoding + m.DecodePerKVToken*kv
	step := m.IterationFixed + load

	t.Queue = within(c.PendingPrefill, MaxTerm)
	iterations := 1.0
	if chunk := m.PrefillPerToken * float64(m.ChunkTokens); chunk > 0 {
		iterations += min((t.Queue+own)/chunk, maxTokens)
	}
	t.Prefill = min(own+iterations*step, MaxTerm)
	t.Fleet = min(prices.Prefill*own+prices.Stall*own*decoding, MaxTerm)
	t.Evict = min(m.Again*(row.Stretch+prices.Prefill)*own, MaxTerm)
	t.Stay = min(m.Returns*step, MaxTerm)
	t.Decode = min(prices.Decode*out*load, MaxTerm)
	t.Transfer = h.Transfer
	need := float64(prompt-int(h.Shared)) + out
	if over := need - row.Room; over > 0 {
		t.Memory = min(out*row.PerOver*over, MaxTerm)
	}
	if size := float64(m.MaxBatch); size > 0 {
		if q := float64(row.InFlight) + 1 - size; q > 0 {
			t.Batch = min(out*step*q/size, MaxTerm)
		}
	}
	n := float64(h.Uncached)
	pairs := pairsOf(n, float64(prompt)-n)
	*s = Score{
		TTFT: t.ttft(), Uncached: int(h.Uncached), Cached: int(h.Cached),
		Cost: row.cost(out, prices.Prefill, n, pairs, need) + h.Transfer,
	}
	if deepest := req.deepest(); n > deepest {
		s.copy = row.copyOf(prices.Prefill, n, pairs, deepest, pairsOf(deepest, float64(prompt)-deepest))
		t.Copy = min(req.debt(), s.copy, MaxTerm)
		s.Cost = max(s.Cost-t.Copy, 0)
	}
	s.Terms = t
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
