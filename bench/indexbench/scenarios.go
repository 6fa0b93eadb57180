package main

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/measure"
	"github.com/kvoracle/kvoracle/bench/workload"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

var scenarios = []scenario{
	{name: "gate", run: gate, bars: []bars.Bar{
		{Name: "gate-bytes", Limit: 12, Unit: "bytes of resident memory a holder-block"},
		{Name: "gate-write", Limit: 10, AtLeast: true, Unit: "M blocks/s, mixed stream, one writer"},
		{Name: "one-holder-ids", Limit: 150, Unit: "ns, p50, from block ids, 2,000 prompts once each, as published"},
		{Name: "one-holder-locals", Limit: 250, Unit: "ns, p50, from local hashes, any of all prompts, 16 blocks"},
		{Name: "gate-cell", Limit: 3000, Unit: "ns, p99, 78 blocks, 64 holders, once each, as published"},
		{Name: "gate-cell-cold", Limit: 3000, Unit: "ns, p99, 78 blocks, 64 holders, the core's caches emptied before"},
		{Name: "gate-cell-p50", Unit: "ns, p50, as published"},
		{Name: "gate-cell-cold-p50", Unit: "ns, p50, emptied"},
		{Name: "gate-cell-cold-cpu", Unit: "ns of processor time, p99, emptied"},
		{Name: "gate-cell-first", Unit: "ns, p99, emptied, and not asked for shortly before: the hypervisor's waits, too"},
		{Name: "gate-dependent", Unit: "ns, a load that waits for the one before, in the same process, 128 MiB"},
		{Name: "one-holder-loads", Unit: "such loads in the time of one-holder-any: the structure needs three, a table's line, a segment, its ids"},
		{Name: "gate-load-p50", Unit: "ns, a single load after the caches were emptied, beside the cell"},
		{Name: "gate-load-p99", Unit: "ns, p99 of such loads: what the machine adds to some"},
		{Name: "gate-write-cpu", AtLeast: true, Unit: "M blocks a second of processor time"},
		{Name: "one-holder-any", Unit: "ns, p50, from block ids, any of all prompts, 16 blocks"},
		{Name: "one-holder-warm", Unit: "ns, p50, from block ids, a thousand prompts that come again"},
		{Name: "miss", Unit: "ns, p50, unknown prompt, from local hashes"},
		{Name: "diverging", Unit: "ns, p50, half of a prompt is known, from local hashes"},
	}},
	{name: "machine", run: machine, bars: []bars.Bar{
		{Name: "machine-dependent", Unit: "ns a load from 128 MiB that waits for the one before"},
		{Name: "machine-grouped", Unit: "ns a line to read and write, eight at a time, 128 MiB"},
		{Name: "machine-fresh", Unit: "ns a KiB of memory touched for the first time"},
		{Name: "machine-load-p50", Unit: "ns, a single load after the core's caches were emptied"},
		{Name: "machine-load-p99", Unit: "ns, p99"},
		{Name: "machine-empty-p99", Unit: "ns, p99 of measuring nothing"},
	}},
	{name: "private", run: bytesOf(workload.Private), bars: []bars.Bar{{Name: "private-bytes", Limit: 16, Unit: "bytes a holder-block"}}},
	{name: "fragmented", run: fragmented, bars: []bars.Bar{
		{Name: "fragmented-cell", Limit: 8000, Unit: "ns, cold p99, 78 blocks, 64 holders"},
		{Name: "fragmented-cell-cpu", Unit: "ns of processor time, cold p99"},
		{Name: "fragmented-bytes", Unit: "bytes a holder-block"},
	}},
	{name: "deep", run: deep, bars: []bars.Bar{{Name: "deep", Limit: 1000, Unit: "ns, 8,192 blocks, one holder, from block ids"}, {Name: "deep-locals", Unit: "ns, the same from local hashes"}}},
	{name: "shared", run: shared, bars: []bars.Bar{
		{Name: "shared-per-holder", Limit: 1, Unit: "ns a holder beyond the walk, 1,024 holders, said by sets as decisions ask"},
		{Name: "shared-named", Unit: "ns a holder, each by name"},
	}},
	{name: "under-writes", run: underWrites, bars: []bars.Bar{
		{Name: "under-writes", Limit: 1.5, Unit: "median of queries beside two writers, over quiet"},
		{Name: "no-writer-starves", Limit: 0.5, AtLeast: true, Unit: "slower writer over the faster one"},
	}},
	{name: "hot-prompt", run: hotPrompt, bars: []bars.Bar{{Name: "hot-prompt", Limit: 0.5, AtLeast: true, Unit: "writes below one shared prompt, over disjoint ones; two writers, 1,024 ledgers"}}},
	{name: "scaling", run: scaling, bars: []bars.Bar{{Name: "read-scaling", Limit: 1.1, Unit: "processor time of a query on two cores, over one"}}},
	{name: "churn", run: churn, bars: []bars.Bar{
		{Name: "churn-growth", Limit: 1.05, Unit: "resident memory after, over half way; 50 M stores and removals"},
		{Name: "churn-live", Limit: 1, Unit: "blocks in memory over blocks held"},
		{Name: "churn-write", AtLeast: true, Unit: "M blocks/s stored and removed"},
	}},
	{name: "lives", run: lives, bars: []bars.Bar{
		{Name: "lives-slots", Limit: 4, Unit: "small ids after 20,000 lives, beside that of a worker that stays"},
		{Name: "lives-growth", Limit: 1.05, Unit: "resident memory after 20,000 lives, over half way; 1 M blocks stay"},
	}},
	{name: "drop", run: drop, bars: []bars.Bar{{Name: "drop-query", Limit: 1.5, Unit: "p99 of queries while a worker of 5 M blocks goes, over quiet"}}},
	{name: "full", run: full, bars: []bars.Bar{
		{Name: "full-few", Limit: 3, Unit: "a store that drives out as many blocks, over one that does not; 8 ledgers, 1 M blocks"},
		{Name: "full-many", Limit: 3, Unit: "the same, 1,024 ledgers, 100,000 blocks"},
	}},
	{name: "agentic", run: bytesOf(workload.Agentic), bars: []bars.Bar{{Name: "agentic-bytes", Unit: "bytes a holder-block"}}},
	{name: "churning", run: bytesOf(workload.Churn), bars: []bars.Bar{{Name: "churn-bytes", Unit: "bytes a holder-block"}}},
	{name: "fleet", run: bytesOf(workload.Fleet), bars: []bars.Bar{{Name: "fleet-bytes", Unit: "bytes a holder-block"}}},
	{name: "large", run: large, slow: true, bars: []bars.Bar{
		{Name: "large-resident", Limit: 1.5, Unit: "GiB for 100 M holder-blocks"},
		{Name: "large-cell", Limit: 4000, Unit: "ns, cold p99, 78 blocks, 64 holders"},
		{Name: "large-cell-cpu", Unit: "ns of processor time, cold p99"},
		{Name: "gc-growth", Limit: 2, Unit: "processor time of a garbage collection with 100 M holder-blocks, over 1 M"},
		{Name: "gc-1m", Unit: "ms of processor time a collection with 1 M holder-blocks"},
		{Name: "gc-10m", Unit: "ms, with 10 M"},
		{Name: "gc-100m", Unit: "ms, with 100 M"},
		{Name: "gc-scan-1m", Unit: "MB that it looks through for pointers, with 1 M"},
		{Name: "gc-scan-100m", Unit: "MB, with 100 M"},
		{Name: "gc-pause-100m", Unit: "us, the longest time that everything stood still, with 100 M"},
		{Name: "large-write", AtLeast: true, Unit: "M blocks/s"},
	}},
}

