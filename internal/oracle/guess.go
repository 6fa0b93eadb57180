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
// a burst of one new prefix is not prefilled once per request and memory they share is counted once. Guesses live in an
// index of their own: a fact never mixes with them, and each goes with its cause: a little after the request has
// finished (its block reports have come by then), at once when it is given up, and by expiry when nobody says anything.
//
//	copies of a block in a target's ledger = its guesses whose chains have the block
//
// so that the end of one guess takes nothing from another. The bound on blocks bounds guesses and their queue too: each
// has at least one.
type guesses struct {
	index *index.Index // COUNTED: two prompts may guess the same block

	mu      sync.Mutex
	living  map[load.DecisionID]*guess
	queue   []*guess // a heap; see guessqueue.go
	targets map[fleet.TargetID]*guessed
	blocks  int
	max     int
	forgone uint64        // prompts not remembered for want of room
	after   time.Duration // how long a guess outlives its request
}

// guessed is what is guessed of one target.
type guessed struct {
	ledger *index.Ledger
	living map[*guess]struct{}
}

type guess struct {
	id     load.DecisionID
	target fleet.TargetID
	chain  []block.ID // as far as it is still believed; shortened, never changed
	at     time.Time  // when it goes
	place  int        // in the queue
	ended  bool       // its request has finished
}

// guessMost bounds the life of a guess nobody speaks of.
const guessMost = 2 * time.Minute

func newGuesses(maxBlocks int, after time.Duration) *guesses {
	return &guesses{
		index:   index.New(index.Config{MaxBlocks: maxBlocks}),
		living:  make(map[load.DecisionID]*guess),
		targets: make(map[fleet.TargetID]*guessed),
		max:     maxBlocks,
		after:   after,
	}
}

// add remembers a prompt that was routed. Beyond the bound nothing is remembered: a guess is a bonus.
func (g *guesses) add(id load.DecisionID, target fleet.TargetID, chain []block.ID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(chain) == 0 {
		return
	}
	if g.blocks+len(chain) > g.max {
		g.forgone++
		return
	}
	t := g.targets[target]
	if t == nil {
		t = &guessed{ledger: g.index.NewLedger(target, true), living: make(map[*guess]struct{})}
		g.index.Publish(t.ledger)
		g.targets[target] = t
	}
	own := slices.Clone(chain)
	if res := t.ledger.Store(index.Parent{IsRoot: true}, own, fleet.Device); res.Refused != index.None {
		own = own[:res.Stored+res.Repeated] // what went in must come out
	}
	if len(own) == 0 {
		g.forgone++
		return
	}
	x := &guess{id: id, target: target, chain: own, at: now.Add(guessMost)}
	g.blocks += len(own)
	g.living[id] = x
	t.living[x] = struct{}{}
	g.push(x)
}

// believed is what is still expected of a prompt under way: its leading blocks, but for what its target has reported gone
// since. The caller must not change it.
func (g *guesses) believed(id load.DecisionID) []block.ID {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x := g.living[id]; x != nil {
		return x.chain
	}
	return nil
}

// linger lets a guess go a little after its request has finished.
func (g *guesses) linger(id load.DecisionID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x := g.living[id]; x != nil {
		x.ended = true
		if at := now.Add(g.after); at.Before(x.at) {
			x.at = at
			g.fix(x.place)
		}
	}
}

// cancel drops a guess whose cause is gone.
func (g *guesses) cancel(id load.DecisionID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x := g.living[id]; x != nil {
		g.shorten(x, 0)
	}
}

// shorten leaves a guess its first n blocks; without any it goes.
func (g *guesses) shorten(x *guess, n int) {
	t := g.targets[x.target]
	t.ledger.Remove(x.chain[n:], fleet.Device)
	g.blocks -= len(x.chain) - n
	x.chain = x.chain[:n]
	if n == 0 {
		delete(t.living, x)
		delete(g.living, x.id)
		g.unqueue(x.place)
	}
}

// expire drops what is due. It returns the guesses of whose requests nobody has said how they ended.
func (g *guesses) expire(now time.Time) (unheard []guess) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.queue) > 0 && !g.queue[0].at.After(now) {
		x := g.queue[0]
		if !x.ended {
			unheard = append(unheard, *x)
		}
		g.shorten(x, 0)
	}
	return unheard
}

// evicted forgets blocks that their target has reported gone, and what follows them: a guess must not outlive what it
// guessed.
func (g *guesses) evicted(target fleet.TargetID, ids []block.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.targets[target]
	if t == nil || !slices.ContainsFunc(ids, t.ledger.Has) {
		return
	}
	gone := make(map[block.ID]struct{}, len(ids))
	for _, id := range ids {
		gone[id] = struct{}{}
	}
	for x := range t.living {
		n := slices.IndexFunc(x.chain, func(id block.ID) bool { _, ok := gone[id]; return ok })
		if n >= 0 {
			g.shorten(x, n)
		}
	}
}

// cleared is evicted for everything the target had on its device.
func (g *guesses) cleared(target fleet.TargetID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := g.targets[target]; t != nil {
		for x := range t.living {
			g.shorten(x, 0)
		}
	}
}

// drop forgets a target.
func (g *guesses) drop(target fleet.TargetID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.targets[target]
	if t == nil {
		return
	}
	for x := range t.living {
		delete(g.living, x.id)
		g.blocks -= len(x.chain)
		g.unqueue(x.place)
	}
	delete(g.targets, target)
	g.index.Drop(target)
}
