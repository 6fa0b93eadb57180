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
	truth    contents
	reporter *reporter
	second   *reporter // another publisher of the same engine, or nil
	seen     shadow
	causes   int // things that may each cost a snapshot
	asked    int // snapshots asked for
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
func (r *rank) change(dice *rand.Rand, tr *tree) []oracle.Op {
	var ops []oracle.Op
	switch x := dice.IntN(100); {
	case x < 55:
		ops = r.compute(dice, tr)
	case x < 80:
		ops = append(ops, r.evict(dice, tr))
	case x < 96:
		ops = r.move(dice, tr)
	default:
		t := fleet.Tier(dice.IntN(fleet.NumTiers))
		ops = append(ops, oracle.Op{Kind: oracle.OpClear, Tier: t, AllTier: dice.IntN(3) == 0})
	}
	for i := range ops {
		r.truth.apply(tr, &ops[i])
	}
	return ops
}

// compute stores a part of a prompt: often what is missing of it, sometimes anything.
func (r *rank) compute(dice *rand.Rand, tr *tree) []oracle.Op {
	p := path(dice.IntN(numLeaves))
	var to, from int
	to = 1 + dice.IntN(depth)
	if dice.IntN(4) > 0 {
		for from < to-1 && r.truth.sets.has(fleet.Device, p[from]) {
			from++
		}
	} else {
		from = dice.IntN(to)
	}
	op := oracle.Op{Kind: oracle.OpStore, IsRoot: from == 0}
	if dice.IntN(8) == 0 {
		op.Tier = fleet.Tier(dice.IntN(fleet.NumTiers))
	}
	if !op.IsRoot {
		op.Parent = tr.ids[p[from-1]]
	}
	if dice.IntN(3) == 0 {
		op.Content, op.Locals = oracle.ContentLocals, tr.locals(p[from:to])
	} else {
		op.IDs = tr.idsOf(p[from:to])
	}
	return []oracle.Op{op}
}

// held picks some blocks of a tier.
func (r *rank) held(dice *rand.Rand, t fleet.Tier, most int) []node {
	var out []node
	start := node(dice.IntN(numNodes))
	for i := range node(numNodes) {
		if n := (start + i) % numNodes; len(out) < most && r.truth.sets.has(t, n) {
			out = append(out, n)
		}
	}
	return out
}

// evict removes a few blocks, wherever in their chains; now and then one that is not there.
func (r *rank) evict(dice *rand.Rand, tr *tree) oracle.Op {
	t := fleet.Tier(dice.IntN(fleet.NumTiers))
	if dice.IntN(2) == 0 {
		t = fleet.Device
	}
	some := r.held(dice, t, 1+dice.IntN(5))
	if len(some) == 0 || dice.IntN(10) == 0 {
		some = append(some, node(dice.IntN(numNodes)))
	}
	return oracle.Op{Kind: oracle.OpRemove, Tier: t, IDs: tr.idsOf(some)}
}

// move brings blocks to a farther tier, one operation each, since they need not be neighbours.
func (r *rank) move(dice *rand.Rand, tr *tree) []oracle.Op {
	from := fleet.Tier(dice.IntN(fleet.NumTiers - 1))
	some := r.held(dice, from, 1+dice.IntN(4))
	var ops []oracle.Op
	for _, n := range some {
		ops = append(ops, storeOf(tr, n, from+1))
	}
	return append(ops, oracle.Op{Kind: oracle.OpRemove, Tier: from, IDs: append(tr.idsOf(some), tr.ids[dice.IntN(numNodes)])})
}

func storeOf(tr *tree, n node, t fleet.Tier) oracle.Op {
	op := oracle.Op{Kind: oracle.OpStore, Tier: t, IsRoot: n.parent() < 0, IDs: tr.idsOf([]node{n})}
	if !op.IsRoot {
		op.Parent = tr.ids[n.parent()]
	}
	return op
}

// words spells operations for a transcript. Blocks are node numbers.
func words(tr *tree, ops []oracle.Op) string {
	var b strings.Builder
	for i := range ops {
		op := &ops[i]
		if i > 0 {
			b.WriteString("; ")
		}
		nodes := make([]node, 0, len(op.IDs))
		for _, id := range op.IDs {
			nodes = append(nodes, tr.byID[id])
		}
		parent := node(-1)
		if !op.IsRoot {
			parent = tr.byID[op.Parent]
		}
		switch {
		case op.Kind == oracle.OpStore && op.Content == oracle.ContentLocals:
			fmt.Fprintf(&b, "store %d further blocks after %d in %v", len(op.Locals), parent, op.Tier)
		case op.Kind == oracle.OpStore:
			fmt.Fprintf(&b, "store %v after %d in %v", nodes, parent, op.Tier)
		case op.Kind == oracle.OpRemove:
			fmt.Fprintf(&b, "remove %v from %v", nodes, op.Tier)
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
