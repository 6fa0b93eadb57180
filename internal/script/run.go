package script

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Runner runs steps against one oracle, in order. It waits for every answer, so a transcript has one outcome. Not for
// concurrent use.
type Runner struct {
	route   kvoraclev1.RouteServiceClient
	fleet   kvoraclev1.FleetServiceClient
	workers map[string]*worker
	blocks  map[string]*blockStream // by "w/rank"
	loads   map[string]*loadStream
	gates   map[string]*gatewayStream
	names   map[string]string // decision ids by script name
}

// worker is how a worker introduces itself.
type worker struct {
	model, address, scheme string
	size, dp               int
	repeats                kvoraclev1.RepeatMeaning
	roles                  []kvoraclev1.Role
	maxRequests            uint32
	labels                 map[string]string
	declared               uint32 // block_size in the hello
	naming                 string // "": by block ids; else the form of its engine hashes, "numbers" or "bytes"
	seed                   string // goes into each of its engine hashes
	roots                  []uint64
	groups                 []*kvoraclev1.AttentionGroup
	window                 uint32 // hash_window
}

// New makes a runner. Close it when done.
func New(conn grpc.ClientConnInterface) *Runner {
	return &Runner{
		route:   kvoraclev1.NewRouteServiceClient(conn),
		fleet:   kvoraclev1.NewFleetServiceClient(conn),
		workers: make(map[string]*worker),
		blocks:  make(map[string]*blockStream),
		loads:   make(map[string]*loadStream),
		gates:   make(map[string]*gatewayStream),
		names:   make(map[string]string),
	}
}

// Close ends the streams.
func (r *Runner) Close() {
	for _, s := range r.blocks {
		s.close()
	}
	for _, s := range r.loads {
		s.close()
	}
	for _, s := range r.gates {
		s.cancel()
	}
}

// Step runs one command and gives its answer as text. The error is for a command that cannot be read or an oracle that
// cannot be reached; a refusal by the oracle is an answer.
func (r *Runner) Step(ctx context.Context, line string) (string, error) {
	c, err := split(line)
	if err != nil {
		return "", err
	}
	verb, args := c.words[0], c.words[1:]
	need := map[string]int{
		"worker": 1, "RB": 2, "cut": 1, "RL": 1, "RT": 1, "ov": 1, "first": 1, "gen": 2, "free": 1,
		"cancel": 1, "fail": 1, "sent": 2, "gateway": 2, "wait": 1, "register": 1, "drain": 1, "undrain": 1, "remove": 1, "invalidate": 1, "list": 0, "load": 1,
	}
	n, known := need[verb]
	if !known || len(args) < n {
		return "", fmt.Errorf("cannot read %q", line)
	}
	switch verb {
	case "worker":
		return "", r.describe(args[0], c.options)
	case "RB":
		return r.reportBlocks(ctx, args, c.options)
	case "cut":
		r.cut(args[0])
		return "", nil
	case "gateway":
		return r.gateway(ctx, args)
	case "wait":
		return "", wait(ctx, args[0])
	case "RL":
		return r.reportLoad(ctx, args[0], c.options)
	case "RT", "ov":
		return r.ask(ctx, verb == "ov", args, c.options)
	case "first", "gen", "free", "cancel", "fail", "sent":
		return r.progress(ctx, verb, args, c.options)
	default:
		return r.operate(ctx, verb, args)
	}
}

