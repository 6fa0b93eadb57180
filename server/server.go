package server

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/tap"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/kvoracle/kvoracle/internal/access"
	"github.com/kvoracle/kvoracle/internal/certs"
	"github.com/kvoracle/kvoracle/internal/gateway/extproc"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/replica"
	"github.com/kvoracle/kvoracle/internal/telemetry"
	"github.com/kvoracle/kvoracle/internal/transport"
	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Flow control, in bytes. A call's window holds a prompt of a quarter of a million tokens; a larger one takes as many round
// trips more.
const (
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)

// Server is one oracle with its doors. Make it with New, then call Run (or Serve) once; all other methods may be called
// concurrently and at any time.
type Server struct {
	cfg       Config                 // what it was made with
	current   atomic.Pointer[Config] // the same with what Reload has changed
	oracle    *oracle.Oracle
	tel       *telemetry.Telemetry
	log       *slog.Logger
	auth      AuthFunc // nil: everybody may
	limits    wire.Limits
	printSeed maphash.Seed  // of batch fingerprints: no peer can aim for a collision
	going     chan struct{} // closed when draining starts: long streams say goodbye and end
	watch     *watcher
	health    *board
	grpc      *grpc.Server
	local     *local           // the same services, within the process
	door      http.Handler     // HTTP/JSON
	parents   *parents         // nil when nothing is traced
	picker    *extproc.Service // for Envoy
	shedder   *shedder
	guard     *guard
	guests    *guests
	audit     *auditor
	certs     *certs.Source // nil: no TLS
	natsCerts *certs.Source // nil: NATS is spoken to as its URL says
	access    *access.File  // nil: nobody has to say who they are
	warm      *warm         // nil: nothing is kept over a restart
	replica   *replica.Node // nil: this process is the service, and keeps no log
	journal   Journal       // nil: the log is elsewhere, or nowhere
	sheds     atomic.Uint64 // calls refused by it and not logged yet
	reloading sync.Mutex    // one reload at a time; taken before the locks of what is reloaded

	mu            sync.Mutex
	isUsed        bool         // Run, Serve or Close was called
	lis, ops, web net.Listener // nil until listening
}

// Option tells a Server what a Config cannot: values that are not data.
type Option func(*options)

type options struct {
	log *slog.Logger
	tel telemetry.Config
	// auth is nil when everybody may call.
	auth     AuthFunc
	services []service
	// journal makes the log of DataDir; nil: there is none.
	journal func(dir string, maxBytes int64, log *slog.Logger) Journal
}

// Journal is a NATS server with JetStream within the process, over which the log of Config.DataDir goes.
type Journal interface {
	// Start opens its folder. The error says what is wrong with it.
	Start() error
	// InProcessConn opens a connection, once it is started.
	InProcessConn() (net.Conn, error)
	// Close ends one that was started.
	Close()
}

// service is one of the embedder's own.
type service struct {
	desc *grpc.ServiceDesc
	impl any
}

// WithLogger says where lines go. Default: nowhere, so that a library stays silent unless asked.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithAuth asks f before each call except health checks. Default: everybody who can connect may call.
func WithAuth(f AuthFunc) Option { return func(o *options) { o.auth = f } }

// WithJournal keeps a log in Config.DataDir, of a NATS server that f makes on a folder. The program kvoracle has one. Default:
// none, as with Config.SnapshotsOnly, so that who embeds a server does not take NATS's along, which puts profiles on the default
// mux of net/http.
func WithJournal(f func(dir string, maxBytes int64, log *slog.Logger) Journal) Option {
	return func(o *options) { o.journal = f }
}

// WithService serves a service of the embedder's own on the same port, behind the same interceptors, limits and codec. The
// desc must name none that the server has itself. It may be given several times.
func WithService(desc *grpc.ServiceDesc, impl any) Option {
	return func(o *options) { o.services = append(o.services, service{desc, impl}) }
}

// WithMetricReader collects the server's metrics with r too, besides /metrics and the exporter that OTEL_METRICS_EXPORTER
// names. The server shuts it down.
func WithMetricReader(r sdkmetric.Reader) Option {
	return func(o *options) { o.tel.Readers = append(o.tel.Readers, r) }
}

// WithSpanProcessor gives the server's spans to p too, besides the exporter that OTEL_TRACES_EXPORTER names. The server
// shuts it down.
func WithSpanProcessor(p sdktrace.SpanProcessor) Option {
	return func(o *options) { o.tel.SpanProcessors = append(o.tel.SpanProcessors, p) }
}

