package oracle

import "slices"

import "github.com/kvoracle/kvoracle/internal/block"

// Which blocks are somewhere in the tree is asked for each one that is reported gone, and by nobody else. So the ids of a
// run are entered when somebody asks, not when a prompt is routed: most have gone by then, and a decision does not wait.

// mayHave reports whether some of the blocks may be in the tree: if it says no, none is.
func (t *guessTree) mayHave(ids []block.ID) bool {
	for len(t.unnamed) > 0 {
		t.name(t.unnamed[len(t.unnamed)-1])
	}
	return slices.ContainsFunc(ids, t.names.has)
}

// unname notes that a run's ids are not in names.
func (t *guessTree) unname(r *run) {
	r.place = len(t.unnamed)
	t.unnamed = append(t.unnamed, r)
}

// unlist takes a run out of unnamed.
func (t *guessTree) unlist(r *run) {
	last := len(t.unnamed) - 1
	t.unnamed[r.place] = t.unnamed[last]
	t.unnamed[r.place].place = r.place
	t.unnamed[last] = nil
	t.unnamed = t.unnamed[:last]
	r.place = isNamed
}

// name enters a run's ids.
func (t *guessTree) name(r *run) {
	if r.place == isNamed {
		return
	}
	t.unlist(r)
	for _, id := range r.ids {
		t.names.add(id)
	}
}

// forget takes out a run that has gone.
func (t *guessTree) forget(r *run) {
	if r.place != isNamed {
		t.unlist(r)
		return
	}
	for _, id := range r.ids {
		t.names.remove(id)
	}
}

// idSet is a set of ids with as many copies of each as were added, by 32 bits of their hashes: one id in some thousands of
// millions, times those that are in it, is taken for another. Open addressing; at most half of the places are used, and at
// least an eighth.
type idSet struct {
	places []uint32 // 0: empty
	shift  uint     // of a mark, to the place where it belongs
	n      int
}

const idSetLeast = 6 // logarithm of the least number of places

// markOf is what stands for an id, never 0.
func markOf(id block.ID) uint32 { return uint32(uint64(id)*0x9e3779b97f4a7c15>>32) | 1 }

func (s *idSet) has(id block.ID) bool {
	if s.n == 0 {
		return false
	}
	m, mask := markOf(id), len(s.places)-1
	for i := int(m >> s.shift); s.places[i] != 0; i = (i + 1) & mask {
		if s.places[i] == m {
			return true
		}
	}
	return false
}

func (s *idSet) add(id block.ID) {
	if 2*(s.n+1) > len(s.places) {
		s.resize(max(2*len(s.places), 1<<idSetLeast))
	}
	s.put(markOf(id))
	s.n++
}

func (s *idSet) put(m uint32) {
	i, mask := int(m>>s.shift), len(s.places)-1
	for s.places[i] != 0 {
		i = (i + 1) & mask
	}
	s.places[i] = m
}

// remove takes one copy out.
func (s *idSet) remove(id block.ID) {
	if s.n == 0 {
		return
	}
	m, mask := markOf(id), len(s.places)-1
	i := int(m >> s.shift)
	for ; s.places[i] != m; i = (i + 1) & mask {
		if s.places[i] == 0 {
			return
		}
	}
	// Those behind move up, as far as they do not belong behind the hole.
	for k := (i + 1) & mask; s.places[k] != 0; k = (k + 1) & mask {
		if home := int(s.places[k] >> s.shift); (k-home)&mask >= (k-i)&mask {
			s.places[i], i = s.places[k], k
		}
	}
	s.places[i] = 0
	if s.n--; 8*s.n < len(s.places) && len(s.places) > 1<<idSetLeast {
		s.resize(len(s.places) / 2)
	}
}

func (s *idSet) resize(n int) {
	old := s.places
	s.places = make([]uint32, n)
	s.shift = 32
	for ; n > 1; n /= 2 {
		s.shift--
	}
	for _, m := range old {
		if m != 0 {
			s.put(m)
		}
	}
}
