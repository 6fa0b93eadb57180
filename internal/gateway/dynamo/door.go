package dynamo

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/gateway/httpjson"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Door answers the paths of Dynamo's selection service. Make it with Mount.
type Door struct {
	caller httpjson.Caller
	bodies *httpjson.Door
	wait   float64 // seconds that a booking waits for a place

	patching sync.Mutex

	mu       sync.Mutex
	pending  book[pending]
	held     int // bytes of pending selections
	reserved book[reservation]
	sizes    map[string]uint32 // block size by model, as last seen
}

// mostModels bounds the block sizes that are remembered.
const mostModels = 1024

// longestWait is the most that a booking waits for a place: HTTP servers and clients give a call up after some 20 or 30 s.
const longestWait = 15 * time.Second

// Mount serves the door's paths beside those of another door, whose bounds on bodies hold here too. maxQueue is how long a booking
// waits for a place while all workers are at their limits, 15 s at most; 0: not at all.
func Mount(on *httpjson.Door, caller httpjson.Caller, maxQueue time.Duration) {
	d := &Door{caller: caller, bodies: on, sizes: make(map[string]uint32), wait: min(maxQueue, longestWait).Seconds()}
	for pattern, f := range map[string]func(*exchange) error{
		"POST /workers":                            d.addWorker,
		"GET /workers":                             d.listWorkers,
		"PATCH /workers/{worker_id}":               d.patchWorker,
		"DELETE /workers/{worker_id}":              d.removeWorker,
		"POST /select":                             d.choose,
		"POST /select_and_reserve":                 d.chooseAndReserve,
		"POST /reservations":                       d.reserve,
		"POST /reservations/{id}/prefill_complete": d.prefillComplete,
		"POST /reservations/{id}/output_block":     d.outputBlock,
		"DELETE /reservations/{id}":                d.free,
		"GET /loads":                               d.loads,
		"POST /potential_loads":                    d.potentialLoads,
		"POST /overlap_scores":                     d.overlapScores,
		"GET /dump":                                notServed("what caches hold is not given away here; replicas tell each other over NATS"),
		"POST /replica_sync/register_peer":         notServed("replicas find each other over NATS"),
		"POST /replica_sync/deregister_peer":       notServed("replicas find each other over NATS"),
		"GET /replica_sync/peers":                  notServed("replicas find each other over NATS"),
		"GET /ready":                               d.ready,
		"GET /health":                              func(x *exchange) error { return x.done() },
	} {
		on.Mount(pattern, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			x := &exchange{d: d, w: w, r: r, ctx: httpjson.Incoming(r), now: time.Now()}
			d.renew(x)
			x.isTold = false
			if err := f(x); err != nil {
				if !x.isTold { // what follows from a call that was refused is counted as that
					caller.Refused(x.ctx, pattern, err)
				}
				x.refuse(err)
			}
		}))
	}
}

// notServed answers a path of the service's that has no equal here.
func notServed(why string) func(*exchange) error {
	return func(x *exchange) error { return status.Error(codes.Unimplemented, x.r.URL.Path+" is not served: "+why) }
}

// exchange is one call.
type exchange struct {
	d   *Door
	w   http.ResponseWriter
	r   *http.Request
	ctx context.Context //nolint:containedctx // lives for one call
	now time.Time

	isTold bool // the oracle has refused something, and counted it
}

// body reads the request's JSON. Names that are not known are ignored, as Dynamo does.
func (x *exchange) body(into any) error {
	text, release, err := x.d.bodies.Body(x.r)
	defer release()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return unprocessable("a field is of another type: " + err.Error())
		}
		return badRequest("the body is not JSON: " + err.Error())
	}
	return nil
}

func (x *exchange) answer(code int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	x.w.Header().Set("Content-Type", "application/json")
	x.w.WriteHeader(code)
	_, _ = x.w.Write(text) // a caller who has gone is told nothing
	return nil
}

func (x *exchange) done() error { return x.answer(http.StatusOK, map[string]string{"status": "ok"}) }

// refuse answers in Dynamo's form of errors.
func (x *exchange) refuse(err error) {
	st := status.Convert(err)
	code := httpjson.HTTPStatus(st.Code())
	var u unprocessable
	if errors.As(err, &u) {
		code = http.StatusUnprocessableEntity
	}
	_ = x.answer(code, map[string]string{"error": st.Message()})
}