func gate(r *report) {
	l := load(workload.Gate, r.quick)
	r.value("gate-bytes", l.bytes/float64(l.blocks))
	r.value("gate-write", float64(l.told)/l.seconds/1e6)

	// These before anything else is asked for.
	r.value("one-holder-ids", bars.Quantile(l.once(1, 0, 1), 0.5))
	published := l.once(64, 78, 20)
	r.value("gate-cell", bars.Quantile(published, 0.99))
	r.value("gate-cell-p50", bars.Quantile(published, 0.5))

	var locals []block.Local
	var chain []block.ID
	dst := make([]index.Match, 0, 256)
	ones := l.stream.Members(1, 8)
	next := func(i int) {
		m := ones[scatter(i)%uint64(len(ones))]
		locals = l.stream.AppendLocals(locals[:0], m[0], m[1])
		// What a prompt of a chat has: a few hundred tokens, blocks of 16.
		locals = locals[:min(len(locals), 16)]
		chain = workload.Chain(chain[:0], locals)
	}
	// The stream's keyspace; see workload.Chain.
	fromLocals := func(int) { chain, dst = l.ix.MatchLocals(workload.First(locals[0]), locals[1:], chain, dst[:0]) }
	anyOne := bars.Quantile(measure.Each(measure.WallTime, 100_000, next, func(int) { dst = l.ix.Match(chain, dst[:0]) }), 0.5)
	r.value("one-holder-any", anyOne)
	r.value("one-holder-locals", bars.Quantile(measure.Each(measure.WallTime, 100_000, next, fromLocals), 0.5))
	r.value("one-holder-warm", bars.Quantile(measure.Each(measure.WallTime, 100_000, func(i int) { next(i % 1000) }, func(int) { dst = l.ix.Match(chain, dst[:0]) }), 0.5))
	r.value("miss", bars.Quantile(measure.Each(measure.WallTime, 100_000, func(i int) { next(i); locals[0]++ }, fromLocals), 0.5))
	r.value("diverging", bars.Quantile(measure.Each(measure.WallTime, 100_000, func(i int) { next(i); locals[len(locals)/2]++ }, fromLocals), 0.5))
	w := control()
	wait := dependent(w)
	r.value("gate-dependent", wait)
	r.value("one-holder-loads", anyOne/wait)
	one := oneLoad(w, 2000)
	r.value("gate-load-p50", bars.Quantile(one, 0.5))
	r.value("gate-load-p99", bars.Quantile(one, 0.99))
	cell := l.cell(measure.WallTime, 64, 78, 2000, false)
	r.value("gate-cell-cold", bars.Quantile(cell, 0.99))
	r.value("gate-cell-cold-p50", bars.Quantile(cell, 0.5))
	r.value("gate-cell-cold-cpu", bars.Quantile(l.cell(measure.ThreadTime, 64, 78, 2000, false), 0.99))
	r.value("gate-cell-first", bars.Quantile(l.cell(measure.WallTime, 64, 78, 2000, true), 0.99))
	r.value("gate-write-cpu", float64(l.told)/l.cpu/1e6)
}

