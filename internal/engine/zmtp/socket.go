package zmtp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// acceptPause is the wait after the system refused to hand over a connection, for want of file descriptors say.
const acceptPause = 50 * time.Millisecond

// Socket is one endpoint, connected to or bound, and its connections. Dial and Listen make them; all methods may be called
// from any goroutine.
type Socket struct {
	cfg      Config
	at       endpoint
	prefixes [][]byte // Topics
	in       *inbox
	changes  signal // connections, subscriptions, room in send queues
	count    counters

	listener net.Listener // nil: dialled
	closed   chan struct{}
	once     sync.Once
	unhook   func() bool        // from the context
	cancel   context.CancelFunc // ends an attempt to connect
	tasks    sync.WaitGroup

	mu         sync.RWMutex
	open       map[*conn]struct{} // every connection, to close it
	peers      []*conn            // those that are introduced, in order of their coming
	identities map[string]*conn   // ROUTER only
	last       uint64             // connection number given out last
	turn       int                // DEALER: where the next message is offered first
	lastErr    error
}

// Dial makes a socket that connects to cfg.Endpoint, and connects again whenever it has to. It does not wait: whether
// anybody is there is told by Recv. The socket closes when ctx ends. Errors wrap ErrConfig.
func Dial(ctx context.Context, cfg Config) (*Socket, error) {
	s, err := newSocket(cfg, false)
	if err != nil {
		return nil, err
	}
	// Not ctx itself, so that an attempt is given up by Close, too.
	dialing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	s.unhook = context.AfterFunc(ctx, s.shut)
	s.tasks.Go(func() { s.connect(dialing) })
	return s, nil
}

// Listen makes a socket that is bound to cfg.Endpoint and takes connections there. The socket closes when ctx ends. Errors
// wrap ErrConfig or are the system's.
func Listen(ctx context.Context, cfg Config) (*Socket, error) {
	s, err := newSocket(cfg, true)
	if err != nil {
		return nil, err
	}
	if s.listener, err = s.at.listen(ctx); err != nil {
		return nil, fmt.Errorf("zmtp: %w", err)
	}
	s.unhook = context.AfterFunc(ctx, s.shut)
	s.tasks.Go(s.accept)
	return s, nil
}

func newSocket(cfg Config, bind bool) (*Socket, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg.Topics = slices.Clone(cfg.Topics)
	s := &Socket{
		cfg: cfg, closed: make(chan struct{}), cancel: func() {},
		open: map[*conn]struct{}{}, identities: map[string]*conn{},
	}
	if s.at, err = parseEndpoint(cfg.Endpoint, bind); err != nil {
		return nil, err
	}
	for _, t := range cfg.Topics {
		s.prefixes = append(s.prefixes, []byte(t))
	}
	s.in = newInbox(&s.cfg, s.closed)
	return s, nil
}

// Endpoint is where the socket is bound, with the true port, or the endpoint it connects to, in ZeroMQ's notation.
func (s *Socket) Endpoint() string {
	if s.listener == nil {
		return s.cfg.Endpoint
	}
	return name(s.listener.Addr())
}

// Close ends all connections at once, whatever still waits to be sent or received (Flush waits for the former), and
// returns when every goroutine has ended. It may be called again.
func (s *Socket) Close() {
	s.unhook()
	s.shut()
	s.tasks.Wait()
}

// shut begins the end.
func (s *Socket) shut() {
	s.once.Do(func() {
		close(s.closed)
		s.cancel()
		if s.listener != nil {
			_ = s.listener.Close()
		}
		s.mu.Lock()
		for c := range s.open {
			_ = c.net.Close()
		}
		s.mu.Unlock()
		s.changes.changed()
	})
}