// wait lets time pass.
func wait(ctx context.Context, seconds string) error {
	n, err := strconv.ParseFloat(seconds, 64)
	if err != nil || !(n >= 0 && n <= mostWait) {
		return fmt.Errorf("wait %s: want 0 to %d seconds", seconds, mostWait)
	}
	over := time.NewTimer(time.Duration(n * float64(time.Second)))
	defer over.Stop()
	select {
	case <-over.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// mostWait is the longest wait, in seconds.
const mostWait = 3600

// worker finds a worker's description, or the usual one.
func (r *Runner) worker(name string) *worker {
	w := r.workers[name]
	if w == nil {
		w = &worker{model: "m", size: unit, declared: unit, dp: 1, scheme: "xxh3-64/1337", repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET}
		r.workers[name] = w
	}
	return w
}

func (r *Runner) describe(name string, o map[string]string) error {
	w := r.worker(name)
	for k, v := range o {
		var err error
		switch k {
		case "model":
			w.model = v
		case "addr":
			w.address = v
		case "scheme":
			w.scheme = v
		case "block":
			var n uint64
			n, err = strconv.ParseUint(v, 10, 32)
			w.declared = uint32(n)
			if n >= 1 && n <= 1<<16 {
				w.size = int(n) // another cannot be worked with, but can be declared
			}
		case "dp":
			w.dp, err = strconv.Atoi(v)
		case "max":
			var n int
			n, err = strconv.Atoi(v)
			w.maxRequests = uint32(n)
		case "hashes":
			w.naming = v
			if v != "numbers" && v != "bytes" {
				err = errors.New("want numbers or bytes")
			}
		case "groups":
			w.groups, err = groupsOf(v)
		case "window":
			var n uint64
			n, err = strconv.ParseUint(v, 10, 32)
			w.window = uint32(n)
		case "seed":
			w.seed = v
		case "roots":
			w.roots, err = numbersOf(strings.ReplaceAll(v, ",", " "))
		case "repeats":
			w.repeats = kvoraclev1.RepeatMeaning(kvoraclev1.RepeatMeaning_value["REPEAT_MEANING_"+strings.ToUpper(v)])
		case "roles":
			for role := range strings.SplitSeq(v, ",") {
				w.roles = append(w.roles, kvoraclev1.Role(kvoraclev1.Role_value["ROLE_"+strings.ToUpper(role)]))
			}
		default:
			key, ok := strings.CutPrefix(k, "label.")
			if !ok {
				return fmt.Errorf("worker: unknown option %q", k)
			}
			if w.labels == nil {
				w.labels = make(map[string]string)
			}
			w.labels[key] = v
		}
		if err != nil {
			return fmt.Errorf("worker: %s=%s: %w", k, v, err)
		}
	}
	return nil
}

func (w *worker) spec(name string) *kvoraclev1.WorkerSpec {
	return &kvoraclev1.WorkerSpec{
		WorkerId: name, Model: w.model, BlockSize: w.declared, DpSize: uint32(w.dp), Address: w.address,
		Roles: w.roles, MaxRequests: w.maxRequests, Labels: w.labels,
	}
}

// target reads "w/rank".
func target(s string) (name string, rank uint32, err error) {
	name, r, ok := strings.Cut(s, "/")
	if !ok {
		return name, 0, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(r, "r"), 10, 32)
	return name, uint32(n), err
}

// operate runs an operator's command.
func (r *Runner) operate(ctx context.Context, verb string, args []string) (string, error) {
	switch verb {
	case "register":
		_, err := r.fleet.RegisterWorker(ctx, &kvoraclev1.RegisterWorkerRequest{Spec: r.worker(args[0]).spec(args[0])})
		return done(err)
	case "drain", "undrain":
		_, err := r.fleet.DrainWorker(ctx, &kvoraclev1.DrainWorkerRequest{WorkerId: args[0], Undo: verb == "undrain"})
		return done(err)
	case "remove":
		m, err := r.fleet.RemoveWorker(ctx, &kvoraclev1.RemoveWorkerRequest{WorkerId: args[0]})
		if err != nil {
			return done(err)
		}
		return fmt.Sprintf("dropped=%d released=%d\n", m.GetDroppedBlocks(), m.GetReleasedBookings()), nil
	case "invalidate":
		m, err := r.fleet.InvalidateWorker(ctx, &kvoraclev1.InvalidateWorkerRequest{WorkerId: args[0]})
		if err != nil {
			return done(err)
		}
		return fmt.Sprintf("dropped=%d\n", m.GetDroppedBlocks()), nil
	case "load":
		name, rank, err := target(args[0])
		if err != nil {
			return "", err
		}
		m, err := r.fleet.GetWorker(ctx, &kvoraclev1.GetWorkerRequest{WorkerId: name})
		if err != nil {
			return done(err)
		}
		if int(rank) >= len(m.GetWorker().GetRanks()) {
			return "", fmt.Errorf("load %s: it has no such rank", args[0])
		}
		return printLoad(m.GetWorker().GetRanks()[rank], slices.Contains(args[1:], "prefill")), nil
	default:
		m, err := r.fleet.ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{})
		if err != nil {
			return done(err)
		}
		return printWorkers(m.GetWorkers()), nil
	}
}

func done(err error) (string, error) {
	if err != nil {
		return refusal(err)
	}
	return "ok\n", nil
}
