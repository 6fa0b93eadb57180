package oracle

import (
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/load"
)

// BenchmarkGuesses remembers a prompt and forgets one, with 32 of them under way on one target.
func BenchmarkGuesses(b *testing.B) {
	for _, tt := range []struct {
		name        string
		blocks, own int // own: not shared with the others
	}{
		{"32-new", 32, 32},
		{"512-new", 512, 512},
		{"8192-new", 8192, 8192},
		{"8192-tail", 8192, 100},
		{"8192-same", 8192, 0},
	} {
		b.Run(tt.name, func(b *testing.B) {
			g := newGuesses(1<<20, time.Second)
			locals := make([]block.Local, tt.blocks)
			var prompts [64][]block.ID
			for i := range prompts {
				for k := tt.blocks - tt.own; k < tt.blocks; k++ {
					locals[k] = block.Local(i<<20 + k)
				}
				prompts[i] = block.AppendChain(nil, 1, locals)
			}
			b.ReportAllocs()
			var id load.DecisionID
			for b.Loop() {
				id++
				g.add(id, 7, prompts[id%64], t0)
				if id > 32 {
					g.cancel(id - 32)
				}
			}
		})
	}
}