// connect dials again and again.
func (s *Socket) connect(ctx context.Context) {
	pause, told := s.cfg.ReconnectMin, false
	for {
		id := s.number()
		nc, err := s.at.dial(ctx, s.cfg.HandshakeTimeout)
		since := time.Now()
		introduced := false
		if err == nil {
			introduced, err = s.live(s.begin(id, nc))
		} else {
			s.failed(err)
		}
		if !introduced && !told && !s.tell(id, Event{Kind: Failed, Address: s.cfg.Endpoint, Err: err}) {
			return
		}
		told = !introduced
		if introduced && time.Since(since) >= s.cfg.ReconnectMax {
			pause = s.cfg.ReconnectMin // it was a good one
		}
		if !s.rest(pause/2 + rand.N(pause/2+1)) {
			return
		}
		pause = min(2*pause, s.cfg.ReconnectMax)
	}
}

// accept takes connections.
func (s *Socket) accept() {
	for {
		nc, err := s.listener.Accept()
		if err != nil {
			if !s.rest(acceptPause) {
				return
			}
			continue
		}
		s.mu.RLock()
		full := len(s.open) >= s.cfg.MaxPeers
		s.mu.RUnlock()
		if full {
			s.count.refused.Add(1)
			_ = nc.Close()
			continue
		}
		c := s.begin(s.number(), nc)
		s.tasks.Go(func() { _, _ = s.live(c) }) // it has told of its end
	}
}

// rest waits; false: the socket is closed.
func (s *Socket) rest(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.closed:
	}
	select {
	case <-s.closed:
		return false
	default:
		return true
	}
}

func (s *Socket) number() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// begin makes a connection that Close knows of.
func (s *Socket) begin(id uint64, nc net.Conn) *conn {
	addr := nc.RemoteAddr().String()
	if addr == "" || addr == "@" {
		addr = s.cfg.Endpoint // ends of ipc have no names
	}
	c := newConn(s, id, nc, addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[c] = struct{}{}
	select {
	case <-s.closed: // shut has been here already
		_ = nc.Close()
	default:
	}
	return c
}

// live lives through one connection and tells of its end.
func (s *Socket) live(c *conn) (introduced bool, err error) {
	introduced, err = c.run()
	s.mu.Lock()
	delete(s.open, c)
	if i := slices.Index(s.peers, c); i >= 0 {
		s.peers = slices.Delete(s.peers, i, i+1)
	}
	if s.identities[c.identity] == c {
		delete(s.identities, c.identity)
	}
	s.mu.Unlock()
	s.changes.changed()
	if !introduced {
		s.failed(err)
		return false, err
	}
	s.count.disconnects.Add(1)
	s.ended(err)
	s.tell(c.id, Event{Kind: Disconnected, Address: c.addr, Err: err})
	return true, err
}

// join makes an introduced connection one of the peers.
func (s *Socket) join(c *conn, identity string) error {
	s.mu.Lock()
	if s.cfg.Type == ROUTER {
		if identity == "" {
			// As libzmq names them; a peer's own identity must not begin with a zero byte.
			identity = string([]byte{0, byte(c.id >> 24), byte(c.id >> 16), byte(c.id >> 8), byte(c.id)})
		} else if identity[0] == 0 {
			s.mu.Unlock()
			return violation("identity begins with a zero byte")
		}
		if s.identities[identity] != nil {
			s.mu.Unlock()
			return violation("identity is in use by another peer")
		}
		c.identity = identity
		s.identities[identity] = c
	}
	s.peers = append(s.peers, c)
	s.mu.Unlock()
	s.count.connects.Add(1)
	s.changes.changed()
	if !s.tell(c.id, Event{Kind: Connected, Address: c.addr}) {
		return ErrClosed
	}
	return nil
}

// tell puts an event in its place among the messages, waiting for room. false: the socket is closed.
func (s *Socket) tell(conn uint64, e Event) bool {
	if s.cfg.Type == PUB {
		return true // which nobody asks for
	}
	return s.in.put(Delivery{Event: &e, Conn: conn}, 0)
}
