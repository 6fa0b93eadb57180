package index

import (
	"maps"
	"slices"
	"sync"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// numShards is a power of two well above the number of cores, so that writers rarely meet.
const (
	numShards  = 256
	shardShift = 64 - 8
)

// slot is a ledger's own small number. It is not the target's, so that a former ledger's members can stay behind in the
// lists, unread, until Reclaim comes by.
type slot uint32

// level is the tier a block would be taken from; noLevel if it cannot be reached.
type level uint8

const noLevel level = fleet.NumTiers

// member is a ledger in the list of a place: its slot in the upper bits, the block's level in the lower two.
type member uint32

func newMember(s slot, v level) member { return member(s)<<2 | member(v) }

func (m member) slot() slot   { return slot(m >> 2) }
func (m member) level() level { return level(m & 3) }

// ref is a member if there is one, else isList and the position in the shard's lists.
type ref uint32

const isList ref = 1 << 31

// keptCap is the largest list whose memory is kept for the next one.
const keptCap = 16

// shard maps a part of all places to who can reach the block there. Its memory holds no pointers except one for each
// list of two and more.
type shard struct {
	mu    sync.RWMutex
	refs  map[place]ref
	peak  int        // most refs since the map was made
	lists [][]member // sorted by slot, one member a slot
	spare []uint32   // unused positions in lists

	_ [64]byte // a shard's lock must not move its neighbour's cache line
}

func (s *shard) init() { s.refs = make(map[place]ref) }

// shard finds the shard of a place. Places of small test ids differ only below, hence the factor.
func (ix *Index) shard(p place) *shard { return &ix.shards[p*0x9e3779b97f4a7c15>>shardShift] }

// members lists who is at p; buf is used for a single one. The caller holds mu and keeps the result no longer.
func (s *shard) members(p place, buf *[1]member) []member {
	r, ok := s.refs[p]
	switch {
	case !ok:
		return nil
	case r&isList == 0:
		buf[0] = member(r)
		return buf[:]
	default:
		return s.lists[r&^isList]
	}
}

// put adds a ledger at p or changes its level there.
func (s *shard) put(p place, m member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.refs[p]
	switch {
	case !ok:
		s.refs[p] = ref(m)
		s.peak = max(s.peak, len(s.refs))
	case r&isList != 0:
		pos := r &^ isList
		list := s.lists[pos]
		i, found := search(list, m.slot())
		if found {
			list[i] = m
			return
		}
		s.lists[pos] = slices.Insert(list, i, m)
	case member(r).slot() == m.slot():
		s.refs[p] = ref(m)
	default:
		s.refs[p] = isList | ref(s.newList(min(m, member(r)), max(m, member(r))))
	}
}

// remove takes a ledger away from p.
func (s *shard) remove(p place, sl slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.refs[p]
	if !ok {
		return
	}
	if r&isList == 0 {
		if member(r).slot() == sl {
			delete(s.refs, p)
			s.shrink()
		}
		return
	}
	pos := r &^ isList
	list := s.lists[pos]
	i, found := search(list, sl)
	if !found {
		return
	}
	list = slices.Delete(list, i, i+1)
	if len(list) == 1 {
		s.refs[p] = ref(list[0])
		s.freeList(uint32(pos), list)
		return
	}
	if cap(list) > keptCap && len(list) < cap(list)/4 {
		list = slices.Clone(list)
	}
	s.lists[pos] = list
}

// newList makes a list of two, in order.
func (s *shard) newList(a, b member) uint32 {
	if n := len(s.spare); n > 0 {
		pos := s.spare[n-1]
		s.spare = s.spare[:n-1]
		s.lists[pos] = append(s.lists[pos], a, b)
		return pos
	}
	s.lists = append(s.lists, []member{a, b})
	return uint32(len(s.lists) - 1)
}

// freeList keeps a list that is not needed any more for the next one.
func (s *shard) freeList(pos uint32, list []member) {
	if cap(list) > keptCap {
		list = nil
	}
	s.lists[pos] = list[:0]
	s.spare = append(s.spare, pos)
}

// shrink gives memory back after most refs have gone, because maps do not. The copy is paid for by the removals.
func (s *shard) shrink() {
	if s.peak < 1024 || len(s.refs) > s.peak/4 {
		return
	}
	refs := make(map[place]ref, len(s.refs))
	maps.Copy(refs, s.refs)
	s.refs, s.peak = refs, len(refs)
	if len(s.spare) == len(s.lists) {
		s.lists, s.spare = nil, nil
	}
}

// search finds a slot's position in a list, or where it belongs.
func search(list []member, sl slot) (int, bool) {
	i, _ := slices.BinarySearch(list, newMember(sl, 0))
	return i, i < len(list) && list[i].slot() == sl
}
