package replica

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// Node is one replica's part. All methods may be called concurrently, and on a nil Node, which stands for a service of one.
type Node struct {
	cfg  Config
	o    *oracle.Oracle
	log  *slog.Logger
	boot uint64 // grows from life to life
	name string // of the log

	isUp   atomic.Bool // what follows is there
	isNear atomic.Bool // NATS is, as isConnected says, for who may not wait for the connection's lock
	nc     *nats.Conn
	js     jetstream.JetStream
	inbox  string

	count     counters
	joined    atomic.Bool
	following atomic.Bool
	doubt     bool          // of the goroutine that announces: the log did not take what it was given last
	readers   chan struct{} // closed when joined
	rescan    chan struct{} // holds one if the follower should look at the log again
	todo      chan struct{} // holds one if something is to be announced
	told      told
	heard     heard

	mu       sync.Mutex // guards what follows
	logID    int64      // when the log was made
	position uint64     // of the last entry applied
	tail     uint64     // of the last entry there was when somebody looked
	targets  map[key]*target
	streams  map[*Stream]struct{}
	sessions map[uint64]*Stream // by their present id
	late     map[key]*Stream    // open here, and not claimed in the log yet
	origins  map[string]*origin
	parts    int // bytes of messages that have come in part
	joining  joining
	answers  []*nats.Msg // questions for all that wait for an answer
	cutAt    time.Time   // when NATS went away; zero: it is there
	healedAt time.Time   // when it came back
	mistrust bool        // other replicas' targets are not trusted
	closed   int         // streams that are over and have not said so
	gateways map[string]*here
	acts     acts
	replay   replaying
	seeding  seeding
}

// origin is another replica.
type origin struct {
	boot  uint64
	heard time.Time
}

// New makes a node, which o tells from now on. It opens no connection before Run.
func New(cfg Config, o *oracle.Oracle, log *slog.Logger) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg.withDefaults(), o: o, log: log,
		readers: make(chan struct{}), rescan: make(chan struct{}, 1), todo: make(chan struct{}, 1),
		targets: make(map[key]*target), streams: make(map[*Stream]struct{}), sessions: make(map[uint64]*Stream), late: make(map[key]*Stream),
		origins: make(map[string]*origin), gateways: make(map[string]*here),
		acts: acts{running: make(map[uint64]*act), wishes: make(map[string]wish)},
		told: told{wake: make(chan struct{}, 1)}, heard: newHeard(),
		cutAt: time.Now(), replay: replaying{done: make(chan struct{})}, seeding: newSeeding(),
	}
	n.boot = uint64(n.cfg.born.UnixNano())
	n.name = n.cfg.Prefix + "_log"
	if !n.isAlone() {
		o.Tell(n)
	}
	return n, nil
}

// isAlone says that there are no other replicas.
func (n *Node) isAlone() bool { return n.cfg.Server != nil }

// Run takes part until ctx is done. NATS need not be there: it is looked for, for ever. One of this process's own is read first.
func (n *Node) Run(ctx context.Context) error {
	if n == nil {
		return nil
	}
	if err := n.connect(); err != nil {
		return err
	}
	if n.isAlone() {
		n.readAgain(ctx)
	}
	close(n.replay.done)
	var wg sync.WaitGroup
	wg.Go(func() { n.follow(ctx) })
	wg.Go(func() { n.watch(ctx) })
	wg.Go(func() { n.announceAll(ctx) })
	if !n.isAlone() {
		wg.Go(func() { n.tell(ctx) })
		if n.cfg.Save != nil {
			wg.Go(func() { n.keep(ctx) })
		}
	}
	wg.Wait()
	n.publishBeat(true)
	_ = n.nc.FlushTimeout(time.Second) // a last word; who misses it waits for BeatTimeout
	n.nc.Close()
	return nil
}

// Joined is closed when what the others had told before the start is known here, or was waited for long enough. A nil node's
// is never read: see IsJoined.
func (n *Node) Joined() <-chan struct{} { return n.readers }

// connect starts to look for NATS.
func (n *Node) connect() error {
	opts := []nats.Option{
		nats.Name("kvoracle " + n.cfg.Name),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond), nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		nats.Timeout(n.cfg.natsWait), nats.PingInterval(n.cfg.pingEvery), nats.MaxPingsOutstanding(2),
		nats.ReconnectBufSize(-1), // what cannot be sent is announced again; nothing is kept
		nats.ConnectHandler(func(*nats.Conn) { n.connected() }),
		nats.ReconnectHandler(func(*nats.Conn) { n.connected() }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { n.disconnected(err) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			n.log.LogAttrs(context.Background(), slog.LevelWarn, "NATS", slog.Any("error", err))
		}),
	}
	if n.isAlone() {
		opts = append(opts, nats.InProcessServer(n.cfg.Server))
	}
	if n.cfg.CredsFile != "" {
		opts = append(opts, nats.UserCredentials(n.cfg.CredsFile))
	}
	if n.cfg.TLS != nil {
		opts = append(opts, n.secure())
	}
	var err error
	if n.nc, err = nats.Connect(n.cfg.URL, opts...); err != nil {
		return fmt.Errorf("replica: NATS: %w", err)
	}
	if n.js, err = jetstream.New(n.nc, jetstream.WithPublishAsyncMaxPending(maxPending), jetstream.WithPublishAsyncTimeout(n.cfg.AckWait)); err != nil {
		return fmt.Errorf("replica: JetStream: %w", err)
	}
	if n.isAlone() {
		n.isUp.Store(true)
		wake(n.rescan)
		return nil
	}
	n.inbox = n.nc.NewInbox()
	for subject, handle := range map[string]nats.MsgHandler{
		n.cfg.Prefix + ".beat": n.onBeat, n.cfg.Prefix + ".ask": n.onAsk, n.inbox: n.onAnswer,
	} {
		if _, err := n.nc.Subscribe(subject, handle); err != nil {
			return fmt.Errorf("replica: %s: %w", subject, err)
		}
	}
	if err := n.listen(); err != nil {
		return fmt.Errorf("replica: load: %w", err)
	}
	n.isUp.Store(true)
	wake(n.rescan)
	return nil
}

// secure makes each connection by the TLS of its moment.
func (n *Node) secure() nats.Option {
	return func(o *nats.Options) error {
		first := n.cfg.TLS()
		o.Secure, o.TLSConfig = true, &tls.Config{MinVersion: first.MinVersion}
		o.RootCAsCB = func() (*x509.CertPool, error) { return n.cfg.TLS().RootCAs, nil }
		if len(first.Certificates) > 0 {
			o.TLSCertCB = func() (tls.Certificate, error) {
				if all := n.cfg.TLS().Certificates; len(all) > 0 {
					return all[0], nil
				}
				return tls.Certificate{}, errors.New("replica: there is no certificate to show")
			}
		}
		return nil
	}
}

func (n *Node) connected() {
	n.mu.Lock()
	n.healedAt, n.cutAt = time.Now(), time.Time{}
	n.mu.Unlock()
	n.isNear.Store(true)
	n.log.LogAttrs(context.Background(), slog.LevelInfo, "NATS is there")
	wake(n.rescan)
	wake(n.todo)
}

func (n *Node) disconnected(err error) {
	n.isNear.Store(false)
	n.mu.Lock()
	if n.cutAt.IsZero() {
		n.cutAt = time.Now()
	}
	n.mu.Unlock()
	n.log.LogAttrs(context.Background(), slog.LevelWarn, "NATS is away; serving on alone", slog.Any("error", err))
}

func (n *Node) isConnected() bool { return n.isUp.Load() && n.nc.IsConnected() }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
