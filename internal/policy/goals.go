package policy

import "slices"

// Goals are how soon a request's tokens are wanted, in seconds; 0: whenever.
type Goals struct {
	// TTFT is the wanted time to the first token, TPOT that of each further one.
	TTFT, TPOT float64
}

// IsSet reports whether anything is wanted.
func (g Goals) IsSet() bool { return g.TTFT > 0 || g.TPOT > 0 }

// Missed tells which goals a score and a time per output token do not reach.
func (g Goals) Missed(s *Score, tpot float64) (ttft, perToken bool) {
	return g.TTFT > 0 && s.TTFT > g.TTFT, g.TPOT > 0 && tpot > g.TPOT
}

// TPOT predicts a request's time per output token on a candidate in seconds: an iteration with it and all that decode there
// now, half of its output written.
func TPOT(req *Request, c *Candidate) float64 {
	m := c.model()
	kv, _ := memory(c, &m)
	own := float64(narrow(req.PromptTokens)) + within(req.ExpectedOutput, maxTokens)/2
	step := max(m.IterationBase, m.IterationFixed+m.PrefillPerToken*float64(max(c.Decoding, 0)+1))
	return min(step+m.DecodePerKVToken*(kv+own), MaxTerm)
}

// DecodeTime predicts the time from a request's first token to its end in seconds, where busy is the share of time (0 to 1)
// in which there is prefill to do: then each token waits for a whole chunk.
func DecodeTime(req *Request, c *Candidate, busy float64) float64 {
	m := c.model()
	busy = within(busy, 1)
	step := TPOT(req, c)
	chunk := step + m.PrefillPerToken*float64(m.ChunkTokens)
	if !(step > 0) {
		return 0
	}
	return min(within(req.ExpectedOutput, maxTokens)/((1-busy)/step+busy/chunk), MaxTerm)
}

// Prefer puts the candidates that are predicted to reach the goals before the others and keeps the order otherwise: among
// those that are soon enough the cheapest is best, and where none is the request does not get dearer for it. d ranks all of
// cands. The reason becomes ReachesGoals if that decided.
func Prefer(req *Request, g Goals, cands []Candidate, d *Decision) {
	if !g.IsSet() || len(d.Order) < 2 {
		return
	}
	reaches := func(i int) bool {
		ttft, perToken := g.Missed(&d.Scores[i], TPOT(req, &cands[i]))
		return !ttft && !perToken
	}
	if reaches(d.Order[0]) {
		return
	}
	slices.SortStableFunc(d.Order, func(a, b int) int {
		switch x, y := reaches(a), reaches(b); {
		case x == y:
			return 0
		case x:
			return -1
		default:
			return 1
		}
	})
	if d.Order[0] != d.Best {
		d.Best, d.Reason = d.Order[0], ReachesGoals
	}
}
