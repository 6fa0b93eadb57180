package oracle

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/load"
)

// BenchmarkRoute is one decision about 512 tokens with the life of its request, in a fleet of n workers that report their
// load: one report a decision. Two workers hold each conversation; shared: all hold its first half, a system prompt.
func BenchmarkRoute(b *testing.B) {
	for _, n := range []int{64, 1024, 10_000} {
		for _, everybody := range []bool{false, true} {
			b.Run(fmt.Sprintf("workers=%d/shared=%t", n, everybody), func(b *testing.B) { benchRoute(b, n, everybody) })
		}
	}
}

func benchRoute(b *testing.B, n int, everybody bool) {
	const blockSize, tokens, under = 16, 512, 1024
	o := New(Config{}, nil)
	now := t0
	const talks = 2048
	prompts := make([][]uint32, talks)
	chains := make([][]block.ID, talks)
	ks := block.Identity{Model: "m", BlockSize: blockSize}.Keyspace()
	for c := range prompts {
		ids := make([]uint32, tokens)
		for i := range ids {
			if ids[i] = uint32(i); !everybody || i >= tokens/2 {
				ids[i] += uint32((c + 1) * tokens)
			}
		}
		prompts[c], chains[c] = ids, block.AppendTokenChain(nil, ks, ids, blockSize)
	}
	loads := make([]*LoadSession, n)
	for i := range n {
		name := fmt.Sprintf("w%05d", i)
		s, _, err := o.OpenBlocks(&Hello{
			Spec: fleet.Spec{Worker: name, Model: "m", BlockSize: blockSize, DPSize: 1}, Incarnation: 1, NextSequence: 1,
		}, now)
		if err != nil {
			b.Fatal(err)
		}
		var ops []Op
		if everybody {
			ops = append(ops, Op{Kind: OpStore, IsRoot: true, IDs: chains[0][:len(chains[0])/2]})
		}
		for c := range chains {
			if c%n == i || (c+n/2)%n == i {
				ops = append(ops, Op{Kind: OpStore, IsRoot: true, IDs: chains[c]})
			}
		}
		if _, err := s.Batch(1, 1, ops, now); err != nil {
			b.Fatal(err)
		}
		if loads[i], err = o.OpenLoad(name, 0, 1); err != nil {
			b.Fatal(err)
		}
	}
	report := func(i int) {
		l := loads[i%n]
		if _, err := l.Sample(load.Sample{Running: load.Known(i % 7), Waiting: load.Known(0), UsedBlocks: load.Known(i % 4000), TotalBlocks: load.Known(25_000)}, now); err != nil {
			b.Fatal(err)
		}
	}
	for i := range n {
		report(i)
	}
	r := &RouteRequest{Model: "m", Prompt: Prompt{Length: tokens}, MaxAlternatives: 2, ExpectedOutput: 100, Room: &Answer{}}
	var living [under]DecisionID
	progress := func(id DecisionID, s Step) {
		if id == 0 {
			return
		}
		if _, err := o.Progress(&Event{Decision: id, Step: s, OutputTokens: 100, Cached: -1}, now); err != nil {
			b.Fatal(err)
		}
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second / 1000)
		report(i)
		r.Prompt.Tokens = prompts[i*7919%talks]
		a, err := o.Route(b.Context(), r, now)
		if err != nil {
			b.Fatal(err)
		}
		progress(living[(i+under/2)%under], FirstToken)
		progress(living[i%under], Finished)
		living[i%under] = a.Decision
		i++
	}
}

// BenchmarkTick is what time alone costs, four times a second, in a fleet of n workers whose streams are open.
func BenchmarkTick(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("workers=%d", n), func(b *testing.B) {
			o := New(Config{}, nil)
			now := t0
			for i := range n {
				if _, _, err := o.OpenBlocks(&Hello{
					Spec: fleet.Spec{Worker: fmt.Sprintf("w%05d", i), Model: "m", BlockSize: 16, DPSize: 1}, Incarnation: 1, NextSequence: 1,
				}, now); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				now = now.Add(250 * time.Millisecond)
				o.Tick(now)
			}
		})
	}
}
