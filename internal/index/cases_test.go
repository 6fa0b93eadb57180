package index

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// In these tests a letter is a block's contents and a word is a block: "AB" is the block with contents B after block A.

// named gives the id of a word.
func named(word string) block.ID {
	ids := prompt(word)
	return ids[len(ids)-1]
}

// prompt gives the chain of a word's letters.
func prompt(word string) []block.ID {
	locals := make([]block.Local, len(word))
	for i, c := range []byte(word) {
		locals[i] = block.LocalHash([]uint32{uint32(c)})
	}
	return block.AppendChain(nil, block.Identity{Model: "m", BlockSize: 1}.Keyspace(), locals)
}

// parentOfWord is what a word follows: the word without its last letter.
func parentOfWord(word string) Parent {
	if len(word) == 1 {
		return Parent{IsRoot: true}
	}
	return Parent{ID: named(word[:len(word)-1])}
}

func words(list string) []string { return strings.Fields(strings.Trim(list, "[]")) }

func idsOf(list string) []block.ID {
	var ids []block.ID
	for _, w := range words(list) {
		ids = append(ids, named(w))
	}
	return ids
}

// fleetOf runs lines against an index of targets w1, w2 and so on.
type fleetOf struct {
	t  *testing.T
	ix *Index
}

// run does one line:
//
//	w1 SET | w1 COUNTED        publish an empty ledger
//	w1 +[A AB] | w1 host +[A]  store, below what the first word follows
//	w1 +[AB] below AC          store below that
//	w1 -[A]                    remove
//	w1 clear | w1 host clear
//	w1 drop
//	ABC: w1=3 w2=1+1host       what a prompt finds; nothing after the colon: nobody
//	w1 size 2 | w1 orphans 1   blocks in the device
//
// A store or removal ends in "=> " and a result: "stored 2", "repeated 1", "orphans 1", "removed 1", "unknown 1", or a
// refusal; several with commas. Without one nothing is said.
func (f *fleetOf) run(line string) {
	f.t.Helper()
	line, want, hasWant := strings.Cut(line, " => ")
	head, rest, _ := strings.Cut(line, " ")
	if word, ok := strings.CutSuffix(head, ":"); ok {
		f.query(word, rest)
		return
	}
	target := targetOf(f.t, head)
	l := f.ix.Visible(target)
	tier := fleet.Device
	if after, ok := strings.CutPrefix(rest, "host "); ok {
		tier, rest = fleet.Host, after
	}
	var got string
	switch {
	case rest == "SET" || rest == "COUNTED":
		f.ix.Publish(f.ix.NewLedger(target, rest == "COUNTED"))
	case rest == "drop":
		f.ix.Drop(target)
	case rest == "clear":
		if tier == fleet.Device {
			l.ClearAll()
		} else {
			l.Clear(tier)
		}
	case rest[0] == '+':
		list, below, ok := strings.Cut(rest[1:], " below ")
		parent := parentOfWord(words(list)[0])
		if ok {
			parent = Parent{ID: named(below)}
		}
		got = describe(l.Store(parent, idsOf(list), tier))
	case rest[0] == '-':
		removed, unknown := l.Remove(idsOf(rest[1:]), tier)
		got = nonzero("removed", removed, "unknown", unknown)
	case strings.HasPrefix(rest, "size "):
		got, want, hasWant = strconv.Itoa(l.Held(tier)), rest[5:], true
	case strings.HasPrefix(rest, "orphans "):
		got, want, hasWant = strconv.Itoa(l.Orphans()), rest[8:], true
	default:
		f.t.Fatalf("line %q is not understood", line)
	}
	if hasWant && got != want {
		f.t.Errorf("%s: got %q, want %q", line, got, want)
	}
}

func (f *fleetOf) query(word, want string) {
	f.t.Helper()
	var got []string
	for _, m := range f.ix.Match(prompt(word), nil) {
		s := "w" + strconv.Itoa(int(m.Target)) + "=" + strconv.Itoa(int(m.Blocks[fleet.Device]))
		if n := m.Blocks[fleet.Host]; n > 0 {
			s += "+" + strconv.Itoa(int(n)) + "host"
		}
		got = append(got, s)
	}
	if s := strings.Join(got, " "); s != want {
		f.t.Errorf("%s: got %q, want %q", word, s, want)
	}
}

func targetOf(t *testing.T, name string) fleet.TargetID {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "w"))
	if err != nil {
		t.Fatalf("target %q: %v", name, err)
	}
	return fleet.TargetID(n)
}