// New builds a server from leaf to root: telemetry, oracle, health, gRPC. It opens no port, and starts no goroutine but
// those of exporters that the OTEL_* environment asks for. A server that is never run must be closed.
func New(cfg Config, opts ...Option) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	o := options{log: slog.New(slog.DiscardHandler)}
	for _, opt := range opts {
		opt(&o)
	}
	o.tel.Version = Version()
	tel, err := telemetry.New(context.Background(), o.tel)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Server{
		cfg:       cfg,
		oracle:    oracle.New(cfg.oracle(), observer{tel.Observer(), o.log}),
		tel:       tel,
		log:       o.log,
		auth:      o.auth,
		limits:    cfg.limits(),
		printSeed: maphash.MakeSeed(),
		going:     make(chan struct{}),
		watch:     newWatcher(tel, o.log, cfg.SlowCall),
		health:    newBoard(cfg.ExpectedWorkers, cfg.NATSURL != "" || cfg.hasLog() && o.journal != nil, o.log),
	}
	s.current.Store(&s.cfg)
	if cfg.hasLog() && o.journal != nil {
		s.journal = o.journal(cfg.logDir(), 2*journalBytes, o.log) // NATS keeps a file until all of it is trimmed
	}
	if err := tel.Watch(func() oracle.Stats { return s.oracle.Stats(time.Now()) }); err != nil {
		return nil, errors.Join(err, tel.Shutdown(context.Background()))
	}
	s.picker = s.newExtProc()
	s.shedder = newShedder(cfg.QueueTarget, s.shed)
	s.guard = newGuard(&cfg, func(ctx context.Context, rpc string, err error) { s.watch.failed(ctx, rpc, err, 0) })
	s.guests = newGuests(nil, &cfg, tel.Closed) // its listener comes with Run
	s.audit = newAuditor(o.log, s.guard)
	if err := s.openFiles(); err != nil {
		return nil, errors.Join(err, tel.Shutdown(context.Background()))
	}
	s.grpc = s.newGRPC(o.services)
	if s.door, err = s.newDoor(); err != nil {
		return nil, errors.Join(err, tel.Shutdown(context.Background()))
	}
	if s.warm, err = s.openWarm(); err != nil {
		return nil, errors.Join(err, tel.Shutdown(context.Background()))
	}
	if s.replica, err = s.newReplica(); err != nil {
		return nil, errors.Join(err, s.warm.close(), tel.Shutdown(context.Background()))
	}
	return s, nil
}

// newGRPC makes the gRPC server and registers everything it serves.
func (s *Server) newGRPC(services []service) *grpc.Server {
	c := &s.cfg
	pool := &transport.Pool{}
	codec := transport.NewCodec(pool)
	unary, stream := s.interceptors()
	opts := []grpc.ServerOption{
		grpc.UnaryInterceptor(unary),
		grpc.ChainStreamInterceptor(stream...),
		experimental.BufferPool(pool),
		grpc.InTapHandle(s.tap),
		grpc.ForceServerCodecV2(codec),
		grpc.Creds(s.credentials()),
		grpc.MaxRecvMsgSize(c.MaxMessageBytes),
		grpc.MaxConcurrentStreams(uint32(c.MaxConcurrentStreams)),
		// What a peer may have on its way to a call that does not read. gRPC would estimate it, with a ping for every
		// batch of a report stream that has the connection to itself, and would let one that floods have 16 MiB.
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxHeaderListSize(uint32(c.MaxHeaderBytes)), // gRPC's own default is 16 MiB for each call
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time:                  c.KeepaliveTime,
			Timeout:               c.KeepaliveTimeout,
			MaxConnectionAge:      c.MaxConnectionAge,
			MaxConnectionAgeGrace: c.MaxConnectionAgeGrace,
		}),
		// Idle report streams live on pings; gRPC's own default of 5 min would send such peers away.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: c.KeepaliveMinTime, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true), // when Run has returned, nothing of it is still running
	}
	g := grpc.NewServer(opts...)
	s.local = newLocal(s, codec, unary)
	both := registrars{g, s.local}
	route := newRouteService(s, codec)
	both.RegisterService(route.describe(), route)
	kvoraclev1.RegisterFleetServiceServer(both, newFleetService(s))
	s.picker.Register(g)
	healthpb.RegisterHealthServer(g, s.health.rpc)
	if c.Reflection {
		reflection.Register(g)
	}
	for _, own := range services {
		g.RegisterService(own.desc, own.impl)
	}
	s.guard.learn(g)
	return g
}

// tap is gRPC's look at each new call, in the goroutine that reads its connection.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	ctx, isPatient, err := s.guard.arrive(ctx, info)
	if err != nil || isPatient {
		return ctx, err
	}
	return s.shedder.tap(ctx, info)
}