func bytesOf(p workload.Profile) func(*report) {
	name := p.Name + "-bytes"
	return func(r *report) {
		l := load(p, r.quick)
		r.value(name, l.bytes/float64(l.blocks))
		runtime.KeepAlive(l)
	}
}

func fragmented(r *report) {
	l := load(workload.Fragmented, r.quick)
	r.value("fragmented-bytes", l.bytes/float64(l.blocks))
	r.value("fragmented-cell", bars.Quantile(l.cell(measure.WallTime, 64, 78, 2000, false), 0.99))
	r.value("fragmented-cell-cpu", bars.Quantile(l.cell(measure.ThreadTime, 64, 78, 2000, false), 0.99))
}

// chainOf makes ids that are nobody else's.
func chainOf(dst []block.ID, seed uint64, n int) []block.ID {
	for i := range n {
		dst = append(dst, block.ID((seed<<20+uint64(i)+1)*0x9e3779b97f4a7c15))
	}
	return dst
}

func publish(ix *index.Index, t int, chains ...[]block.ID) *index.Ledger {
	l := ix.NewLedger(fleet.TargetID(t), false)
	var parent index.Parent
	parent.IsRoot = true
	for _, c := range chains {
		l.Store(parent, c, fleet.Device)
		parent = index.Parent{ID: c[len(c)-1]}
	}
	ix.Publish(l)
	return l
}

func deep(r *report) {
	ix := index.New(index.Config{})
	chain := chainOf(nil, 1, 8192)
	publish(ix, 1, chain)
	dst := make([]index.Match, 0, 8)
	median := func(calls int, ask func(int)) float64 {
		all := make([]float64, 0, 9)
		for range 9 {
			all = append(all, measure.PerCall(calls, ask))
		}
		return bars.Quantile(all, 0.5)
	}
	r.value("deep", median(20_000, func(int) { dst = ix.Match(chain, dst[:0]) }))
	locals := make([]block.Local, 8192)
	for i := range locals {
		locals[i] = block.Local(scatter(i))
	}
	chain = workload.Chain(nil, locals)
	publish(ix, 2, chain)
	r.value("deep-locals", median(2000, func(int) { chain, dst = ix.MatchLocals(workload.First(locals[0]), locals[1:], chain, dst[:0]) }))
}

