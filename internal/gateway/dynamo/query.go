package dynamo

import (
	"cmp"
	"net/http"
	"slices"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// row is what a question finds on one rank.
type row struct {
	load    rankLoad // without the question
	matched *kvoraclev1.TokensByTier
	misses  uint64 // prompt tokens that it would compute
}

// ask answers a question that chooses nothing: the ranks that can be chosen, in order, and how long the prompt is.
func (x *exchange) ask() (rows []row, tokens, size uint64, err error) {
	r := &selectRequest{}
	if err := x.body(r); err != nil {
		return nil, 0, 0, err
	}
	q, err := x.question(r)
	if err != nil {
		return nil, 0, 0, err
	}
	q.DryRun, q.Explain = true, true
	a, err := x.route(q)
	if err != nil {
		return nil, 0, 0, err
	}
	n, err := x.blockSize(q.GetModel(), false)
	if err != nil {
		return nil, 0, 0, err
	}
	all, err := x.fleet(q.GetModel())
	if err != nil {
		return nil, 0, 0, err
	}
	type at struct {
		worker string
		rank   uint32
	}
	loads := make(map[at]rankLoad)
	for _, w := range all {
		if w.GetState() == kvoraclev1.WorkerState_WORKER_STATE_READY {
			for _, rank := range w.GetRanks() {
				loads[at{w.GetSpec().GetWorkerId(), rank.GetDpRank()}] = loadOf(w, rank)
			}
		}
	}
	for _, c := range a.GetCandidates() {
		if load, ok := loads[at{c.GetTarget().GetWorkerId(), c.GetTarget().GetDpRank()}]; ok {
			rows = append(rows, row{load, c.GetMatched(), c.GetUncachedTokens()})
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.load.ID, b.load.ID), cmp.Compare(a.load.Rank, b.load.Rank))
	})
	return rows, a.GetPromptTokens(), uint64(n), nil
}

// potentialLoads is POST /potential_loads: what would wait on each rank if it got the request.
func (d *Door) potentialLoads(x *exchange) error {
	rows, _, _, err := x.ask()
	if err != nil {
		return err
	}
	out := make([]rankLoad, len(rows))
	for i, r := range rows {
		out[i] = r.load
		out[i].Prefill += r.misses
	}
	return x.answer(http.StatusOK, out)
}

// overlapScores is POST /overlap_scores: how many of a prompt's blocks each rank holds. A tier counts with those before it; its
// extension is its own.
func (d *Door) overlapScores(x *exchange) error {
	rows, tokens, size, err := x.ask()
	if err != nil {
		return err
	}
	out := overlapScores{BlockSize: size, Blocks: tokens / size, Workers: make([]overlapScore, len(rows)), Shared: sharedScore{Ranges: [][2]uint64{}}}
	for i, r := range rows {
		o := &out.Workers[i]
		o.ID, o.Rank, o.Device = r.load.ID, r.load.Rank, r.matched.GetDevice()/size
		o.HostMore, o.DiskMore = r.matched.GetHost()/size, (r.matched.GetDisk()+r.matched.GetShared())/size
		o.Host = o.Device + o.HostMore
		o.Disk = o.Host + o.DiskMore
	}
	return x.answer(http.StatusOK, out)
}
