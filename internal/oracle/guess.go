package oracle

import (
	"slices"
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/load"
)

// guesses remembers what prompts under way hold in their target's cache, or will hold when their prefill is done, so that
// a burst of one new prefix is not prefilled once per request and memory they share is counted once. They live in a tree
// of their own (guesstree.go): a fact never mixes with them, and each goes with its cause: a little after the request has
// finished (its block reports have come by then), at once when it is given up, and by expiry when nobody says anything. On a
// target that does not report, a request of which nobody speaks has finished when it is presumed to have: what is guessed of
// its cache is bounded by the cache's size, and a guess beside that is not.
//
//	blocks = sum of len over living <= max
//
// The bound on blocks bounds guesses and their queue too: each has at least one.
type guesses struct {
	mu      sync.RWMutex
	tree    guessTree
	living  load.IDTable[guess]
	queue   []due     // a heap; see guessqueue.go
	epoch   time.Time // the first now
	targets []*guess  // by TargetID: the newest of those there, see guess.next
	free    []*guess  // gone ones for reuse, in a list beside them: nobody has looked at them for long
	blocks  int
	max     int
	forgone uint64        // prompts not remembered for want of room
	after   time.Duration // how long a guess outlives its request
}

// guess is one prompt: the way in the tree down to end, as far as it is still believed.
type guess struct {
	id     load.DecisionID
	target fleet.TargetID
	end    *run
	place  int  // in the queue, which has when it goes
	ended  bool // its request has finished

	next, prev *guess // of the same target
}

// len is how many leading blocks of the prompt are still believed to be there.
func (x *guess) len() int { return x.end.depth + len(x.end.ids) }

// unheard is a prompt of whose request nobody has said how it ended.
type unheard struct {
	id     load.DecisionID
	target fleet.TargetID
	chain  []block.ID
}

// guessMost bounds the life of a guess nobody speaks of.
const guessMost = 2 * time.Minute

func newGuesses(maxBlocks int, after time.Duration) *guesses {
	return &guesses{
		tree:  newGuessTree(),
		max:   maxBlocks,
		after: after,
	}
}

// match appends, in order of targets, who is expected to have how many leading blocks of a chain.
func (g *guesses) match(chain []block.ID, dst []index.Match) []index.Match {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.tree.match(chain, dst)
}

// layers is match with what many have alike said once.
func (g *guesses) layers(chain []block.ID, dst *index.Layers) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	g.tree.layers(chain, dst)
}

// add remembers a prompt that was routed. Beyond the bound nothing is remembered: a guess is a bonus.
func (g *guesses) add(id load.DecisionID, target fleet.TargetID, chain []block.ID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.put(id, target, chain, now)
}

// put is add. mu is held.
func (g *guesses) put(id load.DecisionID, target fleet.TargetID, chain []block.ID, now time.Time) {
	if len(chain) == 0 {
		return
	}
	if g.blocks+len(chain) > g.max {
		g.forgone++
		return
	}
	var x *guess
	if last := len(g.free) - 1; last >= 0 {
		x, g.free = g.free[last], g.free[:last]
	} else {
		x = new(guess)
	}
	x.id, x.target, x.end, x.next = id, target, g.tree.add(chain, target), g.of(target)
	if x.next != nil {
		x.next.prev = x
	}
	if n := int(target) + 1 - len(g.targets); n > 0 {
		g.targets = append(g.targets, make([]*guess, n)...)
	}
	g.targets[target] = x
	g.blocks += len(chain)
	g.living.Put(id, x)
	g.push(x, g.clock(now)+guessMost)
}

// move makes a guess be of the target that its request was sent to instead. Where blocks are not alike there is none of it then.
func (g *guesses) move(id load.DecisionID, to fleet.TargetID, isAlike bool, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	x := g.living.Get(id)
	if x == nil || x.target == to {
		return
	}
	chain := x.end.chain()
	g.shorten(x, 0)
	if isAlike {
		g.put(id, to, chain, now)
	}
}

// at is the target of a guess.
func (g *guesses) at(id load.DecisionID) (target fleet.TargetID, ok bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if x := g.living.Get(id); x != nil {
		return x.target, true
	}
	return 0, false
}

// of is the newest guess of a target, or nil.
func (g *guesses) of(target fleet.TargetID) *guess {
	if int64(target) >= int64(len(g.targets)) {
		return nil
	}
	return g.targets[target]
}

// believed is what is still expected of a prompt under way: its leading blocks, but for what its target has reported gone
// since. It is a copy.
func (g *guesses) believed(id load.DecisionID) []block.ID {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if x := g.living.Get(id); x != nil {
		return x.end.chain()
	}
	return nil
}

// linger lets a guess go a little after its request has finished.
func (g *guesses) linger(id load.DecisionID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x := g.living.Get(id); x != nil {
		x.ended = true
		if at := g.clock(now) + g.after; at < g.queue[x.place].at {
			g.queue[x.place].at = at
			g.fix(x.place)
		}
	}
}

// cancel drops a guess whose cause is gone.
func (g *guesses) cancel(id load.DecisionID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x := g.living.Get(id); x != nil {
		g.shorten(x, 0)
	}
}

// shorten leaves a guess its first n blocks; without any it goes.
func (g *guesses) shorten(x *guess, n int) {
	g.blocks -= x.len() - n
	x.end = g.tree.cut(x.end, x.target, n)
	if n > 0 {
		return
	}
	if x.prev == nil {
		g.targets[x.target] = x.next
	} else {
		x.prev.next = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	}
	g.living.Remove(x.id)
	g.unqueue(x.place)
	*x = guess{}
	g.free = append(g.free, x)
}

// expire drops what is due. It returns what nobody has said the end of.
func (g *guesses) expire(now time.Time) (out []unheard) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for at := g.clock(now); len(g.queue) > 0 && g.queue[0].at <= at; {
		x := g.queue[0].guess
		if !x.ended {
			out = append(out, unheard{x.id, x.target, x.end.chain()})
		}
		g.shorten(x, 0)
	}
	return out
}

// evicted forgets blocks that their target has reported gone, and what follows them: a guess must not outlive what it
// guessed.
func (g *guesses) evicted(target fleet.TargetID, ids []block.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	own := g.of(target)
	if own == nil || !g.tree.mayHave(ids) {
		return
	}
	gone := make(map[block.ID]struct{}, len(ids))
	for _, id := range ids {
		gone[id] = struct{}{}
	}
	// All are looked at before any is cut: that changes the tree.
	type cut struct {
		x *guess
		n int
	}
	var cuts []cut
	seen := make(map[*run]int)
	for x := own; x != nil; x = x.next {
		n := x.len()
		for r := x.end; r != nil; r = r.up {
			k, ok := seen[r]
			if !ok {
				k = slices.IndexFunc(r.ids, func(id block.ID) bool { _, ok := gone[id]; return ok })
				seen[r] = k
			}
			if k >= 0 {
				n = r.depth + k
			}
		}
		if n < x.len() {
			cuts = append(cuts, cut{x, n})
		}
	}
	for _, c := range cuts {
		g.shorten(c.x, c.n)
	}
}

// cleared is evicted for everything the target had on its device, and drop for a target that is gone.
func (g *guesses) cleared(target fleet.TargetID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for x := g.of(target); x != nil; x = g.of(target) {
		g.shorten(x, 0)
	}
}
