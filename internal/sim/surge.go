package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Surge is a time in which more comes than a trace has. Times are virtual seconds.
type Surge struct {
	From, For float64
	// Faster is how many times as fast the trace's own requests come meanwhile; 0: 1. What follows comes that much earlier.
	Faster float64
	// Requests is how many come on top of them, at moments drawn evenly from the time, and so do their heads.
	Requests int
	// Heads is how many prompts' beginnings, which the trace has not, they share; 0: 1. A head is of Head tokens, made
	// whole blocks.
	Heads, Head int
	// Tail is how many tokens each has after its head, which no other has, and Output how many it asks for; at least 1.
	Tail, Output int
	// Seed varies what is drawn.
	Seed uint64
}

// With gives the trace as an open loop of this speed sends it, with a surge in it. The prompts of the trace's own requests
// are shared with it, and so is what is computed of them.
func (t *Trace) With(speed float64, s Surge) (*Trace, error) {
	if err := inRange("speed", speed, 1e-3, 1e6); err != nil {
		return nil, err
	}
	if err := s.normalize(); err != nil {
		return nil, err
	}
	next := uint32(0)
	out := &Trace{BlockSize: t.BlockSize}
	for _, r := range t.Requests {
		for _, h := range r.hashes {
			next = max(next, h+1)
		}
		out.Requests = append(out.Requests, &Request{
			Arrival: s.warp(r.Arrival / speed), Input: r.Input, Output: r.Output, Session: r.Session, Delay: r.Delay,
			hashes: r.hashes, blockSize: r.blockSize, twin: r,
		})
	}
	head, tail := ceilDiv(s.Head, t.BlockSize), ceilDiv(s.Tail, t.BlockSize)
	if need, room := s.Heads*head+s.Requests*tail, (1<<32)/t.BlockSize-int(next); s.Requests > 0 && need > room {
		return nil, fmt.Errorf("Surge: %d new blocks, want at most %d", need, room)
	}
	fresh := func(n int) []uint32 {
		h := make([]uint32, n)
		for i := range h {
			h[i], next = next, next+1
		}
		return h
	}
	rnd := rand.New(rand.NewPCG(s.Seed, 6))
	heads := make([][]uint32, s.Heads)
	for i := range heads {
		heads[i] = fresh(head)
	}
	for range s.Requests {
		out.Requests = append(out.Requests, &Request{
			Arrival: s.From + rnd.Float64()*s.For, Input: head*t.BlockSize + s.Tail, Output: s.Output,
			hashes: append(slices.Clone(heads[rnd.IntN(len(heads))]), fresh(tail)...), blockSize: t.BlockSize,
		})
	}
	slices.SortStableFunc(out.Requests, func(a, b *Request) int {
		switch {
		case a.Arrival < b.Arrival:
			return -1
		case a.Arrival > b.Arrival:
			return 1
		default:
			return 0
		}
	})
	for i, r := range out.Requests {
		r.Index = i
	}
	return out, nil
}

// warp is when a request comes that would have come at t.
func (s *Surge) warp(t float64) float64 {
	if t <= s.From {
		return t
	}
	if past := t - s.From; past < s.For*s.Faster {
		return s.From + past/s.Faster
	}
	return t - s.For*(s.Faster-1)
}

// normalize fills in defaults and refuses what cannot be.
func (s *Surge) normalize() error {
	if s.Faster == 0 {
		s.Faster = 1
	}
	s.Heads = max(s.Heads, 1)
	s.Tail, s.Output = max(s.Tail, 1), max(s.Output, 1)
	if err := inRange("Surge.From", s.From, 0, maxSeconds); err != nil {
		return err
	}
	if err := inRange("Surge.For", s.For, 0, maxSeconds); err != nil {
		return err
	}
	if err := inRange("Surge.Faster", s.Faster, 1e-3, 1e3); err != nil {
		return err
	}
	if err := inRange("Surge.Requests", s.Requests, 0, MaxRequests); err != nil {
		return err
	}
	if err := inRange("Surge.Heads", s.Heads, 1, MaxRequests); err != nil {
		return err
	}
	if err := inRange("Surge.Head", s.Head, 0, maxKVTokens); err != nil {
		return err
	}
	return inRange("Surge.Tail", s.Tail, 1, maxKVTokens)
}
