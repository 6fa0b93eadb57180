package extproc

import (
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// Service answers Envoy. All methods may be called concurrently.
type Service struct {
	extprocv3.UnimplementedExternalProcessorServer

	cfg    Config
	parser prompt.Parser
	models atomic.Pointer[map[string]Model] // never changed, only replaced
	turn   atomic.Uint64                    // requests that were sent in turn
	// hasObservers says that some response was looked at by a stream of its own.
	hasObservers atomic.Bool

	mu    sync.Mutex
	lives map[oracle.DecisionID]*life
}

// New makes a Service.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg.withDefaults(), lives: make(map[oracle.DecisionID]*life)}
	s.SetModels(cfg.Models)
	return s
}

// SetModels replaces Config.Models for requests from now on. The map must not be changed afterwards.
func (s *Service) SetModels(models map[string]Model) { s.models.Store(&models) }

// Name is the service's name, also that of its health.
const Name = "envoy.service.ext_proc.v3.ExternalProcessor"

// Process is the full name of its method.
const Process = extprocv3.ExternalProcessor_Process_FullMethodName

// Register makes a server serve it.
func (s *Service) Register(r grpc.ServiceRegistrar) { extprocv3.RegisterExternalProcessorServer(r, s) }

// Process implements the ext_proc service: one HTTP request, or one response that is only looked at.
func (s *Service) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	x := &exchange{s: s, stream: stream}
	defer x.close()
	for {
		m, err := stream.Recv()
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) || stream.Context().Err() != nil:
			return nil // Envoy ends a stream by leaving it; close knows what that means
		default:
			return err
		}
		switch err := x.take(m); {
		case errors.Is(err, errSeen):
			return nil
		case err != nil:
			return err
		}
	}
}

// renewEvery is how often a booking is said to live on. It is much shorter than any sensible lease.
const renewEvery = 5 * time.Second

// Tick renews the bookings whose streams are open. Call it a few times a second.
func (s *Service) Tick(now time.Time) {
	s.mu.Lock()
	var due []*life
	for _, l := range s.lives {
		if now.Sub(l.renewed) >= renewEvery {
			l.renewed = now
			due = append(due, l)
		}
	}
	s.mu.Unlock()
	for _, l := range due {
		l.renew(now)
	}
}

// begin notes a booking that was made. seesAll says that the response's bodies will come by the request's own stream.
func (s *Service) begin(a *oracle.Answer, seesAll bool, now time.Time) *life {
	l := &life{s: s, answer: a, seesAll: seesAll, renewed: now, over: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives[a.Decision] = l
	return l
}

// find gives the life of a decision as its metadata names it, or nil.
func (s *Service) find(name string) *life {
	id, err := strconv.ParseUint(name, 16, 64)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lives[oracle.DecisionID(id)]
}

func (s *Service) forget(id oracle.DecisionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lives, id)
}

// next gives one of the workers in turn, and the one after it; nil: there is none.
func (s *Service) next(only []string) []string {
	all := s.cfg.Oracle.Addresses(only)
	if len(all) == 0 {
		return nil
	}
	i := s.turn.Add(1)
	out := []string{all[i%uint64(len(all))]}
	if len(all) > 1 {
		out = append(out, all[(i+1)%uint64(len(all))])
	}
	return out
}
