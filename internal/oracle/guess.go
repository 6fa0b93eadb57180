package oracle

import (
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
type guesses struct {
	index *index.Index // COUNTED: two prompts may guess the same block

	mu      sync.Mutex
	living  map[load.DecisionID]*guess
	queue   []due // ordered by at; entries outlive their guess harmlessly
	ledgers map[fleet.TargetID]*index.Ledger
	blocks  int
	max     int
	after   time.Duration // how long a guess outlives its request
}

type guess struct {
	target fleet.TargetID
	chain  []block.ID
	at     time.Time // when it goes
}

type due struct {
	at time.Time
	id load.DecisionID
}

// guessMost bounds the life of a guess nobody speaks of.
const guessMost = 2 * time.Minute

func newGuesses(maxBlocks int, after time.Duration) *guesses {
	return &guesses{
		index:   index.New(index.Config{MaxBlocks: maxBlocks}),
		living:  make(map[load.DecisionID]*guess),
		ledgers: make(map[fleet.TargetID]*index.Ledger),
		max:     maxBlocks,
		after:   after,
	}
}

// add remembers a prompt that was routed. Beyond the bound nothing is remembered: a guess is a bonus.
func (g *guesses) add(id load.DecisionID, target fleet.TargetID, chain []block.ID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(chain) == 0 || g.blocks+len(chain) > g.max {
		return
	}
	l := g.ledgers[target]
	if l == nil {
		l = g.index.NewLedger(target, true)
		g.index.Publish(l)
		g.ledgers[target] = l
	}
	own := append([]block.ID(nil), chain...)
	if res := l.Store(index.Parent{IsRoot: true}, own, fleet.Device); res.Refused != index.None {
		own = own[:res.Stored+res.Repeated] // what went in must come out
	}
	if len(own) == 0 {
		return
	}
	g.blocks += len(own)
	g.living[id] = &guess{target: target, chain: own, at: now.Add(guessMost)}
	g.push(due{now.Add(guessMost), id})
}

// linger lets a guess go a little after its request has finished.
func (g *guesses) linger(id load.DecisionID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x := g.living[id]; x != nil {
		if at := now.Add(g.after); at.Before(x.at) {
			x.at = at
			g.push(due{at, id})
		}
	}
}

// cancel drops a guess whose cause is gone.
func (g *guesses) cancel(id load.DecisionID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forget(id)
}

func (g *guesses) forget(id load.DecisionID) {
	x := g.living[id]
	if x == nil {
		return
	}
	delete(g.living, id)
	g.blocks -= len(x.chain)
	if l := g.ledgers[x.target]; l != nil {
		l.Remove(x.chain, fleet.Device)
	}
}

// expire drops what is due.
func (g *guesses) expire(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.queue) > 0 && !g.queue[0].at.After(now) {
		d := g.pop()
		if x := g.living[d.id]; x != nil && !x.at.After(now) {
			g.forget(d.id)
		}
	}
}

// evicted forgets blocks that their target has reported gone: a guess must not outlive what it guessed.
func (g *guesses) evicted(target fleet.TargetID, ids []block.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.ledgers[target]
	if l == nil {
		return
	}
	for {
		// One copy of each at a time; the prompts' own removals then find nothing.
		if _, unknown := l.Remove(ids, fleet.Device); unknown == len(ids) {
			return
		}
	}
}

// cleared is evicted for everything the target had on its device.
func (g *guesses) cleared(target fleet.TargetID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.ledgers[target]; l != nil {
		l.ClearAll()
	}
}

// drop forgets a target.
func (g *guesses) drop(target fleet.TargetID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ledgers[target] == nil {
		return
	}
	delete(g.ledgers, target)
	g.index.Drop(target)
	for id, x := range g.living {
		if x.target == target {
			delete(g.living, id)
			g.blocks -= len(x.chain)
		}
	}
}
