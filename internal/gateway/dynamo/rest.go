package dynamo

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// step tells one step of a request.
func (x *exchange) step(e *kvoraclev1.ProgressEvent) error {
	return x.call(kvoraclev1.RouteService_RecordProgress_FullMethodName,
		&kvoraclev1.RecordProgressRequest{Events: []*kvoraclev1.ProgressEvent{e}}, &kvoraclev1.RecordProgressResponse{})
}

// tell tells a step of a reservation.
func (x *exchange) tell(end, output bool, step func(reservation) *kvoraclev1.ProgressEvent) error {
	id := x.r.PathValue("id")
	r, ok := x.d.find(id, x.now, end, output)
	if !ok {
		return status.Error(codes.NotFound, "reservation "+strconv.Quote(id)+" not found")
	}
	e := step(r)
	e.DecisionId = r.decision
	if err := x.step(e); err != nil {
		return err
	}
	return x.done()
}

func (d *Door) prefillComplete(x *exchange) error {
	return x.tell(false, false, func(reservation) *kvoraclev1.ProgressEvent {
		return &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_FirstToken{FirstToken: &kvoraclev1.FirstToken{}}}
	})
}

func (d *Door) outputBlock(x *exchange) error {
	return x.tell(false, true, func(r reservation) *kvoraclev1.ProgressEvent {
		return &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_Generating{Generating: &kvoraclev1.Generating{OutputTokens: r.output}}}
	})
}

func (d *Door) free(x *exchange) error {
	return x.tell(true, false, func(r reservation) *kvoraclev1.ProgressEvent {
		return &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_Finished{Finished: &kvoraclev1.Finished{OutputTokens: r.output}}}
	})
}

// Labels that keep what the oracle has no use for and the catalog shows.
const (
	eventLabel = "dynamo.kv_events." // and the rank: where it publishes its events
	batchLabel = "dynamo.max_num_batched_tokens"
)

func (d *Door) addWorker(x *exchange) error {
	r := &workerRequest{}
	if err := x.body(r); err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return badRequest(err.Error())
	}
	out, err := x.register(strconv.FormatUint(r.ID, 10), r, &kvoraclev1.WorkerSpec{})
	if err != nil {
		return err
	}
	return x.answer(http.StatusCreated, out)
}

// register makes a worker known. Of its former spec stays what Dynamo has no word for.
func (x *exchange) register(name string, r *workerRequest, spec *kvoraclev1.WorkerSpec) (worker, error) {
	labels := make(map[string]string)
	for k, v := range spec.GetLabels() {
		if k != batchLabel && !strings.HasPrefix(k, eventLabel) {
			labels[k] = v
		}
	}
	spec.WorkerId, spec.Address, spec.Model, spec.BlockSize, spec.DpSize, spec.Labels = name, r.Endpoint, r.model(), r.BlockSize, r.Size, labels
	spec.Capacities = slices.DeleteFunc(spec.GetCapacities(), func(c *kvoraclev1.TierCapacity) bool { return c.GetTier() == kvoraclev1.Tier_TIER_DEVICE })
	if r.Blocks > 0 {
		spec.Capacities = append(spec.Capacities, &kvoraclev1.TierCapacity{Tier: kvoraclev1.Tier_TIER_DEVICE, Blocks: r.Blocks})
	}
	if r.Batch != nil {
		labels[batchLabel] = strconv.FormatUint(*r.Batch, 10)
	}
	if r.Events != "" {
		labels[eventLabel+"0"] = r.Events
	}
	for rank, endpoint := range r.RankEvent {
		labels[eventLabel+rank] = endpoint
	}
	out := &kvoraclev1.RegisterWorkerResponse{}
	err := x.call(kvoraclev1.FleetService_RegisterWorker_FullMethodName, &kvoraclev1.RegisterWorkerRequest{Spec: spec}, out)
	return record(out.GetWorker()), err
}

// patchWorker changes what is known of a worker.
func (d *Door) patchWorker(x *exchange) error {
	p := &workerPatch{}
	if err := x.body(p); err != nil {
		return err
	}
	d.patching.Lock() // of two patches at once neither shall undo the other
	defer d.patching.Unlock()
	was, err := x.named()
	if err != nil {
		return err
	}
	spec := was.GetSpec()
	r := p.on(spec)
	if err := r.check(); err != nil {
		return badRequest(err.Error())
	}
	out, err := x.register(spec.GetWorkerId(), r, spec)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, out)
}

// named is the worker that the path names.
func (x *exchange) named() (*kvoraclev1.Worker, error) {
	id, err := strconv.ParseUint(x.r.PathValue("worker_id"), 10, 64)
	if err != nil {
		return nil, badRequest("worker_id: want an integer")
	}
	names, err := x.namesOf("", id)
	if err != nil {
		return nil, err
	}
	out := &kvoraclev1.GetWorkerResponse{}
	err = x.call(kvoraclev1.FleetService_GetWorker_FullMethodName, &kvoraclev1.GetWorkerRequest{WorkerId: names[0]}, out)
	return out.GetWorker(), err
}