func describe(r StoreResult) string {
	s := nonzero("stored", r.Stored, "repeated", r.Repeated, "orphans", r.Orphans)
	if r.Refused != None {
		s = strings.TrimPrefix(s+", "+r.Refused.String(), ", ")
	}
	return s
}

// nonzero lists the counts that are not zero.
func nonzero(pairs ...any) string {
	var out []string
	for i := 0; i < len(pairs); i += 2 {
		if n := pairs[i+1].(int); n != 0 {
			out = append(out, pairs[i].(string)+" "+strconv.Itoa(n))
		}
	}
	return strings.Join(out, ", ")
}

func TestCases(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
	}{
		{"B22 children of an unseen parent wait for it", []string{
			"w1 SET",
			"w1 +[AB] => stored 1, orphans 1",
			"w1 +[ABC] => stored 1, orphans 1",
			"ABC:", "w1 orphans 2",
			"w1 +[A] => stored 1",
			"ABC: w1=3", "w1 orphans 0",
		}},
		{"B23 an unknown parent is not the start", []string{
			"w1 SET", "w1 +[AB]", "B:", "AB:",
		}},
		{"B24 each block hangs on the one before it", []string{
			"w1 SET", "w1 +[A AB ABC]", "ABC: w1=3", "AC: w1=1", "B:",
		}},
		{"B36 two copies, one evicted", []string{
			"w1 COUNTED",
			"w1 +[A] => stored 1", "A: w1=1",
			"w1 +[A] => repeated 1", "A: w1=1",
			"w1 -[A] => ", "A: w1=1",
			"w1 -[A] => removed 1", "A:",
			"w1 -[A] => unknown 1",
		}},
		{"B37 a second announcement is not a copy", []string{
			"w1 SET", "w1 +[A] => stored 1", "w1 +[A] => repeated 1", "w1 -[A] => removed 1", "A:", "w1 -[A] => unknown 1",
		}},
		{"B39 an eviction is the evicter's alone", []string{
			"w1 SET", "w2 SET", "w1 +[A]", "w2 +[A]",
			"w1 -[A] => removed 1", "w1 -[A] => unknown 1",
			"A: w2=1", "w1 size 0", "w2 size 1",
		}},
		{"B40 all cleared", []string{
			"w1 SET", "w1 +[A AB]", "AB: w1=2", "w1 clear", "AB:", "w1 size 0", "w1 +[A]", "AB: w1=1",
		}},
		{"B40 one tier cleared", []string{
			"w1 SET", "w1 +[A AB]", "w1 host +[A AB ABC]", "ABC: w1=2+1host", "w1 host clear", "ABC: w1=2",
		}},
		{"B42 a block told twice in one message is no clear and no child of itself", []string{
			"w1 SET", "w1 +[A AB]", "w1 +[C C] => stored 1, repeated 1", "AB: w1=2", "C: w1=1", "w1 size 3",
			"w1 -[C] => removed 1", "C:",
		}},
		{"B42 told twice is a copy where copies count", []string{
			"w1 COUNTED", "w1 +[C C CD] => stored 2, repeated 1", "w1 -[C] => ", "CD: w1=2", "w1 -[C] => removed 1", "CD:",
		}},
		{"B43 the tail counts again when the hole is filled", []string{
			"w1 SET", "w1 +[A AB ABC]", "w1 -[A] => removed 1", "ABC:", "w1 orphans 2",
			"w1 +[A] => stored 1", "ABC: w1=3", "w1 orphans 0",
		}},
		{"B43 in the middle, with a branch", []string{
			"w1 SET", "w1 +[A AB ABC]", "w1 +[ABD ABDE]", "w1 -[AB]", "ABC: w1=1", "ABDE: w1=1",
			"w1 +[AB]", "ABC: w1=3", "ABDE: w1=4",
		}},
		{"B43 the hole filled from a farther tier", []string{
			"w1 SET", "w1 +[A AB ABC]", "w1 -[A]", "w1 host +[A]", "ABC: w1=0+1host",
			"w1 host +[AB]", "ABC: w1=0+2host", "w1 +[A]", "ABC: w1=3",
		}},
		{"B45 deep owner, not of the middle", []string{
			"w1 SET", "w2 SET", "w1 +[A]", "w1 +[ABC]", "w2 +[A AB]", "ABC: w1=1 w2=2",
		}},
		{"B46 repeated content", []string{
			"w1 SET", "w1 +[A AA AAA] => stored 3", "AAAA: w1=3",
			"w1 +[A] below A => self_parent", "AAAA: w1=3",
		}},
		{"B46 circles", []string{
			"w1 SET",
			"w1 +[X] below Y => stored 1, orphans 1", "w1 +[Y] below X => stored 1, orphans 1",
			"w1 +[A X] => parent_conflict", "A:",
			"w1 +[A AB A] => parent_conflict", "A:",
			"w1 -[X Y] => removed 2", "w1 size 0", "w1 +[X] => stored 1", "X: w1=1",
		}},
		{"B48 five times the same", []string{
			"w1 SET", "w1 +[A AB]", "w1 +[A AB]", "w1 +[A AB]", "w1 +[A AB]", "w1 +[A AB] => repeated 2",
			"AB: w1=2", "AB: w1=2", "AB: w1=2", "w1 size 2",
		}},
		{"B51 an owner who left hides nobody", []string{
			"w1 SET", "w2 SET", "w1 +[A AB]", "w2 +[A]", "AB: w1=2 w2=1", "w1 drop", "AB: w2=1",
		}},
		{"B66 a middle is no match", []string{
			"w1 SET", "w1 +[A AB]", "CB:",
		}},
		{"B73 a host copy first", []string{
			"w1 SET", "w1 host +[AB] => stored 1, orphans 1", "w1 +[A AB] => stored 2", "AB: w1=2",
			"w1 -[AB]", "AB: w1=1+1host",
		}},
		{"tiers do not go back", []string{
			"w1 SET", "w1 +[A]", "w1 host +[AB]", "w1 +[ABC]", "ABC: w1=1+1host",
		}},
		{"a new life has nothing of the former one", []string{
			"w1 SET", "w1 +[A AB ABC]", "w1 SET", "ABC:", "w1 +[X]", "X: w1=1",
		}},
		{"a block has one parent while it is held", []string{
			"w1 SET", "w1 +[A AB]", "w1 +[AB] below C => parent_conflict", "AB: w1=2",
			"w1 -[AB]", "w1 +[AB] below C => stored 1, orphans 1", "AB: w1=1",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fleetOf{t: t, ix: New(Config{})}
			for _, line := range c.lines {
				f.run(line)
			}
			for target := range fleet.TargetID(3) {
				f.ix.Drop(target)
			}
			for f.ix.Reclaim(100) > 0 {
			}
			if got := f.ix.Stats(); got != (Stats{Slots: got.Slots}) {
				t.Errorf("left behind: %+v", got)
			}
		})
	}
}

