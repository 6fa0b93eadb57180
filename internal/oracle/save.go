package oracle

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// What outlives a process: who the workers are, what each rank has reported to hold, and what is guessed of the caches of
// those that do not report. Not saved are loads and bookings, which are told anew or over soon, when what was guessed was
// last used, and what was learned of costs.
//
// A target that was restored is unverified: STALE, so that its overlap counts by half, until its reporter has spoken. If
// that goes on where the saved state ends, the target is FRESH without another word; if it is further on, it sends what it
// has kept from there, or else a snapshot; and an engine that was started again since begins a new life, of which nothing
// that was saved can be credited.

// SumUp adds a run to digests by tier.
func SumUp(d *[fleet.NumTiers]Digest, r BlockRun) { index.SumUp(d, r) }

// SavedWorker is what is saved of a worker.
type SavedWorker struct {
	Spec        fleet.Spec
	Incarnation uint64 // of the engine; 0: it never reported
	IsDraining  bool
	IsLost      bool // no sign of life for longer than the lease; no candidate before it speaks
}

// SavedRank is what is saved of one rank of a worker. A rank that no block stream was opened for has none.
type SavedRank struct {
	Rank        int
	Incarnation uint64 // of its reports
	Applied     uint64 // the last batch or snapshot that the contents show
	Counted     bool   // a repeated store is another copy
	// EngineHashes: the stream names blocks by the engine's own hashes. What those stand for is not saved, so that the
	// rank begins with a snapshot.
	EngineHashes bool
	IsAwaiting   bool // a snapshot was asked for
	IsDoubtful   bool // whoever reports has said that it may be wrong
	// PrefixGroup is the attention group that the contents are of. Without HasGroup nobody knows, and the next hello says it.
	PrefixGroup uint32
	HasGroup    bool
}

// SavedGuess is what is saved of a guessed cache of one rank: of prompts as tokens where it does not report, or as text.
type SavedGuess struct {
	Rank            int
	IsText          bool
	Capacity, Limit int     // blocks: what its device holds, and how many of them are believed to be there
	Credit          float64 // the share of what is guessed that counts, above 0 to 1
}

// SaveSink takes what Save tells. An error ends the Save.
type SaveSink interface {
	// Worker begins a worker.
	Worker(w *SavedWorker) error
	// Rank is what one of its ranks reported. Both are valid during the call.
	Rank(r *SavedRank, c *Contents) error
	// Guess is what is guessed of the same rank.
	Guess(g *SavedGuess, c *Contents) error
}