// unprocessable is JSON that is no such request.
type unprocessable string

// Error implements error.
func (u unprocessable) Error() string { return string(u) }

// GRPCStatus is how gRPC finds the status.
func (u unprocessable) GRPCStatus() *status.Status {
	return status.New(codes.InvalidArgument, string(u))
}

func badRequest(text string) error { return status.Error(codes.InvalidArgument, text) }

// call is one call of the oracle.
func (x *exchange) call(method string, in, out proto.Message) error {
	ctx, err := x.d.caller.Admit(x.ctx, method)
	if err != nil {
		x.isTold = true
		return err
	}
	message, err := proto.Marshal(in)
	if err != nil {
		return badRequest(err.Error()) // a string that is not UTF-8
	}
	reply, err := x.d.caller.Call(ctx, method, message, nil)
	if err != nil {
		x.isTold = true
		return err
	}
	return proto.Unmarshal(reply, out)
}

// firstHashed is the least id of a worker whose name is no integer; all are exact in a double.
const firstHashed = 1 << 52

// idOf is a worker's id.
func idOf(name string) uint64 {
	if id, err := strconv.ParseUint(name, 10, 64); err == nil && id < firstHashed && strconv.FormatUint(id, 10) == name {
		return id
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return firstHashed | h.Sum64()>>12
}

// namesOf finds the names of workers; an id that names none is given a name that none has.
func (x *exchange) namesOf(model string, ids ...uint64) ([]string, error) {
	names := make([]string, len(ids))
	var all []*kvoraclev1.Worker
	for i, id := range ids {
		names[i] = strconv.FormatUint(id, 10)
		if id < firstHashed {
			continue
		}
		if all == nil {
			var err error
			if all, err = x.fleet(model); err != nil {
				return nil, err
			}
		}
		if at := slices.IndexFunc(all, func(w *kvoraclev1.Worker) bool { return idOf(w.GetSpec().GetWorkerId()) == id }); at >= 0 {
			names[i] = all[at].GetSpec().GetWorkerId()
		}
	}
	return names, nil
}

func (x *exchange) fleet(model string) ([]*kvoraclev1.Worker, error) {
	out := &kvoraclev1.ListWorkersResponse{}
	err := x.call(kvoraclev1.FleetService_ListWorkers_FullMethodName, &kvoraclev1.ListWorkersRequest{Model: model}, out)
	return out.GetWorkers(), err
}

// blockSize is the block size of a model's workers, remembered unless afresh.
func (x *exchange) blockSize(model string, afresh bool) (uint32, error) {
	d := x.d
	d.mu.Lock()
	size, ok := d.sizes[model]
	d.mu.Unlock()
	if ok && !afresh {
		return size, nil
	}
	all, err := x.fleet(model)
	if err != nil {
		return 0, err
	}
	if len(all) == 0 {
		return 0, unscheduled(model)
	}
	size = all[0].GetSpec().GetBlockSize()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.sizes) >= mostModels {
		clear(d.sizes)
	}
	d.sizes[model] = size
	return size, nil
}

// renew keeps reservations alive. What becomes of it is nobody's to hear: an unknown decision has ended.
func (d *Door) renew(x *exchange) {
	due := d.due(x.now)
	if len(due) == 0 {
		return
	}
	m := &kvoraclev1.RecordProgressRequest{}
	for _, r := range due {
		m.Events = append(m.Events, &kvoraclev1.ProgressEvent{
			DecisionId: r.decision, Step: &kvoraclev1.ProgressEvent_Generating{Generating: &kvoraclev1.Generating{OutputTokens: r.output}},
		})
	}
	_ = x.call(kvoraclev1.RouteService_RecordProgress_FullMethodName, m, &kvoraclev1.RecordProgressResponse{})
}

// isMismatch says whether hashes were taken for another block size than the workers have.
func isMismatch(err error) bool {
	return err != nil && status.Code(err) == codes.FailedPrecondition
}

// unscheduled is Dynamo's word for a model that nobody serves.
func unscheduled(model string) error {
	return status.Error(codes.Unavailable, "no schedulable workers for model="+model)
}
