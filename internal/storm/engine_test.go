package storm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// worker is one engine with its ranks. A restart takes all ranks along.
type worker struct {
	name        string
	incarnation uint64
	isCounted   bool // a repeated store is another copy; of each incarnation anew
	ranks       []*rank
	known       uint64 // incarnation the oracle has heard of; 0: it does not know the worker
	isLost      bool   // to the oracle, since a tick: no stream for longer than the lease
}

// isSilentFor reports whether no rank has had a stream for longer than d.
func (x *worker) isSilentFor(now time.Time, d time.Duration) bool {
	for _, r := range x.ranks {
		if r.seen.isOpen || r.seen.isKnown && now.Sub(r.seen.cutAt) <= d {
			return false
		}
	}
	return true
}

// rank is one cache, the one whose duty it is to report it, and what the oracle has been told.
type rank struct {
	w        *worker
	n        int
	naming   *naming // of this life
	truth    contents
	reporter *reporter
	second   *reporter // another publisher of the same engine, or nil
	seen     shadow
	causes   int     // things that may each cost a snapshot
	asked    int     // snapshots asked for
	unsaid   nameSet // engine hashes of which it was lost, once in this life, what they stand for
}

func (r *rank) String() string { return fmt.Sprintf("%s/%d", r.w.name, r.n) }

// publishers lists the processes that report this rank.
func (r *rank) publishers() []*reporter {
	if r.second != nil {
		return []*reporter{r.reporter, r.second}
	}
	return []*reporter{r.reporter}
}

// change lets the engine do something and returns it as operations, already done.
func (r *rank) change(dice *rand.Rand) []oracle.Op {
	var ops []oracle.Op
	switch x := dice.IntN(100); {
	case x < 55:
		ops = r.compute(dice)
	case x < 80:
		ops = r.evict(dice)
	case x < 96:
		ops = r.move(dice)
	default:
		t := fleet.Tier(dice.IntN(fleet.NumTiers))
		ops = append(ops, oracle.Op{Kind: oracle.OpClear, Tier: t, AllTier: dice.IntN(3) == 0})
	}
	for i := range ops {
		r.truth.apply(&ops[i])
	}
	return ops
}

// compute stores a part of a prompt: often what is missing of it, sometimes anything. Now and then an engine names what it
// holds a second time.
func (r *rank) compute(dice *rand.Rand) []oracle.Op {
	g := r.naming
	p := g.tree.path(dice.IntN(numLeaves))
	if g.isHashed && dice.IntN(4) == 0 {
		for i := range p {
			p[i] += another
		}
	}
	var to, from int
	to = 1 + dice.IntN(len(p))
	if dice.IntN(4) > 0 {
		for from < to-1 && r.truth.sets.has(fleet.Device, p[from]) {
			from++
		}
	} else {
		from = dice.IntN(to)
	}
	tier := fleet.Device
	if dice.IntN(8) == 0 {
		tier = fleet.Tier(dice.IntN(fleet.NumTiers))
	}
	content := oracle.ContentIDs
	if g.isHashed || dice.IntN(3) == 0 {
		content = oracle.ContentLocals
	}
	ops := []oracle.Op{g.store(p[from:to], tier, content)}
	if len(g.others) > 0 && dice.IntN(4) == 0 { // the other groups' blocks have the same hashes
		ops = append(ops, elsewhere(ops[0]))
	}
	return ops
}

// held picks some blocks of a tier.
func (r *rank) held(dice *rand.Rand, t fleet.Tier, most int) []node {
	var out []node
	start := node(dice.IntN(r.naming.names()))
	for i := range node(r.naming.names()) {
		if n := (start + i) % node(r.naming.names()); len(out) < most && r.truth.sets.has(t, n) {
			out = append(out, n)
		}
	}
	return out
}

// any picks a block, whether it is held or not.
func (r *rank) any(dice *rand.Rand) node {
	n := node(dice.IntN(int(r.naming.tree.nodes)))
	if r.naming.isHashed && dice.IntN(4) == 0 {
		n += another
	}
	return n
}

// evict removes a few blocks, wherever in their chains; now and then one that is not there.
func (r *rank) evict(dice *rand.Rand) []oracle.Op {
	t := fleet.Tier(dice.IntN(fleet.NumTiers))
	if dice.IntN(2) == 0 {
		t = fleet.Device
	}
	some := r.held(dice, t, 1+dice.IntN(5))
	if len(some) == 0 || dice.IntN(10) == 0 {
		some = append(some, r.any(dice))
	}
	ops := []oracle.Op{r.naming.remove(some, t)}
	if len(r.naming.others) > 0 && dice.IntN(2) == 0 { // windows lose blocks that the prefix keeps
		ops = append(ops, elsewhere(r.naming.remove([]node{r.any(dice)}, t)))
	}
	return ops
}

// move brings blocks to a farther tier, one operation each, since they need not be neighbours. With engine hashes it may
// leave out what they are.
func (r *rank) move(dice *rand.Rand) []oracle.Op {
	from := fleet.Tier(dice.IntN(fleet.NumTiers - 1))
	some := r.held(dice, from, 1+dice.IntN(4))
	var ops []oracle.Op
	for _, n := range some {
		content := r.naming.plain()
		if r.naming.isHashed && dice.IntN(2) == 0 {
			content = oracle.ContentNone
		}
		ops = append(ops, r.naming.store([]node{n}, from+1, content))
	}
	return append(ops, r.naming.remove(append(some, r.any(dice)), from))
}

// words spells operations for a transcript. Blocks are node numbers.
func words(g *naming, ops []oracle.Op) string {
	var b strings.Builder
	for i := range ops {
		op := &ops[i]
		if i > 0 {
			b.WriteString("; ")
		}
		names := g.read(op)
		switch {
		case op.Kind == oracle.OpOther:
			fmt.Fprintf(&b, "another group's %v, removed: %v", names, op.AllTier)
		case op.Kind == oracle.OpStore && op.Content == oracle.ContentNone:
			fmt.Fprintf(&b, "store %v, whatever they are, in %v", names, op.Tier)
		case op.Kind == oracle.OpStore:
			fmt.Fprintf(&b, "store %v after %d in %v", names, g.tree.parent(names[0]), op.Tier)
		case op.Kind == oracle.OpRemove:
			fmt.Fprintf(&b, "remove %v from %v", names, op.Tier)
		case op.AllTier:
			b.WriteString("clear everything")
		default:
			fmt.Fprintf(&b, "clear %v", op.Tier)
		}
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}
