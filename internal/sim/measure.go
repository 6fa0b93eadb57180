package sim

import (
	"math"
	"slices"
)

// Result is what was measured of a fleet. A request counts if it was submitted after the measurement began and has
// finished; engines' work counts from the measurement's beginning. Durations are seconds. Everything is 0 if nothing was
// measured.
//
// Imbalance is the prefill compute (seconds of linear layers and attention, without what an iteration costs anyway) of
// the engine that did most, divided by the mean of all: 1 is even, the number of engines is all on one. Prefill is what
// routing moves about; a cached token is no work.
type Result struct {
	N            int     `json:"n"`                       // requests counted
	Refused      int     `json:"refused"`                 // requests no engine can hold; set by Run
	Span         float64 `json:"span_seconds"`            // from the measurement's beginning to now
	TTFT         Summary `json:"ttft_seconds"`            // arrival to first token
	TPOT         Summary `json:"tpot_seconds"`            // per output token after the first; of requests with two or more
	PromptTokens int64   `json:"prompt_tokens"`           // of the requests counted
	CachedTokens int64   `json:"cached_tokens"`           // those among them that came from the cache
	CachedShare  float64 `json:"cached_share"`            // CachedTokens / PromptTokens
	Imbalance    float64 `json:"prefill_work_max_mean"`   // see below
	Utilisation  float64 `json:"engines_busy_share_mean"` // time in iterations / Span, mean over engines

	Requests []Served `json:"-"` // those counted, in order of their ends; only with RunOptions.Keep
}

// Served is one request that was measured. Times are virtual seconds.
type Served struct {
	Arrived, FirstToken, Finished float64
	Engine, Input, Cached         int
}

// Among is the part of a result that is of requests which arrived from one moment to before another: N, TTFT and the tokens.
// It needs Requests, and keeps those.
func (r *Result) Among(from, to float64) Result {
	out := Result{Span: to - from}
	var ttft []float64
	for _, s := range r.Requests {
		if s.Arrived < from || s.Arrived >= to {
			continue
		}
		ttft = append(ttft, s.FirstToken-s.Arrived)
		out.PromptTokens += int64(s.Input)
		out.CachedTokens += int64(s.Cached)
		out.Requests = append(out.Requests, s)
	}
	out.N, out.TTFT = len(ttft), summarize(ttft)
	if out.PromptTokens > 0 {
		out.CachedShare = float64(out.CachedTokens) / float64(out.PromptTokens)
	}
	return out
}

// Summary describes a sample. A quantile q is its value of rank ceil(q*n).
type Summary struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// tally holds what is measured per request.
type tally struct {
	ttft, tpot     []float64
	prompt, cached int64
	served         []Served
}

func (a *tally) add(j *Job, keep bool) {
	if keep {
		a.served = append(a.served, Served{j.Arrived, j.FirstToken, j.Finished, j.Engine, j.Request.Input, j.Cached})
	}
	a.prompt += int64(j.Request.Input)
	a.cached += int64(j.Cached)
	a.ttft = append(a.ttft, j.FirstToken-j.Arrived)
	if n := j.Request.Output - 1; n > 0 {
		a.tpot = append(a.tpot, (j.Finished-j.FirstToken)/float64(n))
	}
}

// Measure begins the measurement anew: what happened so far, and what becomes of requests submitted so far, is not
// counted. A Fleet measures from its start.
func (f *Fleet) Measure() {
	f.round++
	f.measuredFrom = f.now
	f.tally = tally{}
	for _, e := range f.engines {
		e.busy, e.prefills = 0, 0
	}
}

// Result is the measurement so far. While requests are in flight it favours the quick ones.
func (f *Fleet) Result() Result {
	r := Result{
		N:            len(f.tally.ttft),
		Span:         f.now - f.measuredFrom,
		TTFT:         summarize(f.tally.ttft),
		TPOT:         summarize(f.tally.tpot),
		PromptTokens: f.tally.prompt,
		CachedTokens: f.tally.cached,
		Requests:     f.tally.served,
	}
	if r.PromptTokens > 0 {
		r.CachedShare = float64(r.CachedTokens) / float64(r.PromptTokens)
	}
	busy, work, most := 0.0, 0.0, 0.0
	for _, e := range f.engines {
		busy += e.busy
		if e.isRunning {
			busy += f.now - max(e.begin, f.measuredFrom)
		}
		work += e.prefills
		most = max(most, e.prefills)
	}
	n := float64(len(f.engines))
	if work > 0 {
		r.Imbalance = most * n / work
	}
	if r.Span > 0 {
		r.Utilisation = busy / n / r.Span
	}
	return r
}

// summarize leaves the sample as it is.
func summarize(sample []float64) Summary {
	n := len(sample)
	if n == 0 {
		return Summary{}
	}
	s := slices.Sorted(slices.Values(sample))
	sum := 0.0
	for _, x := range s {
		sum += x
	}
	rank := func(q float64) float64 { return s[max(int(math.Ceil(q*float64(n))), 1)-1] }
	return Summary{Mean: sum / float64(n), P50: rank(0.50), P90: rank(0.90), P99: rank(0.99)}
}