// B09: ids are recycled, so the number of lives does not matter.
func TestLivesWithoutEnd(t *testing.T) {
	lives := 5000
	if isRace {
		lives = 500 // of one thread
	}
	ix := New(Config{})
	chain := prompt("ABC")
	for life := range lives {
		target := fleet.TargetID(life % 7)
		l := publish(ix, target, chain, 3)
		if got := ix.Match(chain, nil); len(got) != 1 || got[0].Target != target || got[0].Total() != 3 {
			t.Fatalf("life %d: Match = %v", life, got)
		}
		if n := ix.Drop(target); n != 3 {
			t.Fatalf("life %d: Drop = %d", life, n)
		}
		if got := ix.Match(chain, nil); len(got) != 0 {
			t.Fatalf("life %d: Match after Drop = %v", life, got)
		}
		if l.Held(fleet.Device) != 0 {
			t.Fatalf("life %d: the dropped ledger holds blocks", life)
		}
		ix.Reclaim(10)
	}
	if got := ix.Stats(); got != (Stats{Slots: got.Slots}) || got.Slots > 2 {
		t.Errorf("Stats = %+v", got)
	}
	// Lives that never held anything need no janitor.
	for range 5000 {
		ix.Publish(ix.NewLedger(1, false))
		ix.Discard(ix.NewLedger(2, false))
		ix.Drop(1)
	}
	if got := ix.Stats().Slots; got > 4 {
		t.Errorf("%d slots", got)
	}
}

