// Command pathbench compares, on the whole way from tokens to the answer, the index with one that compares local hashes and
// so needs no chained ids for a question: time by step, cold and warm, and memory of both.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/measure"
	"github.com/kvoracle/kvoracle/bench/workload"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

const (
	blockSize = 16
	keyspace  = block.Keyspace(1)
	asker     = fleet.TargetID(100_000) // who holds the prompts that are asked for
)

// both are the two indexes with the same contents.
type both struct {
	ix    *index.Index
	local *runs
	bytes [2]float64 // resident growth a holder-block
}

// each calls f for every prompt of every holder, in an order in which no prompt follows its relatives.
func each(s *workload.Stream, f func(t fleet.TargetID, ids []block.ID, locals []block.Local)) {
	var members [][2]int
	for fam := range s.Families {
		for m := range s.Families[fam].Holders {
			members = append(members, [2]int{fam, m})
		}
	}
	var locals []block.Local
	var ids []block.ID
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(members)) {
		m := members[i]
		locals = s.AppendLocals(locals[:0], m[0], m[1])
		ids = block.AppendChain(ids[:0], keyspace, locals)
		f(fleet.TargetID(s.Families[m[0]].Holders[m[1]]), ids, locals)
	}
}

func fill(blocks int) *both {
	p := workload.Gate
	p.Blocks = blocks
	s := workload.New(p, 1)
	b := &both{}
	held := 0
	before := measure.Resident()
	b.ix = index.New(index.Config{})
	ledgers := make(map[fleet.TargetID]*index.Ledger)
	each(s, func(t fleet.TargetID, ids []block.ID, _ []block.Local) {
		if ledgers[t] == nil {
			ledgers[t] = b.ix.NewLedger(t, false)
			b.ix.Publish(ledgers[t])
		}
		ledgers[t].Store(index.Parent{IsRoot: true}, ids, fleet.Device)
		held += len(ids)
	})
	between := measure.Resident()
	b.bytes[0] = (between - before) / float64(held)
	b.local = newRuns()
	each(s, b.local.store)
	// What is left over of growing slices is not the structure's.
	b.local.locals, b.local.ids = slices.Clip(slices.Clone(b.local.locals)), slices.Clip(slices.Clone(b.local.ids))
	b.local.all = slices.Clip(slices.Clone(b.local.all))
	b.bytes[1] = (measure.Resident() - between) / float64(held)
	return b
}

// question is a prompt and what the steps make of it.
type question struct {
	tokens []uint32
	locals []block.Local
	ids    []block.ID
	known  []block.ID
	found  []index.Match
	other  []holder
}

// steps of the way: hashing; ids made, then compared; ids checked on the way, where somebody holds them; local hashes
// compared. An answer takes the first and one of the three others.
func (b *both) steps() []func(q *question) {
	return []func(q *question){
		func(q *question) { q.locals = block.AppendLocals(q.locals[:0], q.tokens, blockSize) },
		func(q *question) { q.ids = block.AppendChain(q.ids[:0], keyspace, q.locals) },
		func(q *question) { q.found = b.ix.Match(q.ids, q.found[:0]) },
		func(q *question) {
			q.known, q.found = b.ix.MatchLocals(keyspace.Root(q.locals[0]), q.locals[1:], q.known, q.found[:0])
		},
		func(q *question) { q.other = b.local.match(q.locals, q.other[:0]) },
	}
}

// add lets somebody hold a prompt in both.
func (b *both) add(t fleet.TargetID, tokens []uint32) {
	locals := block.AppendLocals(nil, tokens, blockSize)
	ids := block.AppendChain(nil, keyspace, locals)
	l := b.ix.NewLedger(t, false)
	l.Store(index.Parent{IsRoot: true}, ids, fleet.Device)
	b.ix.Publish(l)
	b.local.store(t, ids, locals)
}

// promptOf invents tokens.
func promptOf(n int, seed uint32) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = (uint32(i)<<2 + seed) * 0x9e3779b1
	}
	return tokens
}

func main() {
	blocks := flag.Int("blocks", 10_000_000, "holder-blocks of the gate workload, around what is asked for")
	flag.Parse()
	if *blocks < 1 {
		fmt.Fprintf(os.Stderr, "%d blocks\n", *blocks)
		os.Exit(1)
	}
	b := fill(*blocks)
	fmt.Printf("%s %s/%s; blocks of %d tokens, %g M holder-blocks around; medians in us of processor time\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, blockSize, float64(*blocks)/1e6)
	lengths := []int{64, 512, 8192, 131072}
	b.add(asker, promptOf(lengths[len(lengths)-1], 1))
	b.add(asker+1, promptOf(64, 2))
	fmt.Println("| tokens | caches | hash blocks | make ids | compare ids | check ids | compare local hashes | whole, ids | whole, local hashes | ratio |")
	fmt.Println("|-------:|--------|------------:|---------:|------------:|----------:|---------------------:|-----------:|--------------------:|------:|")
	for _, n := range lengths {
		q := &question{tokens: promptOf(n, 1)}
		for _, isCold := range []bool{false, true} {
			us, caches := b.measure(q, isCold), "warm"
			if isCold {
				caches = "cold"
			}
			ids, local := us[0]+us[3], us[0]+us[4]
			fmt.Printf("| %d | %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", n, caches, us[0], us[1], us[2], us[3], us[4], ids, local, ids/local)
		}
	}
	fmt.Printf("info %-28s %10.4g %10s       (bytes a holder-block)\n", "path-bytes-ids", b.bytes[0], "")
	fmt.Printf("info %-28s %10.4g %10s       (bytes a holder-block)\n", "path-bytes-local-hashes", b.bytes[1], "")
}

// measure gives the medians of the steps. Cold: what the indexes know is not in the core's caches. The prompt, which has
// just come in, is, and so is the program.
func (b *both) measure(q *question, isCold bool) (us []float64) {
	steps := b.steps()
	for _, step := range steps {
		step(q)
	}
	cold := measure.NewFlush()
	other := &question{tokens: promptOf(64, 2)}
	var sink uint64
	for _, step := range steps {
		calls, before := 2000, func(int) {}
		if isCold {
			calls = 100
			before = func(int) {
				cold.Run()
				for range 3 {
					for _, s := range steps {
						start := measure.ThreadTime()
						s(other)
						sink += uint64(measure.ThreadTime() - start)
					}
				}
				for i := range q.tokens {
					sink += uint64(q.tokens[i])
				}
				for i := range q.locals {
					sink += uint64(q.locals[i]) + uint64(q.ids[i])
				}
			}
		}
		us = append(us, bars.Quantile(measure.Each(measure.ThreadTime, calls, before, func(int) { step(q) }), 0.5)/1e3)
	}
	runtime.KeepAlive(sink)
	return us
}
