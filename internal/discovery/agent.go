package discovery

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

const (
	// Label marks the workers that an agent has registered; its value is Config.Name.
	Label = "kvoracle-discovery"
	// MaxEndpoints bounds what a look may find; what is beyond it makes the look fail.
	MaxEndpoints = 16_384
)

// Endpoint is one place where a worker is reached.
type Endpoint struct {
	// Spec is what is known of the worker: its name, its address and the rest.
	Spec *kvoraclev1.WorkerSpec
	// Out says that nothing new shall be sent there: it is not ready, or about to end.
	Out bool
}

// Source is a directory of endpoints. Its methods are called by one goroutine.
type Source interface {
	// Look lists all endpoints. An error means that nothing is known.
	Look(ctx context.Context) ([]Endpoint, error)
	// Wait returns when something may have changed, after the given time at the latest, or when ctx is done.
	Wait(ctx context.Context, most time.Duration)
}

// Config is what an Agent is told. Fleet and Source must be set; other zeros mean their defaults.
type Config struct {
	Fleet  kvoraclev1.FleetServiceClient
	Source Source
	// Name tells this agent's workers from those of others with another source; default "discovery".
	Name string
	// Every is the longest time between two looks; default 5 s.
	Every time.Duration
	// Forget is how long a worker is kept, drained, that is not listed any more; default 1 min.
	Forget time.Duration
	// Timeout bounds a look, and each call; default 5 s.
	Timeout time.Duration
	// Log is told of every change. nil: nobody is.
	Log *slog.Logger
}

// Stats counts since the agent was made.
type Stats struct {
	Looks, FailedLooks         uint64 // at the source
	FailedCalls                uint64 // of the oracle
	Registered, Drained, LetIn uint64
	Removed                    uint64
	Listed                     int // at the last look that did not fail
}

// Agent keeps a fleet as its source says.
type Agent struct {
	cfg     Config
	drained map[string]bool      // by this agent
	missing map[string]time.Time // since when

	mu    sync.Mutex
	stats Stats
}

// New makes an Agent.
func New(cfg Config) *Agent {
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&cfg.Every, 5*time.Second)
	def(&cfg.Forget, time.Minute)
	def(&cfg.Timeout, 5*time.Second)
	if cfg.Name == "" {
		cfg.Name = "discovery"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Agent{cfg: cfg, drained: make(map[string]bool), missing: make(map[string]time.Time)}
}

// Stats gives the counts.
func (a *Agent) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

func (a *Agent) count(add func(*Stats)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	add(&a.stats)
}

// Run looks until ctx is done.
func (a *Agent) Run(ctx context.Context) {
	for ctx.Err() == nil {
		a.Step(ctx, time.Now())
		a.cfg.Source.Wait(ctx, a.cfg.Every)
	}
}

// Step looks once and does what follows from it.
func (a *Agent) Step(ctx context.Context, now time.Time) {
	within, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	listed, err := a.cfg.Source.Look(within)
	cancel()
	a.count(func(s *Stats) {
		s.Looks++
		if err != nil {
			s.FailedLooks++
		} else {
			s.Listed = len(listed)
		}
	})
	if err != nil {
		a.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the directory could not be read; nothing is changed", slog.String("error", err.Error()))
		return
	}
	within, cancel = context.WithTimeout(ctx, a.cfg.Timeout)
	fleet, err := a.cfg.Fleet.ListWorkers(within, &kvoraclev1.ListWorkersRequest{})
	cancel()
	if err != nil {
		a.failed(ctx, "list", "", err)
		return
	}
	a.agree(ctx, listed, fleet.GetWorkers(), now)
}

