package oracle

import (
	"slices"
	"sort"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// guessTree has the prompts under way as a tree of runs: blocks that all prompts which reach the first of them go through
// together. A prompt costs its new blocks once, as a copy, and a step for each run it goes through, not for each block.
//
//	users(run)   = guesses that go through it or end at its end, by target, in order of targets; not empty
//	users(kid)  <= users(run), for each target
//	total(run)   = sum of users(run)
//	ends of guesses are ends of runs
//	a run that has one kid with the same total is joined with it, so runs <= 2 x guesses
//	names        = ids of all runs but those in unnamed
//
// Chains are chained, so the last block of a run vouches for those before it.
type guessTree struct {
	runs    map[runKey]*run
	unnamed []*run
	names   idSet
}

// runKey finds a run: what it follows (nil: the start), and its first block.
type runKey struct {
	up    *run
	first block.ID
}

type run struct {
	up    *run
	kids  *run // first of them
	next  *run // siblings
	prev  *run
	depth int        // blocks before it
	ids   []block.ID // never changed, only replaced
	room  int        // words of memory that ids keep alive
	users []user
	total int
	set   index.Set // of the users, where they are many for the ids that they have; else nil
	// place is where it stands in unnamed; isNamed: its ids are in names.
	place int
}

// isNamed is the place of a run whose ids are in names.
const isNamed = -1

type user struct {
	target fleet.TargetID
	n      uint32
}

func newGuessTree() guessTree { return guessTree{runs: make(map[runKey]*run)} }

// match walks down as far as the chain goes on.
func (t *guessTree) match(chain []block.ID, dst []index.Match) []index.Match {
	found := dst[len(dst):]
	var up *run
	for depth := 0; depth < len(chain); {
		r := t.runs[runKey{up, chain[depth]}]
		if r == nil {
			break
		}
		n := common(r.ids, chain[depth:])
		found = r.name(found, depth+n)
		if n < len(r.ids) {
			break
		}
		up = r
		depth += n
	}
	return append(dst, found...)
}

// layers is match with what many have alike said once.
func (t *guessTree) layers(chain []block.ID, dst *index.Layers) {
	dst.Reset()
	var up *run
	for depth := 0; depth < len(chain); {
		r := t.runs[runKey{up, chain[depth]}]
		if r == nil {
			return
		}
		n := common(r.ids, chain[depth:])
		switch at := len(dst.All); {
		case len(dst.Others) > 0 || at == index.LayersMost:
			dst.Others = r.name(dst.Others, depth+n)
		case up != nil && len(up.users) == len(r.users): // the same
			dst.All[at-1].Blocks = uint32(depth + n)
		default:
			r.fill(dst.Add(depth+n, r.words()))
		}
		if n < len(r.ids) {
			return
		}
		up = r
		depth += n
	}
}

// words is how many a set of the users has.
func (r *run) words() int { return int(r.users[len(r.users)-1].target)/64 + 1 }

// fill puts the users into an empty set.
func (r *run) fill(s index.Set) {
	if copy(s, r.set); r.set != nil {
		return
	}
	for _, u := range r.users {
		s[u.target/64] |= 1 << (u.target % 64)
	}
}

// name notes that the users have so many blocks. All of them are in the list, or it is empty.
func (r *run) name(list []index.Match, blocks int) []index.Match {
	if len(list) == 0 {
		for _, u := range r.users {
			list = append(list, index.Match{Target: u.target})
		}
	}
	found := list
	for _, u := range r.users {
		found = found[seek(found, u.target):]
		found[0].Blocks[fleet.Device] = uint32(blocks)
		found = found[1:]
	}
	return list
}

// seek finds a target among matches that have it, at double the distance each time: few of many are found in few steps, and
// many of many in one each.
func seek(found []index.Match, t fleet.TargetID) int {
	lo, hi := 0, 0
	for step := 1; hi < len(found) && found[hi].Target < t; step *= 2 {
		lo, hi = hi+1, hi+step
	}
	hi = min(hi, len(found)-1)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); found[mid].Target < t {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// common is how many leading blocks two chains that begin alike have in common.
func common(a, b []block.ID) int {
	n := min(len(a), len(b))
	if a[n-1] == b[n-1] {
		return n
	}
	return sort.Search(n, func(i int) bool { return a[i] != b[i] })
}

// chain is a copy of all blocks down to the end of a run.
func (r *run) chain() []block.ID {
	out := make([]block.ID, r.depth+len(r.ids))
	for ; r != nil; r = r.up {
		copy(out[r.depth:], r.ids)
	}
	return out
}

// add lets a target's prompt go through the tree and returns the run at whose end it ends.
func (t *guessTree) add(chain []block.ID, target fleet.TargetID) *run {
	var up *run
	depth := 0
	for depth < len(chain) {
		r := t.runs[runKey{up, chain[depth]}]
		if r == nil {
			break
		}
		n := common(r.ids, chain[depth:])
		if n < len(r.ids) {
			r = t.split(r, n)
		}
		r.join(target)
		up = r
		depth += n
	}
	if depth < len(chain) {
		r := &run{depth: depth, ids: slices.Clone(chain[depth:])}
		r.room = len(r.ids)
		r.join(target)
		t.hang(r, up)
		t.unname(r)
		up = r
	}
	return up
}

// cut leaves a target's prompt that ends at the end of a run its first n blocks, and returns the run at whose end it ends
// then; nil if n is 0.
func (t *guessTree) cut(r *run, target fleet.TargetID, n int) *run {
	var low *run // the first on the way up that stays: only there an end may have gone that kept it apart from its kid
	leave := func(r *run) {
		if t.leave(r, target); low == nil && r.total > 0 {
			low = r
		}
	}
	for r != nil && r.depth >= n {
		up := r.up
		leave(r)
		r = up
	}
	if r != nil && r.depth+len(r.ids) > n {
		rest := r
		r = t.split(r, n-r.depth)
		leave(rest)
	}
	if low == nil {
		low = r
	}
	if low != nil && low.kids != nil && low.kids.next == nil && low.kids.total == low.total {
		t.merge(low, low.kids)
	}
	return r
}

// user is the place of a target among the users, or where it would be.
func (r *run) user(target fleet.TargetID) (at int, ok bool) {
	lo, hi := 0, len(r.users) // written out: this is done for each run of each prompt
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); r.users[mid].target < target {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(r.users) && r.users[lo].target == target
}

func (r *run) join(target fleet.TargetID) {
	i, ok := r.user(target)
	if !ok {
		r.users = slices.Insert(r.users, i, user{target: target})
		r.note(target)
	}
	r.users[i].n++
	r.total++
}

// note puts a new user into the set, or makes one of all when they are as many as it has words.
func (r *run) note(target fleet.TargetID) {
	words := r.words()
	switch {
	case r.set != nil:
		if n := words - len(r.set); n > 0 {
			r.set = append(r.set, make(index.Set, n)...)
		}
		r.set[target/64] |= 1 << (target % 64)
	case len(r.users) >= words:
		s := make(index.Set, words)
		r.fill(s)
		r.set = s
	}
}

// leave takes one of a target's prompts off a run, which goes with the last one.
func (t *guessTree) leave(r *run, target fleet.TargetID) {
	i, ok := r.user(target)
	if !ok {
		return
	}
	if r.users[i].n--; r.users[i].n == 0 {
		r.users = slices.Delete(r.users, i, i+1)
		if r.set != nil {
			r.set[target/64] &^= 1 << (target % 64)
			if len(r.users) < len(r.set)/2 {
				r.set = nil
			}
		}
	}
	if r.total--; r.total == 0 {
		t.unhang(r)
		t.forget(r)
	}
}

// hang puts a run after another.
func (t *guessTree) hang(r, up *run) {
	r.up = up
	t.runs[runKey{up, r.ids[0]}] = r
	if up == nil {
		return
	}
	r.prev, r.next = nil, up.kids
	if up.kids != nil {
		up.kids.prev = r
	}
	up.kids = r
}

// unhang undoes hang.
func (t *guessTree) unhang(r *run) {
	delete(t.runs, runKey{r.up, r.ids[0]})
	if r.up == nil {
		return
	}
	if r.prev == nil {
		r.up.kids = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	}
}

// split makes two runs of one: a new one of the first n blocks, which it returns, and the old one of the others.
func (t *guessTree) split(r *run, n int) *run {
	up := r.up
	t.unhang(r)
	first := &run{depth: r.depth, ids: r.ids[:n:n], room: r.room, users: slices.Clone(r.users), set: slices.Clone(r.set), total: r.total, place: isNamed}
	r.ids = r.ids[n:]
	r.depth += n
	first.trim()
	r.trim()
	t.hang(first, up)
	t.hang(r, first)
	if r.place != isNamed {
		t.unname(first)
	}
	return first
}

// trim lets a run keep no more than twice the memory of its blocks alive.
func (r *run) trim() {
	if 2*len(r.ids) < r.room {
		r.ids = slices.Clone(r.ids)
		r.room = len(r.ids)
	}
}

// merge puts a run's blocks in front of its only kid's, and the run away.
func (t *guessTree) merge(r, kid *run) {
	if r.place != kid.place && (r.place == isNamed || kid.place == isNamed) {
		t.name(r)
		t.name(kid)
	}
	t.unhang(kid)
	t.unhang(r)
	kid.ids = slices.Concat(r.ids, kid.ids)
	kid.depth, kid.room = r.depth, len(kid.ids)
	t.hang(kid, r.up)
	if r.place != isNamed {
		t.unlist(r)
	}
}
