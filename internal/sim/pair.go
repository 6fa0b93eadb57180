package sim

import (
	"container/heap"
	"errors"
	"math"

	"github.com/kvoracle/kvoracle/internal/block"
)

// onward is the way of a job that one engine prefills and another decodes.
type onward struct {
	to   int
	link func(tokens int) float64
	gone bool // it has left the first
}

// leaves says that the job goes on elsewhere after its prefill, arrives that it comes with its prompt computed.
func (j *Job) leaves() bool  { return j.onward != nil && !j.onward.gone }
func (j *Job) arrives() bool { return j.onward != nil && j.onward.gone }

// SubmitPair is Submit where one engine prefills and another decodes. When the prefill is done, the part of the prompt that
// the second does not hold at that moment is moved there, which takes link(its tokens) seconds; the first engine is free
// of it meanwhile. The second takes it up at an iteration's start when it has memory, and the first token counts from then.
// With one engine for both it is Submit.
func (f *Fleet) SubmitPair(prefill, decode int, r *Request, t float64, link func(tokens int) float64) (*Job, error) {
	if prefill == decode {
		return f.Submit(decode, r, t)
	}
	if len(f.options.Changes) > 0 {
		return nil, errors.New("sim: engines that change serve no pairs")
	}
	for _, e := range [...]int{prefill, decode} {
		if err := f.takes(e, r, t); err != nil {
			return nil, err
		}
	}
	f.Advance(t)
	return f.place(prefill, r, t, &onward{to: decode, link: link}), nil
}

// handOver sends a prefilled job on its way at t.
func (f *Fleet) handOver(j *Job, t float64) {
	to := f.engines[j.onward.to]
	held, _ := to.cache.match(j.chain[:min(len(j.chain), block.Usable(j.Request.Input, to.blockSize))])
	took := j.onward.link(j.Request.Input - held*to.blockSize)
	if !(took >= 0 && took <= maxSeconds) {
		took = 0
	}
	f.inFlight[j.Engine]--
	j.Engine, j.onward.gone = j.onward.to, true
	f.inFlight[j.Engine]++
	f.moving.sent++
	heap.Push(&f.moving, transfer{t + took, f.moving.sent, j})
}

// arrive gives a moved job to the engine that decodes it.
func (f *Fleet) arrive(j *Job) { f.engines[j.Engine].enqueue(j, f.now) }

// transfers are the jobs on their way, a heap by time; of equal times the one sent first is first.
type transfers struct {
	way  []transfer
	sent int
}

type transfer struct {
	at    float64
	order int
	job   *Job
}

// next is when the next one arrives; +Inf: none is on its way.
func (h *transfers) next() float64 {
	if len(h.way) == 0 {
		return math.Inf(1)
	}
	return h.way[0].at
}

func (h *transfers) take() *Job {
	t, _ := heap.Pop(h).(transfer)
	return t.job
}

// Len implements heap.Interface.
func (h *transfers) Len() int { return len(h.way) }

// Less implements heap.Interface.
func (h *transfers) Less(i, k int) bool {
	a, b := &h.way[i], &h.way[k]
	return a.at < b.at || a.at == b.at && a.order < b.order
}

// Swap implements heap.Interface.
func (h *transfers) Swap(i, k int) { h.way[i], h.way[k] = h.way[k], h.way[i] }

// Push implements heap.Interface.
func (h *transfers) Push(x any) {
	if t, ok := x.(transfer); ok {
		h.way = append(h.way, t)
	}
}

// Pop implements heap.Interface.
func (h *transfers) Pop() any {
	n := len(h.way) - 1
	t := h.way[n]
	h.way[n] = transfer{}
	h.way = h.way[:n]
	return t
}

// PairChooser decides where a request is prefilled and where it is decoded.
type PairChooser interface {
	// ChoosePair picks both engines (0 to Engines-1) for a request that arrives at t; equal: one does both.
	ChoosePair(t float64, r *Request, f *Fleet) (prefill, decode int)
	// Link is how long moving so many tokens from one engine to another takes, in seconds.
	Link(prefill, decode, tokens int) float64
}

// RunPairs is Run where requests may be prefilled on one engine and decoded on another.
func RunPairs(tr *Trace, c PairChooser, o RunOptions) (Result, error) {
	return run(tr, c, func(f *Fleet, r *Request, at float64) error {
		p, d := c.ChoosePair(at, r, f)
		_, err := f.SubmitPair(p, d, r, at, func(tokens int) float64 { return c.Link(p, d, tokens) })
		return err
	}, o)
}