// agree makes the fleet agree with what is listed.
func (a *Agent) agree(ctx context.Context, listed []Endpoint, workers []*kvoraclev1.Worker, now time.Time) {
	byName, byAddress := make(map[string]*kvoraclev1.Worker), make(map[string]*kvoraclev1.Worker)
	for _, w := range workers {
		byName[w.GetSpec().GetWorkerId()] = w
		if at := hostPort(w.GetSpec().GetAddress()); at != "" && !a.isOurs(w) {
			byAddress[at] = w
		}
	}
	there, named := make(map[string]bool), make(map[string]bool) // workers that are listed; names in the list
	for _, e := range listed {
		name, at := e.Spec.GetWorkerId(), hostPort(e.Spec.GetAddress())
		if named[name] {
			continue // a pod with two addresses is one worker
		}
		named[name] = true
		w := byName[name]
		other := byAddress[at]
		switch {
		case other != nil && other != w: // it reports by itself, under a name of its own
			if w != nil && a.isOurs(w) {
				a.remove(ctx, name)
			}
			w = other
		case w != nil && a.isOurs(w) && hostPort(w.GetSpec().GetAddress()) != at: // another process, with an empty cache
			a.remove(ctx, name)
			w = nil
		}
		if w != nil {
			there[w.GetSpec().GetWorkerId()] = true
			a.steer(ctx, w, e.Out)
		} else if !e.Out {
			a.register(ctx, e.Spec)
		}
	}
	for name, w := range byName {
		if there[name] || named[name] || !a.isOurs(w) {
			delete(a.missing, name)
			continue
		}
		since, known := a.missing[name]
		if known && now.Sub(since) >= a.cfg.Forget {
			a.remove(ctx, name)
			continue
		}
		if !known {
			a.missing[name] = now
		}
		a.steer(ctx, w, true)
	}
	for name := range a.missing {
		if byName[name] == nil {
			delete(a.missing, name)
		}
	}
	for name := range a.drained {
		if byName[name] == nil {
			delete(a.drained, name)
		}
	}
}

func (a *Agent) isOurs(w *kvoraclev1.Worker) bool {
	return w.GetSpec().GetLabels()[Label] == a.cfg.Name
}

// steer drains a worker or lets it back in.
func (a *Agent) steer(ctx context.Context, w *kvoraclev1.Worker, isOut bool) {
	name := w.GetSpec().GetWorkerId()
	switch state := w.GetState(); {
	case isOut && state != kvoraclev1.WorkerState_WORKER_STATE_READY:
		return // nothing is sent there
	case !isOut && (state != kvoraclev1.WorkerState_WORKER_STATE_DRAINING || !a.drained[name]):
		return // it is in, or somebody else has taken it out
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	if _, err := a.cfg.Fleet.DrainWorker(ctx, &kvoraclev1.DrainWorkerRequest{WorkerId: name, Undo: !isOut}); err != nil {
		a.failed(ctx, "drain", name, err)
		return
	}
	if isOut {
		a.drained[name] = true
		a.count(func(s *Stats) { s.Drained++ })
	} else {
		delete(a.drained, name)
		a.count(func(s *Stats) { s.LetIn++ })
	}
	a.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "worker", slog.String("worker", name), slog.Bool("drained", isOut))
}

func (a *Agent) register(ctx context.Context, spec *kvoraclev1.WorkerSpec) {
	spec = proto.CloneOf(spec)
	if spec.Labels == nil {
		spec.Labels = make(map[string]string)
	}
	spec.Labels[Label] = a.cfg.Name
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	if _, err := a.cfg.Fleet.RegisterWorker(ctx, &kvoraclev1.RegisterWorkerRequest{Spec: spec}); err != nil {
		a.failed(ctx, "register", spec.GetWorkerId(), err)
		return
	}
	a.count(func(s *Stats) { s.Registered++ })
	a.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "worker registered", slog.String("worker", spec.GetWorkerId()), slog.String("address", spec.GetAddress()))
}

func (a *Agent) remove(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	if _, err := a.cfg.Fleet.RemoveWorker(ctx, &kvoraclev1.RemoveWorkerRequest{WorkerId: name}); err != nil {
		a.failed(ctx, "remove", name, err)
		return
	}
	a.count(func(s *Stats) { s.Removed++ })
	a.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "worker removed", slog.String("worker", name))
}

func (a *Agent) failed(ctx context.Context, what, name string, err error) {
	a.count(func(s *Stats) { s.FailedCalls++ })
	a.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the oracle refused", slog.String("call", what), slog.String("worker", name), slog.String("error", err.Error()))
}

// hostPort is the part of an address that is connected to.
func hostPort(address string) string {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address = rest
	}
	address, _, _ = strings.Cut(address, "/")
	return address
}

// pause waits.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
