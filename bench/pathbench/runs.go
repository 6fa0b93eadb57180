package main

import (
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// runs is the other way to build a prefix index, to compare with: a tree of runs in which questions are compared by local
// hashes, so that nobody chains. Reports still name blocks by id, so ids are there as well, with a table of 32-bit locations
// as the real index has. It knows neither removal nor holes nor concurrency, all of which would cost more.
type runs struct {
	locals []block.Local // of all blocks, in the order in which they came
	ids    []block.ID
	all    []run
	roots  map[block.Local]uint32 // run, by its first block
	table  []uint32               // place of a block and 1, by id
}

// run is consecutive blocks that nobody parts ways inside.
type run struct {
	from, n  uint32
	children []uint32
	holders  []holder // by target
}

// holder is who has how many leading blocks of a run.
type holder struct {
	target fleet.TargetID
	cover  uint32
}

func newRuns() *runs { return &runs{roots: make(map[block.Local]uint32), table: make([]uint32, 1<<10)} }

func (s *runs) slot(id block.ID) *uint32 {
	for i := uint64(id); ; i++ {
		at := &s.table[i%uint64(len(s.table))]
		if *at == 0 || s.ids[*at-1] == id {
			return at
		}
	}
}

// add makes a run of blocks that are new.
func (s *runs) add(target fleet.TargetID, ids []block.ID, locals []block.Local) uint32 {
	from := len(s.ids)
	s.ids, s.locals = append(s.ids, ids...), append(s.locals, locals...)
	if len(s.ids) > len(s.table)/8*7 {
		s.table = make([]uint32, len(s.table)/4*5)
		for i, id := range s.ids {
			*s.slot(id) = uint32(i) + 1
		}
	} else {
		for i, id := range ids {
			*s.slot(id) = uint32(from+i) + 1
		}
	}
	s.all = append(s.all, run{from: uint32(from), n: uint32(len(ids)), holders: []holder{{target, uint32(len(ids))}}})
	return uint32(len(s.all) - 1)
}

// cover is how many leading blocks of a run a question has.
func (s *runs) cover(r *run, locals []block.Local) uint32 {
	have := s.locals[r.from : r.from+r.n]
	n := min(len(have), len(locals))
	have, locals = have[:n], locals[:n]
	for i := range have {
		if have[i] != locals[i] {
			return uint32(i)
		}
	}
	return uint32(n)
}

// child is the run that begins with a block, of those behind a run.
func (s *runs) child(r *run, l block.Local) (uint32, bool) {
	for _, c := range r.children {
		if s.locals[s.all[c].from] == l {
			return c, true
		}
	}
	return 0, false
}

// hold notes that a target has so many leading blocks of a run.
func (r *run) hold(t fleet.TargetID, cover uint32) {
	i, ok := slices.BinarySearchFunc(r.holders, t, func(h holder, t fleet.TargetID) int { return int(h.target) - int(t) })
	if ok {
		r.holders[i].cover = max(r.holders[i].cover, cover)
		return
	}
	r.holders = slices.Insert(r.holders, i, holder{t, cover})
}

// split cuts a run at its k-th block.
func (s *runs) split(at, k uint32) {
	r := &s.all[at]
	rest := run{from: r.from + k, n: r.n - k, children: r.children}
	for i := range r.holders {
		if h := &r.holders[i]; h.cover > k {
			rest.holders = append(rest.holders, holder{h.target, h.cover - k})
			h.cover = k
		}
	}
	r.n, r.children = k, []uint32{uint32(len(s.all))}
	s.all = append(s.all, rest)
}

// store notes that a target holds a whole prompt.
func (s *runs) store(t fleet.TargetID, ids []block.ID, locals []block.Local) {
	at, ok := s.roots[locals[0]]
	if !ok {
		s.roots[locals[0]] = s.add(t, ids, locals)
		return
	}
	for {
		k := s.cover(&s.all[at], locals)
		if k < s.all[at].n && int(k) < len(locals) {
			s.split(at, k)
		}
		s.all[at].hold(t, k)
		ids, locals = ids[k:], locals[k:]
		if len(locals) == 0 {
			return
		}
		next, ok := s.child(&s.all[at], locals[0])
		if !ok {
			next = s.add(t, ids, locals)
			s.all[at].children = append(s.all[at].children, next)
			return
		}
		at = next
	}
}

// match appends how many leading blocks each target has. Holders of a run are in order of targets, and so are the answers.
func (s *runs) match(locals []block.Local, dst []holder) []holder {
	if len(locals) == 0 {
		return dst
	}
	at, ok := s.roots[locals[0]]
	whole := uint32(0) // blocks before the run
	for ok {
		r := &s.all[at]
		k := s.cover(r, locals)
		i := 0
		for _, h := range r.holders {
			if whole == 0 {
				dst = append(dst, holder{h.target, min(h.cover, k)})
				continue
			}
			for dst[i].target < h.target {
				i++
			}
			// Prompts are stored whole: who is here has all that comes before, and is among the answers.
			dst[i].cover += min(h.cover, k)
		}
		whole += k
		if locals = locals[k:]; k < r.n || len(locals) == 0 {
			return dst
		}
		at, ok = s.child(r, locals[0])
	}
	return dst
}