func shared(r *report) {
	prefix := chainOf(nil, 1, 64)
	named, layers := make([]index.Match, 0, 2048), new(index.Layers)
	cost := func(holders int) (layered, byName float64) {
		ix := index.New(index.Config{})
		var query []block.ID
		for t := range holders {
			tail := chainOf(nil, uint64(t)+2, 64)
			publish(ix, t, prefix, tail)
			query = append(append(query[:0], prefix...), tail...)
		}
		median := func(match func()) float64 {
			all := make([]float64, 0, 9)
			for range 9 {
				all = append(all, measure.PerCall(20_000, func(int) { match() }))
			}
			return bars.Quantile(all, 0.5)
		}
		return median(func() { ix.MatchLayers(query, layers) }), median(func() { named = ix.Match(query, named[:0]) })
	}
	layered, byName := cost(1024)
	one, oneByName := cost(1)
	r.value("shared-per-holder", (layered-one)/1023)
	r.value("shared-named", (byName-oneByName)/1023)
}

// churner stores prompts and evicts the oldest ones from the leaf, with so many live blocks.
type churner struct {
	l      *index.Ledger
	chains [][]block.ID
	n      int
	seed   uint64
	blocks int
}

func newChurner(ix *index.Index, t, live int) *churner {
	return &churner{l: publish(ix, t), chains: make([][]block.ID, max(live/64, 1)), seed: uint64(t+1) << 30}
}

func (c *churner) step() {
	k := c.n % len(c.chains)
	if old := c.chains[k]; len(old) > 0 {
		slices.Reverse(old)
		for i := 0; i < len(old); i += workload.Batch {
			c.l.Remove(old[i:min(i+workload.Batch, len(old))], fleet.Device)
		}
		c.blocks += len(old)
	}
	c.n++
	ids := chainOf(c.chains[k][:0], c.seed+uint64(c.n), 64)
	c.chains[k] = ids
	parent := index.Parent{IsRoot: true}
	for i := 0; i < len(ids); i += workload.Batch {
		c.l.Store(parent, ids[i:i+workload.Batch], fleet.Device)
		parent = index.Parent{ID: ids[i+workload.Batch-1]}
	}
	c.blocks += len(ids)
}

func underWrites(r *report) {
	l := load(workload.Gate, true)
	members := l.stream.Members(64, 78)
	dst := make([]index.Match, 0, 256)
	chains := make([][]block.ID, 512)
	for i := range chains {
		m := members[scatter(i)%uint64(len(members))]
		chains[i] = l.stream.AppendChain(nil, m[0], m[1])[:78]
	}
	query := func(i int) { dst = l.ix.Match(chains[i%len(chains)], dst[:0]) }
	nothing := func(int) {}
	quiet := bars.Quantile(measure.Each(measure.WallTime, 200_000, nothing, query), 0.5)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var done [2]float64
	for w := range done {
		wg.Go(func() {
			c := newChurner(l.ix, 10_000+w, 100_000)
			for !stop.Load() {
				c.step()
			}
			done[w] = float64(c.blocks)
		})
	}
	time.Sleep(100 * time.Millisecond)
	busy := bars.Quantile(measure.Each(measure.WallTime, 400_000, nothing, query), 0.5)
	for start := time.Now(); time.Since(start) < time.Second; {
		query(0)
	}
	stop.Store(true)
	wg.Wait()
	r.value("under-writes", busy/quiet)
	r.value("no-writer-starves", min(done[0], done[1])/max(done[0], done[1]))
}

func hotPrompt(r *report) {
	const ledgers, tail, writers = 1024, 64, 2
	write := func(isShared bool) float64 {
		ix := index.New(index.Config{})
		own := make([]*index.Ledger, ledgers)
		heads := make([][]block.ID, ledgers)
		tails := make([][]block.ID, ledgers)
		for t := range own {
			seed := uint64(1)
			if !isShared {
				seed = uint64(t + 1)
			}
			heads[t] = chainOf(nil, seed, 64)
			tails[t] = chainOf(nil, uint64(t)+5000, tail)
			own[t] = publish(ix, t)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for range 8 {
					for t := w; t < ledgers; t += writers {
						own[t].Store(index.Parent{IsRoot: true}, heads[t], fleet.Device)
						for i := 0; i < tail; i += workload.Batch {
							parent := heads[t][63]
							if i > 0 {
								parent = tails[t][i-1]
							}
							own[t].Store(index.Parent{ID: parent}, tails[t][i:i+workload.Batch], fleet.Device)
						}
						own[t].ClearAll()
					}
				}
			})
		}
		wg.Wait()
		return 1 / time.Since(start).Seconds()
	}
	all := make([]float64, 0, 5)
	for range 5 {
		all = append(all, write(true)/write(false))
	}
	r.value("hot-prompt", bars.Quantile(all, 0.5))
}

