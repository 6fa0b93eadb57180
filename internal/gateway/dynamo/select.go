package dynamo

import (
	"crypto/rand"
	"math"
	"net/http"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// hashScheme is what Dynamo computes for plain text; package block has the same.
const hashScheme = "xxh3-64/1337"

// question makes the oracle's question of a request.
func (x *exchange) question(r *selectRequest) (*kvoraclev1.RouteRequest, error) {
	if err := r.check(); err != nil {
		return nil, badRequest(err.Error())
	}
	q := &kvoraclev1.RouteRequest{Model: r.model(), CacheSalt: r.Salt, ExpectedOutputTokens: r.Output, SessionId: r.Session}
	q.Priority = int32(min(r.Strict, math.MaxInt32))
	if r.Context != nil {
		q.SessionId = r.Context.ID
	}
	if r.Lora != "" {
		q.Lora = &kvoraclev1.LoraAdapter{Name: r.Lora}
	}
	if r.Allowed != nil && len(*r.Allowed) == 0 {
		return nil, status.Error(codes.Unavailable, "allowed_worker_ids allows none")
	}
	var err error
	switch {
	case r.Pinned != nil:
		q.AllowedWorkers, err = x.namesOf(q.GetModel(), r.Pinned.ID)
	case r.Allowed != nil:
		q.AllowedWorkers, err = x.namesOf(q.GetModel(), *r.Allowed...)
	}
	if err != nil {
		return nil, err
	}
	if r.pinnedRank() != nil {
		q.MaxAlternatives = mostRanks
	}
	if r.Tokens != nil {
		q.Prompt = &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: r.Tokens}}
		return q, nil
	}
	size, err := x.blockSize(q.GetModel(), false)
	if err != nil {
		return nil, err
	}
	hashes := make([]uint64, len(r.Hashes))
	for i, h := range r.Hashes {
		hashes[i] = uint64(h)
	}
	q.Prompt = &kvoraclev1.RouteRequest_BlockHashes{BlockHashes: &kvoraclev1.BlockHashPrompt{
		HashScheme: hashScheme, BlockSize: size, LocalHashes: hashes, TokenCount: *r.Length,
	}}
	return q, nil
}

// route asks. Block sizes are remembered, so hashes that are taken for another one are asked about once more.
func (x *exchange) route(q *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
	const route = kvoraclev1.RouteService_Route_FullMethodName
	a := &kvoraclev1.RouteResponse{}
	err := x.call(route, q, a)
	if h := q.GetBlockHashes(); h != nil && isMismatch(err) {
		size, e := x.blockSize(q.GetModel(), true)
		if e == nil && size != h.GetBlockSize() {
			h.BlockSize = size
			err = x.call(route, q, a)
		}
	}
	if status.Code(err) == codes.NotFound {
		err = unscheduled(q.GetModel())
	}
	return a, err
}

// mostRanks is how many other ranks of a worker are looked at for one that is pinned: all that the oracle names.
const mostRanks = 16

// pinnedRank is the rank that must be chosen; nil: any.
func (r *selectRequest) pinnedRank() *uint32 {
	if r.Pinned == nil {
		return nil
	}
	return r.Pinned.Rank
}

// onRank makes an answer be about a rank of the only worker that was allowed. It is false if that cannot be chosen.
func onRank(a *kvoraclev1.RouteResponse, rank uint32) bool {
	if a.GetTarget().GetDpRank() == rank {
		return true
	}
	for _, o := range a.GetAlternatives() {
		if o.GetTarget().GetDpRank() == rank {
			a.Target, a.Matched = o.GetTarget(), o.GetMatched()
			return true
		}
	}
	return false
}

// noRank is Dynamo's answer where the rank that is pinned cannot be chosen.
func noRank(rank uint32) error {
	return status.Errorf(codes.Unavailable, "the pinned worker has no schedulable dp_rank %d", rank)
}

// shown is the answer of a selection.
func shown(r *selectRequest, a *kvoraclev1.RouteResponse) *selected {
	m, t := a.GetMatched(), a.GetTarget()
	o := overlap{GPU: m.GetDevice(), Ranks: map[string]uint64{strconv.Itoa(int(t.GetDpRank())): m.GetDevice()}}
	o.CPU = o.GPU + m.GetHost()
	o.Disk = o.CPU + m.GetDisk() + m.GetShared()
	o.Longest = o.Disk
	return &selected{
		SelectionID: r.SelectionID, place: r.place, ID: idOf(t.GetWorkerId()), Rank: t.GetDpRank(), Endpoint: t.GetAddress(),
		Overlap: o, Prefill: a.GetPromptTokens() - min(o.Longest, a.GetPromptTokens()),
	}
}

