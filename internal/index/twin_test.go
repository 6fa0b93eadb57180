package index

import (
	"maps"
	"math"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// twin is the index written down as slowly and plainly as possible.
type twin struct {
	maxBlocks, maxOrphans int
	ledgers               []*twinLedger // all that live, visible or aside
	visible               map[fleet.TargetID]*twinLedger
}

// twinLedger is, for one target, a set of ids per tier and each held block's parent.
type twinLedger struct {
	target    fleet.TargetID
	isCounted bool
	isLimited bool
	copies    [fleet.NumTiers]map[block.ID]int
	parent    map[block.ID]Parent
	waiting   map[block.ID]bool // orphans that count against the limit
	lost      [fleet.NumTiers]Digest
}

func newTwin(maxBlocks, maxOrphans int) *twin {
	return &twin{maxBlocks: maxBlocks, maxOrphans: maxOrphans, visible: make(map[fleet.TargetID]*twinLedger)}
}

func (w *twin) newLedger(t fleet.TargetID, counted bool) *twinLedger {
	l := &twinLedger{target: t, isCounted: counted}
	l.reset()
	w.ledgers = append(w.ledgers, l)
	return l
}

func (l *twinLedger) reset() {
	for t := range l.copies {
		l.copies[t] = make(map[block.ID]int)
	}
	l.parent = make(map[block.ID]Parent)
	l.waiting = make(map[block.ID]bool)
	l.lost = [fleet.NumTiers]Digest{}
}

func (w *twin) forget(l *twinLedger) {
	if l != nil {
		w.ledgers = slices.DeleteFunc(w.ledgers, func(o *twinLedger) bool { return o == l })
	}
}

func (w *twin) publish(l *twinLedger) {
	w.forget(w.visible[l.target])
	w.visible[l.target] = l
	l.isLimited = true
}

func (w *twin) drop(t fleet.TargetID) int {
	l := w.visible[t]
	if l == nil {
		return 0
	}
	delete(w.visible, t)
	w.forget(l)
	return len(l.parent)
}

// known is the set of held blocks and of the parents they name.
func known(parent map[block.ID]Parent) map[block.ID]bool {
	all := make(map[block.ID]bool)
	for id, p := range parent {
		all[id] = true
		if !p.IsRoot {
			all[p.ID] = true
		}
	}
	return all
}

func (w *twin) entries() int {
	var n int
	for _, l := range w.ledgers {
		n += len(known(l.parent))
	}
	return n
}

func (w *twin) store(l *twinLedger, p Parent, ids []block.ID, tier fleet.Tier) StoreResult {
	if len(ids) == 0 {
		return StoreResult{}
	}
	if !p.IsRoot && p.ID == ids[0] {
		return StoreResult{Refused: SelfParent}
	}
	var after map[block.ID]Parent
	refused := None
	done := len(ids)
	for {
		after = make(map[block.ID]Parent)
		maps.Copy(after, l.parent)
		all := known(after)
		costs := 0
		need := func(id block.ID) {
			if !all[id] {
				all[id] = true
				costs++
			}
		}
		if !p.IsRoot {
			need(p.ID)
		}
		for n, id := range ids {
			if n > 0 && id == ids[n-1] {
				continue
			}
			need(id)
			q := p
			if n > 0 {
				q = Parent{ID: ids[n-1]}
			}
			if old, ok := after[id]; ok && old != q {
				return StoreResult{Refused: ParentConflict}
			}
			after[id] = q
		}
		isOrphan := !p.IsRoot && !l.isConnected(p.ID)
		if fresh := len(after) - len(l.parent); l.isLimited && isOrphan && fresh > 0 && len(l.waiting)+fresh > w.maxOrphans {
			if !l.isPartial() {
				return StoreResult{Refused: OrphansFull}
			}
			refused, done = Capacity, 0
			break
		}
		room := min(costs, w.maxBlocks-w.entries())
		if costs <= room {
			break
		}
		if !w.makeRoom(l, p, ids, room, costs-room, isOrphan) {
			refused, done = Capacity, l.fitting(p, ids, room)
			break
		}
	}
	for _, id := range ids[done:] {
		if l.copies[tier][id] == 0 {
			l.lost[tier].add(id)
		}
	}
	for id := range after {
		if _, ok := l.parent[id]; !ok && !slices.Contains(ids[:done], id) {
			delete(after, id)
		}
	}
	ids = ids[:done]

	var fresh []block.ID
	for id := range after {
		if _, ok := l.parent[id]; !ok {
			fresh = append(fresh, id)
		}
	}
	l.parent = after
	var orphans []block.ID
	for _, id := range fresh {
		if !l.isConnected(id) {
			orphans = append(orphans, id)
		}
	}
	r := StoreResult{Refused: refused, Orphans: len(orphans)}
	for _, id := range ids {
		n := l.copies[tier][id]
		switch {
		case n == 0:
			r.Stored++
			l.copies[tier][id] = 1
		default:
			r.Repeated++
			if l.isCounted && n < math.MaxUint16 {
				l.copies[tier][id] = n + 1
			}
		}
	}
	if l.isLimited {
		for _, id := range orphans {
			l.waiting[id] = true
		}
	}
	l.tidy()
	return r
}

// isConnected follows parents for as many steps as there are blocks; a circle takes longer.
func (l *twinLedger) isConnected(id block.ID) bool {
	for range len(l.parent) {
		p, ok := l.parent[id]
		if !ok {
			return false
		}
		if p.IsRoot {
			return true
		}
		id = p.ID
	}
	return false
}

// tidy forgets the parents of blocks that no tier holds, and who no longer waits.
func (l *twinLedger) tidy() {
	for id := range l.parent {
		isHeld := false
		for _, c := range l.copies {
			isHeld = isHeld || c[id] > 0
		}
		if !isHeld {
			delete(l.parent, id)
		}
	}
	for id := range l.waiting {
		if _, ok := l.parent[id]; !ok || l.isConnected(id) {
			delete(l.waiting, id)
		}
	}
}

func (l *twinLedger) remove(ids []block.ID, tier fleet.Tier) (removed, unknown int) {
	for _, id := range ids {
		n := l.copies[tier][id]
		switch n {
		case 0:
			unknown++
			if !l.isCounted && l.lost[tier].Count > 0 {
				l.lost[tier].remove(id, 1)
			}
		case 1:
			removed++
			delete(l.copies[tier], id)
			l.tidy()
		default:
			l.copies[tier][id] = n - 1
		}
	}
	return removed, unknown
}

func (l *twinLedger) clear(tier fleet.Tier) int {
	n := len(l.copies[tier])
	clear(l.copies[tier])
	l.tidy()
	l.lost[tier] = Digest{}
	return n
}

func (l *twinLedger) clearAll() int {
	n := len(l.parent)
	l.reset()
	return n
}

func (l *twinLedger) digest(tier fleet.Tier) Digest {
	var d Digest
	for id, n := range l.copies[tier] {
		d.Count++
		d.XOR ^= uint64(id)
		d.Sum += uint64(id)
		d.Copies += uint64(n)
		d.CopySum += uint64(n) * uint64(id)
	}
	return d
}

func (l *twinLedger) orphans() int {
	var n int
	for id := range l.parent {
		if !l.isConnected(id) {
			n++
		}
	}
	return n
}

// match walks the chain tier by tier: as long as the nearest tier holds the next block it goes on there.
func (w *twin) match(chain []block.ID) []Match {
	var out []Match
	for target, l := range w.visible {
		m := Match{Target: target}
		at := 0
		for tier, held := range l.copies {
			for at < len(chain) && held[chain[at]] > 0 && l.parent[chain[at]] == parentIn(chain, at) {
				m.Blocks[tier]++
				at++
			}
		}
		if at > 0 {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Match) int { return int(a.Target) - int(b.Target) })
	return out
}

func parentIn(chain []block.ID, at int) Parent {
	if at == 0 {
		return Parent{IsRoot: true}
	}
	return Parent{ID: chain[at-1]}
}
