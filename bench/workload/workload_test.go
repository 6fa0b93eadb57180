package workload

import (
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/internal/block"
)

// run plays a stream and sums it up.
func run(t *testing.T, p Profile, seed uint64) (ops, told, twice, removed, blocks int, sum block.ID) {
	t.Helper()
	s := New(p, seed)
	next := make(map[int]block.ID) // what each holder's next store must follow
	var op Op
	for {
		times := s.Next(&op)
		if times == 0 {
			return ops, told, twice, removed, blocks, sum
		}
		ops++
		twice += times - 1
		for _, id := range op.IDs {
			sum = sum*31 + id
		}
		if op.IsRemove {
			removed++
			continue
		}
		if !op.IsRoot && op.Parent != next[op.Holder] {
			t.Fatalf("operation %d of holder %d follows %x, want %x", ops, op.Holder, op.Parent, next[op.Holder])
		}
		next[op.Holder] = op.IDs[len(op.IDs)-1]
		told += len(op.IDs) * times
		blocks += len(op.IDs)
	}
}

func TestStreamIsAsDescribed(t *testing.T) {
	for _, p := range []Profile{Gate, Private, Fragmented, Fleet, Agentic, Churn} {
		t.Run(p.Name, func(t *testing.T) {
			p.Blocks = 300_000
			ops, _, twice, removed, blocks, sum := run(t, p, 7)
			if blocks < p.Blocks || blocks > p.Blocks*3/2 {
				t.Errorf("%d blocks, want about %d", blocks, p.Blocks)
			}
			if got := float64(twice) / float64(ops-removed); got < p.Twice*0.8 || got > p.Twice*1.2 {
				t.Errorf("%.3f of all batches are sent twice, want %.3f", got, p.Twice)
			}
			if p.HoleOfBlocks > 0 {
				if got := float64(removed) / float64(blocks); got < p.HoleOfBlocks*0.8 || got > p.HoleOfBlocks*1.2 {
					t.Errorf("%.3f of all blocks are lost, want %.3f", got, p.HoleOfBlocks)
				}
			} else if removed == 0 {
				t.Error("nothing was lost")
			}
			if _, _, _, _, _, again := run(t, p, 7); again != sum {
				t.Error("the same seed gives another stream")
			}
			if _, _, _, _, _, other := run(t, p, 8); other == sum {
				t.Error("another seed gives the same stream")
			}
		})
	}
}

// The stream's blocks are what a query of the same prompt asks for.
func TestChainsAreChained(t *testing.T) {
	p := Gate
	p.Blocks = 10_000
	s := New(p, 1)
	for f := range s.Families {
		for m := range s.Families[f].Holders {
			locals := s.AppendLocals(nil, f, m)
			chain := s.AppendChain(nil, f, m)
			if !slices.Equal(chain, Chain(nil, locals)) {
				t.Fatalf("family %d, member %d: ids are not those of the local hashes", f, m)
			}
			prefix := s.AppendChain(nil, f, -1)
			if len(prefix) != s.Families[f].Prefix || !slices.Equal(prefix, chain[:len(prefix)]) {
				t.Fatalf("family %d, member %d does not begin with the prefix", f, m)
			}
		}
	}
}
