package clienttest

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kvoracle/kvoracle/server"
)

// Oracle is a real server in memory with one client connection to it. Make it with Start or New.
type Oracle struct {
	config config
	conn   *grpc.ClientConn

	life   sync.Mutex // serialises starts and stops
	cancel context.CancelFunc
	served chan error // of the running server; nil when there is none

	mu       sync.Mutex // leaf lock
	listener *bufconn.Listener
	pipes    map[*pipe]struct{}
}

type config struct {
	server     server.Config
	serverOpts []server.Option
	dialOpts   []grpc.DialOption
}

// Option changes an Oracle.
type Option func(*config)

// WithConfig changes the server's configuration. It starts from server.Config's zero value, which has every default and
// no listening ports.
func WithConfig(change func(*server.Config)) Option {
	return func(c *config) { change(&c.server) }
}

// WithServerOptions hands options to the server, such as its logger. Default: none.
func WithServerOptions(opts ...server.Option) Option {
	return func(c *config) { c.serverOpts = append(c.serverOpts, opts...) }
}

// WithDialOptions hands options to the connection, such as interceptors. Default: none.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(c *config) { c.dialOpts = append(c.dialOpts, opts...) }
}

// Start runs an oracle until the test ends. It fails the test if the oracle cannot start, or does not stop cleanly.
func Start(tb testing.TB, opts ...Option) *Oracle {
	tb.Helper()
	o, err := New(opts...)
	if err != nil {
		tb.Fatalf("clienttest: %v", err)
	}
	tb.Cleanup(func() {
		if err := o.Close(); err != nil {
			tb.Errorf("clienttest: %v", err)
		}
	})
	return o
}

// New runs an oracle until Close, for examples and programs.
func New(opts ...Option) (*Oracle, error) {
	o := &Oracle{pipes: make(map[*pipe]struct{})}
	for _, opt := range opts {
		opt(&o.config)
	}
	dial := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(o.dial),
		// A pipe is there or not at once: waiting a second for it as for a network would only slow tests down.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 50 * time.Millisecond},
			MinConnectTimeout: 20 * time.Second, // for a machine that is ten times too busy; a pipe that breaks is noticed at once
		}),
	}, o.config.dialOpts...)
	conn, err := grpc.NewClient("passthrough:///clienttest", dial...)
	if err != nil {
		return nil, err
	}
	o.conn = conn
	if err := o.Restart(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return o, nil
}

// Conn is the connection to the oracle. It outlives restarts and is closed by Close.
func (o *Oracle) Conn() *grpc.ClientConn { return o.conn }

// Cut breaks every connection, as a network does: whatever was under way is lost on both sides. New connections work.
func (o *Oracle) Cut() {
	for _, p := range o.open() {
		p.cut()
	}
}

// Crash ends the server as a kill does: connections break, and until Restart nobody answers.
func (o *Oracle) Crash() error {
	o.life.Lock()
	defer o.life.Unlock()
	return o.crash()
}

func (o *Oracle) crash() error {
	o.refuse()
	o.Cut()
	return o.wait()
}

// Stop ends the server as a SIGTERM does: it says goodbye to long streams and drains. Until Restart nobody answers.
func (o *Oracle) Stop() error {
	o.life.Lock()
	defer o.life.Unlock()
	o.refuse()
	return o.wait()
}

// Restart starts a new server with an empty memory, after a Crash of the one that runs, if any.
func (o *Oracle) Restart() error {
	o.life.Lock()
	defer o.life.Unlock()
	if err := o.crash(); err != nil {
		return err
	}
	s, err := server.New(o.config.server, o.config.serverOpts...)
	if err != nil {
		return err
	}
	listener := bufconn.Listen(256 << 10)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, listener) }()
	o.cancel, o.served = cancel, served
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listener = listener
	return nil
}

// Close ends the server and the connection. The error says what did not end cleanly.
func (o *Oracle) Close() error {
	return errors.Join(o.conn.Close(), o.Crash())
}

// refuse makes dialling fail from now on.
func (o *Oracle) refuse() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listener = nil
}

// wait ends the server and waits for it.
func (o *Oracle) wait() error {
	if o.served == nil {
		return nil
	}
	o.cancel()
	err := <-o.served
	o.cancel, o.served = nil, nil
	return err
}

var errRefused = errors.New("connection refused: no oracle is running")

// dial opens a pipe to the server that runs now.
func (o *Oracle) dial(ctx context.Context, _ string) (net.Conn, error) {
	o.mu.Lock()
	listener := o.listener
	o.mu.Unlock()
	if listener == nil {
		return nil, errRefused
	}
	conn, err := listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	p := &pipe{Conn: conn, oracle: o}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listener != listener {
		return nil, errors.Join(errRefused, conn.Close())
	}
	o.pipes[p] = struct{}{}
	return p, nil
}

func (o *Oracle) open() []*pipe {
	o.mu.Lock()
	defer o.mu.Unlock()
	open := make([]*pipe, 0, len(o.pipes))
	for p := range o.pipes {
		open = append(open, p)
	}
	return open
}

// pipe is one connection; the oracle knows it until it is closed.
type pipe struct {
	net.Conn

	oracle *Oracle
}

// Close implements net.Conn.
func (p *pipe) Close() error {
	p.oracle.mu.Lock()
	delete(p.oracle.pipes, p)
	p.oracle.mu.Unlock()
	return p.Conn.Close()
}

// cut closes the pipe under its user's feet.
func (p *pipe) cut() {
	_ = p.Close() // a second close is the user's own
}