// choose is POST /select: nothing is booked, and with an id the selection can be booked later.
func (d *Door) choose(x *exchange) error {
	r := &selectRequest{}
	if err := x.body(r); err != nil {
		return err
	}
	q, err := x.question(r)
	if err != nil {
		return err
	}
	q.DryRun = true
	a, err := x.route(q)
	if err != nil {
		return err
	}
	if rank := r.pinnedRank(); rank != nil && !onRank(a, *rank) {
		return noRank(*rank)
	}
	if r.SelectionID != "" {
		q.DryRun, q.RequestId = false, r.SelectionID
		d.keep(&pending{key: key(r), at: x.now, size: proto.Size(q), ask: q, target: a.GetTarget()})
	}
	out := shown(r, a)
	if out.BlockSize, err = x.blockSize(q.GetModel(), false); err != nil {
		return err
	}
	return x.answer(http.StatusOK, out)
}

// key names a pending selection.
func key(r *selectRequest) string { return r.model() + "\x00" + r.SelectionID }

// chooseAndReserve is POST /select_and_reserve: choice and booking are one.
func (d *Door) chooseAndReserve(x *exchange) error {
	r := &selectRequest{}
	if err := x.body(r); err != nil {
		return err
	}
	q, err := x.question(r)
	if err != nil {
		return err
	}
	if r.SelectionID == "" {
		r.SelectionID = rand.Text()
	}
	size, err := x.blockSize(q.GetModel(), false)
	if err != nil {
		return err
	}
	q.RequestId = r.SelectionID
	var on *kvoraclev1.Target
	if rank := r.pinnedRank(); rank != nil {
		on = &kvoraclev1.Target{WorkerId: q.GetAllowedWorkers()[0], DpRank: *rank}
	}
	a, err := d.booked(x, q, on, size)
	if err != nil {
		return err
	}
	out := shown(r, a)
	out.Sequence, out.Length, out.Track, out.BlockSize = r.Sequence, a.GetPromptTokens(), true, size
	return x.answer(http.StatusOK, out)
}

// booked books a question under its request id, on a target if one is given.
func (d *Door) booked(x *exchange, q *kvoraclev1.RouteRequest, on *kvoraclev1.Target, size uint32) (*kvoraclev1.RouteResponse, error) {
	id := q.GetRequestId()
	if !d.begin(id, x.now) {
		return nil, status.Error(codes.AlreadyExists, "selection "+strconv.Quote(id)+" is already reserved or being reserved")
	}
	if on != nil {
		q.AllowedWorkers, q.MaxAlternatives = []string{on.GetWorkerId()}, mostRanks
	}
	q.MaxQueueSeconds = d.wait
	a, err := x.route(q)
	d.made(id, a.GetDecisionId(), size)
	if err != nil {
		return nil, err
	}
	if on == nil || on.GetDpRank() == a.GetTarget().GetDpRank() {
		return a, nil
	}
	e := &kvoraclev1.ProgressEvent{DecisionId: a.GetDecisionId(), Step: &kvoraclev1.ProgressEvent_Dispatched{Dispatched: &kvoraclev1.Dispatched{Target: on}}}
	if !onRank(a, on.GetDpRank()) {
		d.find(id, x.now, true, false)
		e.Step, err = &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}}, noRank(on.GetDpRank())
	}
	if lost := x.step(e); err == nil {
		err = lost
	}
	return a, err
}

// reserve is POST /reservations: what was selected, or a worker that is named.
func (d *Door) reserve(x *exchange) error {
	r := &reserveRequest{}
	if err := x.body(r); err != nil {
		return err
	}
	if r.SelectionID == "" {
		return unprocessable("missing field `selection_id`")
	}
	p := d.claim(key(&r.selectRequest), x.now)
	if r.ID != nil { // a named worker takes the place of what was selected
		if r.Tokens == nil && r.Hashes == nil {
			return badRequest("token_ids or block_hashes are required with worker_id")
		}
		r.Pinned = &rank{ID: *r.ID}
		q, err := x.question(&r.selectRequest)
		if err != nil {
			return err
		}
		q.RequestId = r.SelectionID
		p = &pending{ask: q, target: &kvoraclev1.Target{WorkerId: q.GetAllowedWorkers()[0], DpRank: r.Rank}}
	}
	if p == nil {
		return status.Error(codes.NotFound, "no pending selection "+r.SelectionID+" for model="+r.model()+" (expired, already used, or never selected)")
	}
	size, err := x.blockSize(p.ask.GetModel(), false)
	if err != nil {
		return err
	}
	a, err := d.booked(x, p.ask, p.target, size)
	if err != nil {
		if r.ID == nil {
			d.keep(p) // to be tried again
		}
		return err
	}
	t := a.GetTarget()
	r.model() // fills in the defaults
	return x.answer(http.StatusCreated, &reserved{
		SelectionID: r.SelectionID, place: r.place, ID: idOf(t.GetWorkerId()), Rank: t.GetDpRank(), Endpoint: t.GetAddress(),
	})
}
