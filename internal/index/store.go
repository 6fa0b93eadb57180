package index

import (
	"math"
	"runtime"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// plan is the working memory of one store.
type plan struct {
	held []place // where each block of the list is held; part 0: it is new
	// versions of the tables in which new blocks were not found at all; 0: not so
	versions []uint64
	seen     map[block.ID]int
	fresh    int // new blocks
	costs    int // entries
	// hasGhosts is set if a new block is one that was named as a parent.
	hasGhosts bool
	probes    []probe // of blocks from probed on; see warm
	probed    int
	warmth    uint32
}

// warmMost is how many blocks' lines in the tables are looked at ahead: what a core's first cache can keep.
const warmMost = 128

// isAgain marks, as a part, a block that stands in the list before.
const isAgain = math.MaxUint32

// Store adds a chain of blocks to a tier: ids[0] follows p, each other follows the one before it. An id that repeats
// its predecessor is the same block told twice.
//
// If p is a block that is not held, or one that is itself an orphan, the blocks are kept as orphans. A refused store
// changes nothing, except that Capacity may stop in the middle. When the index is full, room is made first; see evict.go.
func (l *Ledger) Store(p Parent, ids []block.ID, tier fleet.Tier) StoreResult {
	return l.store(p, ids, tier, false)
}

func (l *Ledger) store(p Parent, ids []block.ID, tier fleet.Tier, isRestored bool) StoreResult {
	if len(ids) == 0 || tier >= fleet.NumTiers {
		return StoreResult{}
	}
	if p.IsRoot {
		p.ID = 0
	} else if p.ID == ids[0] {
		return StoreResult{Refused: SelfParent}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.ix.enter()
	defer l.ix.leave(q)
	var up place
	var isJoined bool
	var refused Refusal
	pl, room := &q.plan, 0
	for round := 0; ; round++ {
		if l.isDead {
			l.ix.budget.give(room)
			return StoreResult{Refused: Dropped}
		}
		up = l.seek(p)
		// Nothing that Match can see changes before the whole list is known to be good.
		refused = l.check(pl, up, p, ids, math.MaxInt)
		isJoined = p.IsRoot || up.part != 0 && l.parts[up.part].isJoined(up.index)
		if refused == None && l.isLimited && !isJoined && pl.fresh > 0 && l.waiting+pl.fresh > l.ix.maxOrphans {
			if refused = OrphansFull; l.isPartial.Load() {
				// Their parents may have been driven out: a snapshot would not help.
				refused, ids, pl.costs = Capacity, l.forgo(ids, 0, tier), 0
			}
		}
		isBranchy := pl.fresh > 0 && l.ix.isBranchy()
		if refused != None || pl.costs <= room && !isBranchy {
			break
		}
		// Only once: while readers come and go there may be garbage that cannot be had yet.
		room += l.ix.room(q, pl.costs-room, round == 0)
		if isBranchy && l.ix.reclaim(1024) > 0 {
			q.reader.enter(&l.ix.epochs) // as in room
			continue
		}
		if pl.costs <= room && !isBranchy {
			break
		}
		if round >= giveRounds || !l.makeRoom(q, room, pl.costs-room, pl.keep(up), !isJoined, isBranchy) {
			most := room
			if isBranchy {
				most = 0
			}
			refused = l.check(pl, up, p, ids, most)
			ids = l.forgo(ids, len(pl.held), tier)
			break
		}
	}
	if refused != None && refused != Capacity {
		l.ix.budget.give(room)
		return StoreResult{Refused: refused}
	}
	before := l.entries
	r := l.apply(pl, up, p, ids, tier, !isJoined)
	switch done := r.Stored + r.Repeated; {
	case r.Refused == None:
		r.Refused = refused
	case done < len(ids):
		ids = l.forgo(ids, done, tier)
	}
	if isRestored {
		for n := range ids[:r.Stored+r.Repeated] {
			if pl.held[n].part == 0 {
				l.regain(ids[n], tier)
			}
		}
	}
	l.resize()
	l.ix.budget.give(room - (l.entries - before))
	return r
}

// forgo leaves out all of a list but the first n, and notes that they are not held. Some may be held in another tier.
func (l *Ledger) forgo(ids []block.ID, n int, tier fleet.Tier) []block.ID {
	lost := uint64(0)
	for _, id := range ids[n:] {
		if at := l.find(id); at.part != 0 {
			if copies, _ := l.how(at); copies[tier] > 0 {
				continue
			}
		}
		l.lose(id, tier)
		lost++
	}
	l.evictions.Add(lost)
	l.ix.evicted.Add(lost)
	return ids[:n]
}

// keep is the place of the last block that the new ones follow.
func (pl *plan) keep(up place) place {
	for _, at := range pl.held {
		if at.part == 0 {
			break
		}
		if at.part != isAgain {
			up = at
		}
	}
	return up
}

// seek finds the parent, first where the last operation ended.
func (l *Ledger) seek(p Parent) place {
	if p.IsRoot {
		return place{}
	}
	if at := l.near(p.ID); at.part != 0 {
		return at
	}
	return l.find(p.ID)
}

// check looks each block up, counts what is new, and finds contradictions. It stops when more than room entries would
// be needed.
func (l *Ledger) check(pl *plan, up place, p Parent, ids []block.ID, room int) Refusal {
	pl.held, pl.versions, pl.fresh, pl.costs = pl.held[:0], pl.versions[:0], 0, 0
	pl.hasGhosts = false
	clear(pl.seen)
	if !p.IsRoot && up.part == 0 {
		if !l.isGhost(p.ID) {
			if pl.costs++; pl.costs > room {
				return Capacity
			}
		}
	}
	// Where the chain is found in memory, held or not.
	var trail trail
	pl.probes, pl.probed = pl.probes[:0], 0
	if up.part != 0 {
		h := l.parts[up.part].segment
		if trail.at(l.ix, h, up); up.index+1 == len(trail.w) && l.ix.isOnly(h) {
			// It goes on where nobody else has been: everything will be new.
			pl.warm(l.ix, ids, 0)
		}
	}
	for n, id := range ids {
		before := p
		if n > 0 {
			if id == ids[n-1] {
				pl.is(place{part: isAgain}, 0)
				continue
			}
			before = Parent{ID: ids[n-1]}
		}
		var version uint64
		if !trail.goOn(id) {
			if version = pl.missing(l.ix, ids, n); version == 0 {
				if h := l.ix.head(before, id); h != 0 {
					i, _ := l.ix.listed(h, l.key)
					trail.at(l.ix, h, place{i, 0})
				}
			}
		}
		at := place{}
		switch {
		case trail.here.part != 0 && l.holds(trail.here):
			at = trail.here
		case version != 0:
			// There is no block of this name.
		case trail.w != nil && l.ix.twins.Load() == 0:
			// There is one block of this name, and the ledger does not hold it.
		default:
			at = l.find(id)
		}
		if at.part != 0 {
			if l.parent(at) != before {
				return ParentConflict
			}
			pl.is(at, 0)
			if trail.w == nil {
				trail.at(l.ix, l.parts[at.part].segment, at)
			}
			continue
		}
		if pl.fresh > 0 {
			if k, ok := pl.find(id, ids); ok {
				first := p
				if k > 0 {
					first = Parent{ID: ids[k-1]}
				}
				if first != before {
					return ParentConflict
				}
				pl.is(place{part: isAgain}, 0)
				continue
			}
		}
		if l.isGhost(id) {
			pl.hasGhosts = true
		} else if p.IsRoot || id != p.ID {
			if pl.costs++; pl.costs > room {
				pl.costs--
				return Capacity
			}
		}
		pl.fresh++
		pl.note(id, n)
		pl.is(place{}, version)
	}
	return None
}

// warm looks at some lines of the tables ahead, so that the waits for memory overlap.
func (pl *plan) warm(ix *Index, ids []block.ID, from int) {
	var sum uint32
	pl.probes, sum = ix.warm(ids[from:min(len(ids), from+warmMost)], pl.probes[:0])
	pl.probed = from
	pl.warmth += sum
}

// missing returns the version of its table at which a block of the list is nowhere; 0 if it is known.
func (pl *plan) missing(ix *Index, ids []block.ID, n int) (version uint64) {
	if n >= pl.probed+len(pl.probes) {
		// A block that does not go on with what is known is new as a rule, and what follows it then is, too.
		pl.warm(ix, ids, n)
	}
	if p := &pl.probes[n-pl.probed]; p.isClear() {
		return p.version
	}
	isKnown, version := ix.isKnown(ids[n])
	if isKnown {
		return 0
	}
	return version
}

// is notes where a block is held.
func (pl *plan) is(at place, version uint64) {
	pl.held, pl.versions = append(pl.held, at), append(pl.versions, version)
}

// shortList is how many blocks are looked through rather than hashed.
const shortList = 16

// find looks whether a new block stands in the list before.
func (pl *plan) find(id block.ID, ids []block.ID) (int, bool) {
	if len(pl.held) <= shortList {
		for k := range pl.held {
			if ids[k] == id {
				return k, true
			}
		}
		return 0, false
	}
	if len(pl.seen) == 0 {
		if pl.seen == nil {
			pl.seen = make(map[block.ID]int)
		}
		for k := len(pl.held) - 1; k >= 0; k-- {
			pl.seen[ids[k]] = k
		}
	}
	k, ok := pl.seen[id]
	return k, ok
}

func (pl *plan) note(id block.ID, n int) {
	if len(pl.seen) > 0 {
		pl.seen[id] = n
	}
}

// trail follows a chain through a segment, whoever holds it.
type trail struct {
	w    []uint64 // nil: there is none
	here place    // part 0 if the ledger has nothing of the segment
}

func (t *trail) at(ix *Index, h handle, here place) { t.w, t.here = ix.blocks(h), here }

// goOn steps to a block if it is the next one, and otherwise leaves the trail.
func (t *trail) goOn(id block.ID) bool {
	if t.here.index++; t.here.index < len(t.w) && t.w[t.here.index] == uint64(id) {
		return true
	}
	*t = trail{}
	return false
}

// apply adds the copies, parents first, then tells the lists.
func (l *Ledger) apply(pl *plan, up place, p Parent, ids []block.ID, tier fleet.Tier, isOrphan bool) StoreResult {
	var r StoreResult
	var copies [fleet.NumTiers]uint16
	copies[tier] = 1
	for n := 0; n < len(ids); {
		at := pl.held[n]
		if at.part == isAgain {
			at = up
			if n == 0 || ids[n] != ids[n-1] {
				at = l.find(ids[n])
			}
		} else if at.part != 0 && !l.isAt(at, ids[n]) {
			at = l.find(ids[n]) // it was moved
		}
		if at.part != 0 {
			run := 0
			if l.isCounted {
				run = l.recount(at.part, at.index, at.index+l.along(at, ids[n:]), tier, true)
				r.Repeated += run
			}
			if run == 0 {
				run = 1
				l.again(&r, at, ids[n], tier)
			}
			n += run
			at.index += run - 1
			up, p = at, Parent{ID: ids[n-1]}
			continue
		}
		end := n + 1
		for end < len(ids) && pl.held[end].part == 0 {
			end++
		}
		if up.part == 0 && !p.IsRoot {
			up = l.find(p.ID) // it may have come with this list
		}
		at, got := l.claim(up, p, ids[n:end], pl.versions[n:end])
		if got == 0 {
			r.Refused = Capacity
			break
		}
		l.parts[at.part].stamp = l.ix.clock.Load()
		if !isOrphan && tier == fleet.Device && pl.fresh == len(ids) && !pl.hasGhosts && l.putPlain(at, ids[n:n+got], up) {
			n += got
			at.index += got - 1
			r.Stored += got
			up, p = at, Parent{ID: ids[n-1]}
			continue
		}
		for range got {
			id := ids[n]
			waits := isOrphan && l.isLimited
			l.put(at, id, up, copies, waits)
			l.digests[tier].add(id)
			r.Stored++
			if isOrphan {
				r.Orphans++
			}
			up, p = at, Parent{ID: id}
			at.index++
			n++
		}
	}
	l.last = up
	l.settle()
	return r
}

// isAt reports whether the ledger holds a block where it was before.
func (l *Ledger) isAt(at place, id block.ID) bool {
	return l.parts[at.part].flags&inUse != 0 && at.index < l.reach(at.part) && l.holds(at) && l.id(at) == id
}

// again adds a copy of a block that some tier holds.
func (l *Ledger) again(r *StoreResult, at place, id block.ID, tier fleet.Tier) {
	copies, waits := l.how(at)
	switch c := &copies[tier]; {
	case *c == 0:
		*c = 1
		l.digests[tier].add(id)
		r.Stored++
	default:
		r.Repeated++
		// A count that has run out of bits loses copies, never invents any: the block may be given up early.
		if !l.isCounted || *c == math.MaxUint16 {
			return
		}
		*c++
		l.digests[tier].another(id)
	}
	l.set(at, copies, waits)
	l.soil(at.part)
}

// room grants up to want entries. When there are none, what dropped ledgers still hold is freed first, if need be after
// the readers that are under way: a store is not refused for the sake of garbage.
func (ix *Index) room(q *query, want int, isPatient bool) int {
	got := ix.budget.take(want)
	for tries := 0; got < want; {
		// The caller has found nothing yet that it could lose by coming in again, and would be in its own way.
		q.reader.enter(&ix.epochs)
		n := ix.reclaim(1024)
		if n == 0 {
			if tries++; tries > 100 || !isPatient || !ix.hasGarbage() {
				break
			}
			runtime.Gosched() // a Match is under way
		}
		got += ix.budget.take(want - got)
	}
	return got
}
