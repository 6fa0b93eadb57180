package main

import (
	"os"

	"github.com/kvoracle/kvoracle/bench/kvops"
	"github.com/kvoracle/kvoracle/bench/workload"
	"github.com/kvoracle/kvoracle/internal/block"
)

// group is a set of questions of one kind; its number in the file is its place here.
type group struct {
	name  string
	count int
}

const (
	one = iota
	cell
	deep
	miss
)

var groups = []group{{"one", 100_000}, {"cell", 2000}, {"deep", 1}, {"miss", 20_000}}

const (
	oneBlocks  = 16
	cellBlocks = 78
	deepBlocks = 8192
)

// scatter spreads numbers.
func scatter(i int) uint64 { return (uint64(i) + 1) * 0x9e3779b97f4a7c15 >> 20 }

// writeFile writes the gate workload with so many holder-blocks, and one in part of the questions.
func writeFile(path string, blocks, part int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	p := workload.Gate
	p.Blocks = blocks
	s := workload.New(p, 1)
	s.ForPeers = true
	w := kvops.NewWriter(f, p.Holders+1)
	var op workload.Op
	for times := s.Next(&op); times > 0; times = s.Next(&op) {
		r := kvops.Record{Kind: kvops.Store, Holder: op.Holder, IsRoot: op.IsRoot, Parent: op.Parent, IDs: op.IDs, Locals: op.Locals}
		if op.IsRemove {
			r = kvops.Record{Kind: kvops.Remove, Holder: op.Holder, IDs: op.IDs}
		}
		for range times {
			w.Write(&r)
		}
	}
	// One more holder has one long prompt.
	long := make([]block.Local, deepBlocks)
	for i := range long {
		long[i] = block.Local(scatter(i)<<20 | 1)
	}
	ids := kvops.Chain(nil, long)
	for i := 0; i < deepBlocks; i += workload.Batch {
		r := kvops.Record{Kind: kvops.Store, Holder: p.Holders, IsRoot: i == 0, IDs: ids[i : i+workload.Batch], Locals: long[i : i+workload.Batch]}
		if i > 0 {
			r.Parent = ids[i-1]
		}
		w.Write(&r)
	}
	ones, cells := s.Members(1, oneBlocks), s.Members(64, cellBlocks)
	var locals []block.Local
	ask := func(group int, members [][2]int, blocks, other int) {
		for i := range groups[group].count/part + 1 {
			m := members[scatter(i)%uint64(len(members))]
			locals = s.AppendLocals(locals[:0], m[0], m[1])[:blocks]
			locals[0] += block.Local(other)
			w.Write(&kvops.Record{Kind: kvops.Query, Group: uint8(group), Locals: locals})
		}
	}
	ask(one, ones, oneBlocks, 0)
	ask(cell, cells, cellBlocks, 0)
	w.Write(&kvops.Record{Kind: kvops.Query, Group: deep, Locals: long})
	ask(miss, ones, oneBlocks, 1)
	return w.Close()
}