// B10: questions about targets nobody knows leave no trace.
func TestUnknownTargetsLeaveNoTrace(t *testing.T) {
	r := seeded(t)
	ix := New(Config{})
	for range 100_000 {
		target := fleet.TargetID(r.Uint32())
		if ix.Visible(target) != nil || ix.Drop(target) != 0 {
			t.Fatalf("target %d exists", target)
		}
	}
	if got := ix.Stats(); got != (Stats{}) {
		t.Errorf("Stats = %+v", got)
	}
	// Nor do removals of blocks nobody holds.
	l := publish(ix, 1, nil)
	for range 100_000 {
		l.Remove([]block.ID{block.ID(r.Uint64())}, fleet.Device)
		l.Clear(fleet.Host)
	}
	if got := ix.Stats(); got != (Stats{Ledgers: 1, Slots: 1}) || len(l.parts) != 0 {
		t.Errorf("Stats = %+v, %d parts made", got, len(l.parts))
	}
}

// B52: sizes and overlap after random changes of one chain, against a plain set.
func TestOneChainStoredAndRemovedAtRandom(t *testing.T) {
	r := seeded(t)
	ix := New(Config{})
	chain := numbered(30)
	l := publish(ix, 1, nil)
	held := make([]bool, len(chain))
	for n := range 1000 {
		from := r.IntN(len(chain))
		to := from + 1 + r.IntN(len(chain)-from)
		isStore := n%2 == 0
		if isStore {
			l.Store(parentOf(chain, from), chain[from:to], fleet.Device)
		} else {
			l.Remove(chain[from:to], fleet.Device)
		}
		size := 0
		for i := range held {
			if i >= from && i < to {
				held[i] = isStore
			}
			if held[i] {
				size++
			}
		}
		prefix := max(slices.Index(held, false), 0)
		if !slices.Contains(held, false) {
			prefix = len(held)
		}
		got := 0
		for _, m := range ix.Match(chain, nil) {
			got = m.Total()
		}
		if l.Held(fleet.Device) != size || got != prefix {
			t.Fatalf("step %d: size %d, prefix %d, want %d, %d", n, l.Held(fleet.Device), got, size, prefix)
		}
	}
}

// B106: what was stored and removed leaves nothing behind. Sixteen ledgers, 500 live blocks each, half a million
// changes.
func TestChurnLeavesNothingBehind(t *testing.T) {
	const ledgers, live = 16, 500
	rounds := 40
	if isRace {
		rounds = 10 // of one thread
	}
	ix := New(Config{})
	var next block.ID
	chains := make([][]block.ID, ledgers)
	var half int
	for i := range chains {
		publish(ix, fleet.TargetID(i), nil)
	}
	for round := range rounds {
		for i := range chains {
			l := ix.Visible(fleet.TargetID(i))
			l.Remove(chains[i], fleet.Device)
			chains[i] = chains[i][:0]
			for range live {
				next++
				chains[i] = append(chains[i], next)
			}
			l.Store(Parent{IsRoot: true}, chains[i], fleet.Device)
		}
		want := Stats{Ledgers: ledgers, HolderBlocks: ledgers * live, DistinctBlocks: ledgers * live, Entries: ledgers * live, Slots: ledgers}
		if d := cmp.Diff(want, ix.Stats()); d != "" {
			t.Fatalf("round %d (-want +got):\n%s", round, d)
		}
		if round == rounds/2 {
			half = footprint(ix)
		}
	}
	// A tenth for chance: which shard a chain falls into differs from round to round.
	if got := footprint(ix); got > half+half/10 {
		t.Errorf("memory grew from %d to %d words in the second half", half, got)
	}
}

// B108: what does not fit drives out the deepest block that has gone unused longest, never a head before its tail, on
// every run the same. Who has most gives.
func TestFullIndexGivesUpTails(t *testing.T) {
	for range 20 {
		f := &fleetOf{t: t, ix: New(Config{MaxBlocks: 3})}
		for _, line := range []string{
			"w1 SET", "w2 SET", "w1 +[A AB ABC] => stored 3",
			"w1 +[D] => stored 1", "ABC: w1=2", "D: w1=1", "w1 size 3",
			"w2 +[A] => stored 1", "ABC: w1=1 w2=1", "D: w1=1",
			"w1 -[ABC] => unknown 1", "w2 -[A] => removed 1", "w1 +[E] => stored 1", "A: w1=1", "D: w1=1", "E: w1=1",
			// A chain does not drive out what it follows, nor an orphan anybody: their tails are the first to go.
			"w1 -[D] => removed 1", "w1 -[E] => removed 1", "w1 +[AB ABC ABCD] => stored 2, capacity", "ABCD: w1=3",
			"w1 +[XY] => capacity", "w1 +[ABCD] => capacity", "ABCD: w1=3",
		} {
			f.run(line)
		}
	}
}