// Save tells everything that outlives the process. Each rank is copied whole while its reports wait, one after another, so
// it is told as of one moment, and memory for the largest of them is all that it takes; no decision waits. sink is called
// with no lock held.
func (o *Oracle) Save(sink SaveSink) error {
	var c Contents
	for _, w := range o.fleet.View().Workers() {
		if err := sink.Worker(&SavedWorker{Spec: w.Spec, Incarnation: w.Incarnation, IsDraining: w.IsDraining, IsLost: w.IsLost}); err != nil {
			return err
		}
		for rank, id := range w.Targets {
			f := o.feed(id)
			if f == nil {
				continue
			}
			if r, ok := f.save(rank, w.Incarnation, &c); ok {
				if err := sink.Rank(&r, &c); err != nil {
					return err
				}
			}
			for as := range numForms {
				if g, ok := f.saveGuess(rank, as, &c); ok {
					if err := sink.Guess(&g, &c); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// save copies what a feed has of an incarnation.
func (f *feed) save(rank int, incarnation uint64, c *Contents) (SavedRank, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone || f.incarnation == 0 || f.incarnation != incarnation {
		return SavedRank{}, false // what was told since the view was loaded comes with the next Save
	}
	c.Reset()
	if f.ledger != nil {
		f.ledger.Export(c)
	}
	return SavedRank{
		Rank: rank, Incarnation: f.incarnation, Applied: f.applied, Counted: f.counted, EngineHashes: f.byHash,
		IsAwaiting: f.awaiting || f.ledger == nil, IsDoubtful: f.doubtful, PrefixGroup: f.prefixGroup, HasGroup: f.hasGroup,
	}, true
}

// saveGuess copies what is guessed of a target.
func (f *feed) saveGuess(rank int, as form, c *Contents) (SavedGuess, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.approx[as]
	if f.gone || a == nil {
		return SavedGuess{}, false
	}
	a.ledger.Export(c)
	return SavedGuess{Rank: rank, IsText: as == asText, Capacity: a.capacity, Limit: a.limit, Credit: a.credit}, true
}

// Restoring puts saved workers back into an oracle, all of them at once: what is told is built aside, and shown by Commit.
// Workers that have spoken meanwhile are left as they are. Not for concurrent use.
type Restoring struct {
	o      *Oracle
	now    time.Time
	isOld  bool
	worker *fleet.Worker // nil: it is known already
	added  []string
	ranks  []restoredRank
	guess  []restoredGuess
}

// restoredRank is a rank that waits for Commit.
type restoredRank struct {
	f      *feed
	saved  SavedRank
	ledger *index.Ledger
}

// restoredGuess is a guessed cache that does.
type restoredGuess struct {
	f  *feed
	as form
	a  *approx
}

// Restore begins to put back what was saved at a time. If that is longer ago than the lease of a worker, those that report
// are no candidates before they speak.
func (o *Oracle) Restore(saved, now time.Time) *Restoring {
	return &Restoring{o: o, now: now, isOld: now.Sub(saved) > o.cfg.WorkerLease}
}

// Worker begins a worker. An error says that there is no room for it.
func (r *Restoring) Worker(w *SavedWorker) error {
	r.worker = nil
	if r.o.fleet.View().Worker(w.Spec.Worker) != nil {
		return nil
	}
	r.o.lives.Lock()
	added, err := r.o.register(w.Spec, w.Incarnation, r.now)
	r.o.lives.Unlock()
	if err != nil {
		return err
	}
	r.worker = added
	r.added = append(r.added, added.Worker)
	if w.IsDraining {
		if _, err := r.o.Drain(added.Worker, true); err != nil {
			return err
		}
	}
	if w.IsLost || r.isOld && w.Incarnation != 0 {
		r.o.lives.Lock()
		r.o.setLost(added, true)
		r.o.lives.Unlock()
	}
	return nil
}

// Rank begins one of the worker's ranks; add takes its runs, in any order. lost is what had been told and given up. A rank
// that the worker does not have, or that belongs to another incarnation of it, is left out.
func (r *Restoring) Rank(saved *SavedRank, lost *[fleet.NumTiers]Digest) (add func(BlockRun)) {
	nothing := func(BlockRun) {}
	if r.worker == nil || saved.Rank >= len(r.worker.Targets) || saved.Incarnation == 0 || saved.Incarnation != r.worker.Incarnation {
		return nothing
	}
	f := r.o.feed(r.worker.Targets[saved.Rank])
	if f == nil {
		return nothing
	}
	l := r.o.index.NewLedger(f.target, saved.Counted || saved.EngineHashes)
	l.Owe(*lost)
	r.ranks = append(r.ranks, restoredRank{f, *saved, l})
	return func(b BlockRun) { l.StoreRun(b) } // what there is no room for is remembered by the ledger as given up
}

// Guess is Rank for what is guessed.
func (r *Restoring) Guess(saved *SavedGuess) (add func(BlockRun)) {
	nothing := func(BlockRun) {}
	if r.worker == nil || saved.Rank >= len(r.worker.Targets) || !(saved.Credit > 0 && saved.Credit <= 1) {
		return nothing
	}
	as := asTokens
	if saved.IsText {
		as = asText
	}
	f := r.o.feed(r.worker.Targets[saved.Rank])
	if f == nil {
		return nothing
	}
	a := &approx{ledger: r.o.approx[as].NewLedger(f.target, false), capacity: max(saved.Capacity, 1), credit: saved.Credit}
	a.limit = min(max(saved.Limit, 1), a.capacity)
	r.guess = append(r.guess, restoredGuess{f, as, a})
	return func(b BlockRun) { a.ledger.StoreRun(b) }
}

// Commit shows all that was told, and returns how many blocks that are.
func (r *Restoring) Commit() (blocks int) {
	r.o.lives.Lock() // so that a hello finds all of it or nothing
	defer r.o.lives.Unlock()
	for i := range r.ranks {
		blocks += r.ranks[i].show(r.now)
	}
	for _, g := range r.guess {
		g.show()
	}
	r.ranks, r.guess = nil, nil
	return blocks
}

// Abort takes everything back.
func (r *Restoring) Abort() {
	for _, x := range r.ranks {
		r.o.index.Discard(x.ledger)
	}
	for _, g := range r.guess {
		r.o.approx[g.as].Discard(g.a.ledger)
	}
	for _, name := range r.added {
		_, _, _ = r.o.Remove(name) // an operator may have been faster
	}
	r.ranks, r.guess, r.added = nil, nil, nil
}

// show puts a restored rank in force unless its reporter was faster.
func (x *restoredRank) show(now time.Time) int {
	f := x.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone || f.incarnation != 0 {
		f.o.index.Discard(x.ledger)
		return 0
	}
	f.incarnation, f.applied = x.saved.Incarnation, x.saved.Applied
	f.counted, f.byHash, f.doubtful = x.saved.Counted, x.saved.EngineHashes, x.saved.IsDoubtful
	f.prefixGroup, f.hasGroup = x.saved.PrefixGroup, x.saved.HasGroup
	f.forgetApprox(asTokens)
	if x.saved.IsAwaiting && heldBlocks(x.ledger) == 0 {
		f.o.index.Discard(x.ledger) // nothing was known yet
	} else {
		f.show(x.ledger, nil)
	}
	f.awaiting = x.saved.IsAwaiting || x.saved.EngineHashes
	f.isUnverified, f.lostAt = true, now
	f.sign()
	return heldBlocks(f.ledger)
}

// show puts a restored guess in force unless there is something newer.
func (g *restoredGuess) show() {
	f := g.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone || f.approx[g.as] != nil || g.as == asTokens && f.incarnation != 0 {
		f.o.approx[g.as].Discard(g.a.ledger)
		return
	}
	f.o.approx[g.as].Publish(g.a.ledger)
	g.a.ledger.Shrink(g.a.limit)
	f.o.approximated[g.as].Add(1)
	f.approx[g.as] = g.a
	f.sayCredit(g.as)
}

// greet takes note of where a reporter stands that continues what was restored: at which batch it has been told of all
// that the reporter knows. The feed is locked.
func (f *feed) greet(next uint64) {
	if f.awaiting {
		return // a snapshot will say it
	}
	f.completeAt = next - 1
	f.isUnverified = f.isUnverified && f.applied < f.completeAt
}