func scaling(r *report) {
	ix := index.New(index.Config{})
	chain := chainOf(nil, 1, 78)
	for t := range 64 {
		publish(ix, t, chain)
	}
	ns := func(cores int) float64 {
		runtime.GOMAXPROCS(cores)
		out := make([]float64, cores)
		var wg sync.WaitGroup
		for c := range cores {
			wg.Go(func() {
				dst := make([]index.Match, 0, 64)
				// Processor time: a line that two cores write to costs that, a neighbour on the machine does not.
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				const calls = 500_000
				start := measure.ThreadTime()
				for range calls {
					dst = ix.Match(chain, dst[:0])
				}
				out[c] = (measure.ThreadTime() - start) / calls
			})
		}
		wg.Wait()
		return slices.Max(out)
	}
	all := make([]float64, 0, 9)
	for range 9 {
		one := ns(1)
		all = append(all, ns(2)/one)
	}
	r.value("read-scaling", bars.Quantile(all, 0.5))
}

func churn(r *report) {
	total := 50_000_000
	if r.quick {
		total /= 10
	}
	ix := index.New(index.Config{})
	all := make([]*churner, 16)
	for t := range all {
		all[t] = newChurner(ix, t, 10_000)
	}
	until := func(n int) {
		for done := 0; done < n; {
			done = 0
			for _, c := range all {
				for range 64 {
					c.step()
				}
				done += c.blocks
			}
		}
	}
	start := time.Now()
	until(total / 2)
	half := measure.Resident()
	until(total)
	r.value("churn-write", float64(total)/time.Since(start).Seconds()/1e6)
	r.value("churn-growth", measure.Resident()/half)
	s := ix.Stats()
	r.value("churn-live", float64(s.DistinctBlocks)/float64(s.HolderBlocks))
}

// lives registers, fills and removes workers. One that stays has a million blocks: an empty process is 5 MB of program and
// runtime, which come and go by a tenth, and in 20 MB a hundred bytes left behind by each life are 5 %.
func lives(r *report) {
	ix := index.New(index.Config{})
	own := make([][]block.ID, 1000)
	for i := range own {
		own[i] = chainOf(nil, uint64(i)+2, 1000)
	}
	publish(ix, 7)
	for _, c := range own {
		ix.Visible(7).Store(index.Parent{IsRoot: true}, c, fleet.Device)
	}
	own = nil
	const all = 20_000
	chain := chainOf(nil, 1, 1000)
	var half float64
	for i := range all {
		if i == all/2 {
			half = measure.Resident()
		}
		publish(ix, i%7, chain)
		ix.Drop(fleet.TargetID(i % 7))
		ix.Reclaim(2000)
	}
	r.value("lives-slots", float64(ix.Stats().Slots-1))
	r.value("lives-growth", measure.Resident()/half)
}

func drop(r *report) {
	l := load(workload.Gate, true)
	blocks := 5_000_000
	if r.quick {
		blocks /= 10
	}
	own := make([][]block.ID, blocks/512)
	for i := range own {
		own[i] = chainOf(nil, uint64(i)+1<<35, 512)
	}
	big := publish(l.ix, 20_000)
	for _, c := range own {
		big.Store(index.Parent{IsRoot: true}, c, fleet.Device)
	}
	members := l.stream.Members(64, 78)
	dst := make([]index.Match, 0, 256)
	var chain []block.ID
	next := func(i int) {
		m := members[scatter(i)%uint64(len(members))]
		chain = l.stream.AppendChain(chain[:0], m[0], m[1])[:78]
	}
	query := func(int) { dst = l.ix.Match(chain, dst[:0]) }
	quiet := bars.Quantile(measure.Each(measure.WallTime, 100_000, next, query), 0.99)
	l.ix.Drop(20_000)
	var wg sync.WaitGroup
	wg.Go(func() {
		// As the janitor does: a step now and then.
		for l.ix.Reclaim(50_000) > 0 {
			time.Sleep(time.Millisecond)
		}
	})
	busy := bars.Quantile(measure.Each(measure.WallTime, 100_000, next, query), 0.99)
	wg.Wait()
	r.value("drop-query", busy/quiet)
}
