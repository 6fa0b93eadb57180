package index

import "testing"

// byteChooser reads choices off a fuzz input; once it is used up every choice is the first.
type byteChooser struct{ rest []byte }

func (b *byteChooser) below(n int) int {
	if len(b.rest) == 0 || n < 2 {
		return 0
	}
	v := int(b.rest[0])
	b.rest = b.rest[1:]
	return v % n
}

// FuzzLedger lets the input write the history.
func FuzzLedger(f *testing.F) {
	f.Add([]byte{}, uint8(0), uint8(0))
	f.Add([]byte("a chain, a hole, a circle of parents, and the same again in another tier of another target"), uint8(9), uint8(2))
	f.Fuzz(func(t *testing.T, in []byte, maxBlocks, maxOrphans uint8) {
		c := &byteChooser{rest: in}
		s := newScript(t, c, int(maxBlocks)+1, int(maxOrphans)+1)
		for len(c.rest) > 0 {
			s.step()
		}
		s.finish()
	})
}
