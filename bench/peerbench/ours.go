package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/kvops"
	"github.com/kvoracle/kvoracle/bench/measure"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// chunk is how many operations are made ready before the clock starts.
const chunk = 4096

// player plays operations to our index.
type player struct {
	ix      *index.Index
	ledgers []*index.Ledger
	seconds float64
	told    int
}

func newPlayer(holders int) *player {
	p := &player{ix: index.New(index.Config{})}
	for h := range holders {
		l := p.ix.NewLedger(fleet.TargetID(h), false)
		p.ix.Publish(l)
		p.ledgers = append(p.ledgers, l)
	}
	return p
}

func (p *player) play(ops []kvops.Record) {
	start := time.Now()
	for i := range ops {
		op := &ops[i]
		p.told += len(op.IDs)
		if op.Kind == kvops.Remove {
			p.ledgers[op.Holder].Remove(op.IDs, fleet.Device)
		} else {
			p.ledgers[op.Holder].Store(index.Parent{ID: op.Parent, IsRoot: op.IsRoot}, op.IDs, fleet.Device)
		}
	}
	p.seconds += time.Since(start).Seconds()
	clear(ops)
}

// fill plays all operations of a file and returns the questions behind them, by group.
func (p *player) fill(r *kvops.Reader) (bytes float64, questions [][][]block.Local, err error) {
	before := measure.Resident()
	questions = make([][][]block.Local, len(groups))
	ops := make([]kvops.Record, 0, chunk)
	isFilled := false
	for {
		var rec kvops.Record
		if err := r.Next(&rec); errors.Is(err, io.EOF) {
			return bytes, questions, nil
		} else if err != nil {
			return 0, nil, err
		}
		if rec.Kind == kvops.Query {
			if !isFilled {
				p.play(ops)
				isFilled = true
				bytes = measure.Resident() - before
			}
			if int(rec.Group) < len(groups) {
				questions[rec.Group] = append(questions[rec.Group], rec.Locals)
			}
			continue
		}
		if ops = append(ops, rec); len(ops) == chunk {
			p.play(ops)
			ops = ops[:0]
		}
	}
}

// ours measures our index on a file and prints raw values.
func ours(file io.Reader, out io.Writer) error {
	r, err := kvops.NewReader(file)
	if err != nil {
		return err
	}
	value := func(name string, v float64) { fmt.Fprintf(out, "value %s %g\n", name, v) }
	p := newPlayer(r.Holders())
	bytes, questions, err := p.fill(r)
	if err != nil {
		return err
	}
	for i := range groups {
		if len(questions[i]) == 0 {
			return fmt.Errorf("no questions of group %s", groups[i].name)
		}
	}
	held := float64(p.ix.Stats().HolderBlocks)
	value("held", held)
	value("bytes", bytes/held)
	value("write", float64(p.told)/p.seconds/1e6)
	runtime.GC()
	dst := make([]index.Match, 0, 4096)
	chain := make([]block.ID, 0, deepBlocks)
	// The format's first id is the first local hash.
	locals := func(q []block.Local) { chain, dst = p.ix.MatchLocals(block.ID(q[0]), q[1:], chain, dst[:0]) }
	ids := func([]block.Local) { dst = p.ix.Match(chain, dst[:0]) }
	nothing := func([]block.Local) {}
	prepare := func(q []block.Local) { chain = kvops.Chain(chain[:0], q) }
	ask := func(all [][]block.Local, before, f func([]block.Local)) float64 {
		return bars.Quantile(measure.Each(measure.WallTime, len(all), func(i int) { before(all[i]) }, func(i int) { f(all[i]) }), 0.5)
	}
	value("one", ask(questions[one], nothing, locals))
	value("one-ids", ask(questions[one], prepare, ids))
	value("miss", ask(questions[miss], nothing, locals))
	cold := measure.NewFlush()
	coldly := func(before, f func([]block.Local)) (p50, p99 float64) {
		all := questions[cell]
		times := measure.Each(measure.WallTime, len(all)-1, func(i int) {
			cold.Run()
			for range 3 {
				start := measure.WallTime()
				locals(all[0])
				_ = measure.WallTime() - start
			}
			before(all[i+1])
		}, func(i int) { f(all[i+1]) })
		return bars.Quantile(times, 0.5), bars.Quantile(times, 0.99)
	}
	// The question has just come in: it is in the caches, as in the other programs.
	var read block.Local
	warm := func(q []block.Local) {
		for _, l := range q {
			read += l
		}
	}
	p50, p99 := coldly(warm, locals)
	value("cell-p50", p50)
	value("cell-p99", p99)
	p50, p99 = coldly(prepare, ids)
	value("cell-p50-ids", p50)
	value("cell-p99-ids", p99)
	long := questions[deep][0]
	loop := func(f func([]block.Local)) float64 {
		all := make([]float64, 9)
		for i := range all {
			all[i] = measure.PerCall(500, func(int) { f(long) })
		}
		return bars.Quantile(all, 0.5)
	}
	value("deep", loop(locals))
	value("deep-ids", loop(ids))
	for i, g := range groups {
		holders, blocks := 0, 0
		for _, q := range questions[i] {
			locals(q)
			holders += len(dst)
			for _, m := range dst {
				blocks += int(m.Blocks[fleet.Device])
			}
		}
		value(g.name+"-holders", float64(holders))
		value(g.name+"-blocks", float64(blocks))
	}
	return nil
}