// record is a worker as the catalog shows it.
func record(w *kvoraclev1.Worker) worker {
	s := w.GetSpec()
	out := worker{
		ID: idOf(s.GetWorkerId()), place: placeOf(s.GetModel()), Endpoint: s.GetAddress(), BlockSize: s.GetBlockSize(), Size: max(s.GetDpSize(), 1),
		unserved: unserved{Topology: map[string]string{}},
	}
	if n, err := strconv.ParseUint(s.GetLabels()[batchLabel], 10, 64); err == nil {
		out.Batch = &n
	}
	for _, c := range s.GetCapacities() {
		if c.GetTier() == kvoraclev1.Tier_TIER_DEVICE && c.GetBlocks() > 0 {
			n := c.GetBlocks()
			out.Blocks = &n
		}
	}
	for k, v := range s.GetLabels() {
		if rank, ok := strings.CutPrefix(k, eventLabel); ok {
			if out.Events == nil {
				out.Events = make(map[string]string)
			}
			out.Events[rank] = v
		}
	}
	switch w.GetState() {
	case kvoraclev1.WorkerState_WORKER_STATE_READY:
		out.Lifecycle = "schedulable"
	case kvoraclev1.WorkerState_WORKER_STATE_DRAINING:
		out.Lifecycle, out.Reasons = "draining", []string{"an operator is draining it"}
	case kvoraclev1.WorkerState_WORKER_STATE_LOST, kvoraclev1.WorkerState_WORKER_STATE_UNSPECIFIED:
		out.Lifecycle, out.Reasons = "unschedulable", []string{"its report streams are gone"}
	}
	return out
}

// placeOf is where a model of the oracle belongs.
func placeOf(model string) place {
	if m, group, ok := strings.Cut(model, "@"); ok {
		return place{m, group}
	}
	return place{model, byDefault}
}

// catalog lists the workers that the query's model_name and routing_group leave.
func (x *exchange) catalog() ([]*kvoraclev1.Worker, error) {
	all, err := x.fleet("")
	q := x.r.URL.Query()
	out := all[:0]
	for _, w := range all {
		p := placeOf(w.GetSpec().GetModel())
		if m := q.Get("model_name"); m != "" && m != p.Model {
			continue
		}
		if g := q.Get("routing_group"); g != "" && g != p.Group {
			continue
		}
		out = append(out, w)
	}
	return out, err
}

func (d *Door) listWorkers(x *exchange) error {
	all, err := x.catalog()
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, records(all))
}

func records(all []*kvoraclev1.Worker) []worker {
	out := make([]worker, 0, len(all))
	for _, w := range all {
		out = append(out, record(w))
	}
	return out
}

func (d *Door) removeWorker(x *exchange) error {
	was, err := x.named()
	if err != nil {
		return err
	}
	if err := x.call(kvoraclev1.FleetService_RemoveWorker_FullMethodName,
		&kvoraclev1.RemoveWorkerRequest{WorkerId: was.GetSpec().GetWorkerId()}, &kvoraclev1.RemoveWorkerResponse{}); err != nil {
		return err
	}
	out := record(was)
	out.Lifecycle = "unschedulable"
	return x.answer(http.StatusOK, out)
}

func (d *Door) ready(x *exchange) error {
	all, err := x.fleet("")
	if err != nil {
		return err
	}
	out := ready{Catalog: records(all)}
	for i := range out.Catalog {
		if out.Catalog[i].Lifecycle == "schedulable" {
			out.Workers++
		}
	}
	out.Ready = out.Workers > 0
	if !out.Ready {
		return x.answer(http.StatusServiceUnavailable, out)
	}
	return x.answer(http.StatusOK, out)
}

// loadOf is what waits on a rank. Prefill is known in seconds and shown in tokens by what one costs there.
func loadOf(w *kvoraclev1.Worker, r *kvoraclev1.RankStatus) rankLoad {
	load := rankLoad{ID: idOf(w.GetSpec().GetWorkerId()), Rank: r.GetDpRank(), Active: r.GetInFlight()}
	if cost := r.GetCosts().GetPrefillSecondsPerToken(); cost > 0 && r.GetPendingPrefillSeconds() > 0 {
		load.Prefill = uint64(r.GetPendingPrefillSeconds() / cost)
	}
	return load
}

// loads shows what waits on each rank.
func (d *Door) loads(x *exchange) error {
	all, err := x.catalog()
	if err != nil {
		return err
	}
	out := []*modelLoad{}
	at := make(map[place]*modelLoad)
	for _, w := range all {
		p := placeOf(w.GetSpec().GetModel())
		m := at[p]
		if m == nil {
			m = &modelLoad{place: p, Loads: []rankLoad{}}
			at[p], out = m, append(out, m)
		}
		for _, r := range w.GetRanks() {
			m.Loads = append(m.Loads, loadOf(w, r))
		}
	}
	return x.answer(http.StatusOK, out)
}
