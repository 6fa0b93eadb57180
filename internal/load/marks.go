package load

// Marks are a sample of the blocks of a prompt, by which memory that several requests share is counted once, for as long
// as any of them lasts: a sum over bookings cannot do that, because the one that came first may end first. A block is in
// every prompt's sample or in none's (choose by its id), so that a sampled block is shared exactly when it is.
type Marks struct {
	// Blocks are the sampled ones.
	Blocks []uint64
	// Tokens is how many each stands for: the block's own, and those of the blocks that were left out.
	Tokens int
	// Covered is the number of tokens of the prompt that the sample stands for: its full blocks.
	Covered int
}

// mark counts a booking's sample at a target.
func (g *target) mark(b *booking) {
	for _, id := range b.marks {
		if g.refs == nil {
			g.refs = make(map[uint64]int32)
		}
		g.refs[id]++
		if g.refs[id] == 1 {
			g.marked += b.markTokens
		}
	}
}

// unmark takes it out again.
func (g *target) unmark(b *booking) {
	for _, id := range b.marks {
		if g.refs[id]--; g.refs[id] == 0 {
			delete(g.refs, id)
			g.marked -= b.markTokens
		}
	}
}

// alone is the memory that only this booking takes.
func (g *target) alone(b *booking) int64 {
	sum := b.amounts.held()
	for _, id := range b.marks {
		if g.refs[id] == 1 {
			sum += b.markTokens
		}
	}
	return sum
}
