package extproc

import (
	"container/heap"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
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
	heard  map[string]string                // the keys of headers that are heard, by the form that http.Header has of them
	turn   atomic.Uint64                    // requests that were sent in turn
	// hasObservers says that some response was looked at by a stream of its own.
	hasObservers atomic.Bool

	mu    sync.Mutex
	lives map[oracle.DecisionID]*life
	dues  dues // of lives
	// byRequest are those that an access log ends, by the proxy's name of the request: of a choice that it has not heard, since it
	// had given up that very moment, its log knows no decision.
	byRequest map[string]*life
	left      int // of lives, those whose stream has ended
}

// New makes a Service.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg.withDefaults(), lives: make(map[oracle.DecisionID]*life), byRequest: make(map[string]*life)}
	s.heard = heard(s.cfg.SessionHeader)
	s.SetModels(cfg.Models)
	return s
}

// SetModels replaces Config.Models for requests from now on. The map must not be changed afterwards.
func (s *Service) SetModels(models map[string]Model) { s.models.Store(&models) }

// Name is the service's name, also that of its health.
const Name = "envoy.service.ext_proc.v3.ExternalProcessor"

// Process is the full name of its method.
const Process = extprocv3.ExternalProcessor_Process_FullMethodName

// Register makes a server serve it, and its access log.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	extprocv3.RegisterExternalProcessorServer(r, s)
	accesslogv3.RegisterAccessLogServiceServer(r, logs{s: s})
}

// Process implements the ext_proc service: one HTTP request, or one response that is only looked at.
func (s *Service) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	x := &exchange{s: s, stream: stream, byLog: endsByLog(stream.Context()), wishes: wishes{wait: -1}}
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

// Tick renews the bookings whose streams are open, and ends those of which nothing more is to be heard. Call it a few times
// a second.
func (s *Service) Tick(now time.Time) {
	var due, settled, lost, doubted []*life
	s.mu.Lock()
	for len(s.dues) > 0 && !s.dues[0].due.After(now) {
		l := s.dues[0]
		switch {
		case !l.settles.IsZero():
			s.unplan(l)
			settled = append(settled, l)
		case !l.isLeft:
			l.renewed = now
			s.plan(l)
			due = append(due, l)
		case now.Sub(l.renewed) >= s.cfg.LogSilence:
			s.unplan(l)
			lost = append(lost, l)
		default:
			l.doubted = now
			s.plan(l)
			doubted = append(doubted, l)
		}
	}
	s.mu.Unlock()
	for _, l := range due {
		l.renew(now)
	}
	for _, l := range settled {
		l.settled()
	}
	for _, l := range lost {
		l.lost()
	}
	for _, l := range doubted {
		if !s.cfg.Oracle.IsBooked(l.answer.Decision) {
			l.endedElsewhere()
		}
	}
}

// heardOf notes news of a life.
func (s *Service) heardOf(l *life, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.renewed = now
	s.plan(l)
}

// settle leaves a life until then to its observer.
func (s *Service) settle(l *life, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.settles = until
	s.plan(l)
}

// await leaves a life whose stream has ended to the access log, unless too many are already.
func (s *Service) await(l *life) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lives[l.answer.Decision] != l {
		return true // it is over
	}
	if s.left >= s.cfg.MaxAwaited {
		return false
	}
	s.left++
	now := time.Now()
	l.isLeft, l.renewed, l.doubted = true, now, now
	s.plan(l)
	return true
}

// begin notes a booking that was made. seesAll says that the response's bodies will come by the request's own stream; request is
// the proxy's name of it, or empty.
func (s *Service) begin(a *oracle.Answer, seesAll, byLog bool, request string, now time.Time) *life {
	l := &life{s: s, answer: a, seesAll: seesAll, byLog: byLog, request: request, renewed: now, over: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives[a.Decision] = l
	l.due = s.dueOf(l)
	heap.Push(&s.dues, l)
	if byLog && request != "" {
		s.byRequest[request] = l
	}
	return l
}

// findRequest gives the life of a request by the proxy's name of it, or nil.
func (s *Service) findRequest(request string) *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byRequest[request]
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

func (s *Service) forget(l *life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.isLeft {
		s.left--
	}
	s.unplan(l)
	delete(s.lives, l.answer.Decision)
	if s.byRequest[l.request] == l {
		delete(s.byRequest, l.request)
	}
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
