package replica

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// patience is what a test waits for things that must happen; they take milliseconds where nothing else runs.
const patience = 4 * time.Minute

// broker is a real NATS server with JetStream.
type broker struct {
	t    *testing.T
	opts server.Options
	now  atomic.Pointer[server.Server]
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	b := &broker{t: t, opts: server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
		PingInterval: patience, WriteDeadline: patience, // a slow machine is no dead client
		Cluster: server.ClusterOpts{NoAdvertise: true}, // what clients reach, they reach by a cable
	}}
	b.start()
	t.Cleanup(b.stop)
	return b
}

// start starts it, on another port than before.
func (b *broker) start() {
	b.t.Helper()
	opts := b.opts
	s, err := server.NewServer(&opts)
	if err != nil {
		b.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		b.t.Fatal("NATS does not start")
	}
	b.now.Store(s)
}

func (b *broker) stop() {
	b.now.Load().Shutdown()
	b.now.Load().WaitForShutdown()
}

// cable is the way from one replica to the broker. It can be cut, and stays one address whatever happens behind it.
type cable struct {
	b   *broker
	lis net.Listener

	mu    sync.Mutex
	isCut bool
	conns []net.Conn
	wall  chan struct{} // closed when what has come goes on; nil: nothing holds it
}

func newCable(t *testing.T, b *broker) *cable {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{b: b, lis: lis}
	go func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			c.join(in)
		}
	}()
	t.Cleanup(func() {
		_ = lis.Close()
		c.cut()
		c.mend()
	})
	return c
}

func (c *cable) join(in net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := c.b.now.Load().Addr()
	if c.isCut || to == nil {
		_ = in.Close()
		return
	}
	out, err := (&net.Dialer{}).Dial("tcp", to.String())
	if err != nil {
		_ = in.Close()
		return
	}
	c.conns = append(c.conns, in, out)
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			_, _ = io.Copy(way[0], held{way[1], c})
			_, _ = way[0].Close(), way[1].Close()
		}()
	}
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = true
	for _, x := range c.conns {
		_ = x.Close()
	}
	c.conns = nil
}

func (c *cable) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = false
	if c.wall != nil {
		close(c.wall)
		c.wall = nil
	}
}

// swallow lets nothing through until it is mended. Connections stay, and new ones are taken: nobody is told.
func (c *cable) swallow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = make(chan struct{})
}

// held is a connection whose bytes wait while the cable swallows.
type held struct {
	net.Conn
	c *cable
}

// Read implements io.Reader.
func (h held) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	h.c.mu.Lock()
	wall := h.c.wall
	h.c.mu.Unlock()
	if wall != nil {
		<-wall
	}
	return n, err
}

// peer is one replica: an oracle with its node.
type peer struct {
	t     *testing.T
	o     *oracle.Oracle
	n     *Node
	cable *cable
	stop  func()
	said  *logged // all of its lines, if somebody wants them
}

// quick are times for tests: what waits for time alone does not wait long, what must not happen early has all the time.
func quick(name string) Config {
	return Config{
		Name: name, DigestEvery: 200 * time.Millisecond, BeatEvery: 100 * time.Millisecond, JoinWindow: 100 * time.Millisecond,
		HelloWait: patience, AckWait: 30 * time.Second, SilentAfter: patience, BeatTimeout: patience, JoinTimeout: patience, Grace: time.Second,
		pieceBytes: 4 << 10, pingEvery: patience, natsWait: 30 * time.Second,
	}
}

func newPeer(t *testing.T, b *broker, cfg Config) *peer {
	t.Helper()
	return newPeerWith(t, b, cfg, nil)
}

// newPeerWith is newPeer with edits that need its oracle.
func newPeerWith(t *testing.T, b *broker, cfg Config, edit func(*peer, *Config)) *peer {
	t.Helper()
	p := &peer{t: t, o: oracle.New(oracle.Config{}, nil), cable: newCable(t, b)}
	cfg.URL = "nats://" + p.cable.lis.Addr().String()
	if cfg.SaveEvery > 0 {
		p.keeps(&cfg, "")
	}
	if edit != nil {
		edit(p, &cfg)
	}
	var to io.Writer = &testLog{t: t, name: cfg.Name}
	if p.said != nil {
		to = io.MultiWriter(to, p.said)
	}
	var err error
	if p.n, err = New(cfg, p.o, slog.New(slog.NewTextHandler(to, nil))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.n.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// joinedPeer is newPeer that has joined the others.
func joinedPeer(t *testing.T, b *broker, cfg Config) *peer {
	t.Helper()
	p := newPeer(t, b, cfg)
	p.joins()
	return p
}

// joins waits until it has.
func (p *peer) joins() {
	p.t.Helper()
	select {
	case <-p.n.Joined():
	case <-time.After(patience):
		p.t.Fatalf("%s does not join: %+v", p.n.cfg.Name, p.n.Stats())
	}
}

// isDegraded says whether NATS was so slow that something was acknowledged without the log.
func isDegraded(peers []*peer) bool {
	return slices.ContainsFunc(peers, func(p *peer) bool {
		s := p.n.Stats()
		return s.Unpublished+s.PublishFailures+s.LateHellos > 0
	})
}

// testLog shows lines of a replica if the test fails.
type testLog struct {
	t    *testing.T
	name string
}

func (l *testLog) Write(p []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Logf("%s: %s", l.name, p)
	}
	return len(p), nil
}

// engine is the naive twin: what one rank holds, and how it reports.
type engine struct {
	t      *testing.T
	rng    *rand.Rand
	worker string
	life   uint64
	seq    uint64
	parent map[uint64]uint64 // of each block held; 0: the start
	kids   map[uint64]int
	order  []uint64                 // blocks in the order in which they were stored; removed ones too
	sent   []*kvoraclev1.BlockBatch // all of them, by sequence

	p       *peer
	stream  *Stream
	session *oracle.BlockSession
	applier *wire.Applier
}

func newEngine(t *testing.T, worker string, seed uint64) *engine {
	return &engine{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), worker: worker, life: 1, parent: map[uint64]uint64{}, kids: map[uint64]int{},
	}
}

// restart begins another life of the engine, with an empty cache, at a replica.
func (e *engine) restart(p *peer) {
	e.t.Helper()
	e.cut()
	e.life, e.seq, e.sent, e.order = e.life+1, 0, nil, nil
	clear(e.parent)
	clear(e.kids)
	e.connect(p)
}

func (e *engine) hello() *kvoraclev1.BlocksHello {
	return &kvoraclev1.BlocksHello{
		Worker:      &kvoraclev1.WorkerSpec{WorkerId: e.worker, Address: e.worker + ":8000", Model: "m", BlockSize: 16},
		Incarnation: e.life, NextSequence: e.seq + 1, Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
		HashScheme: "xxh3-64/1337",
	}
}

// connect opens the engine's stream at a replica and brings that up to date, as a reporter does: again, if it is cut.
func (e *engine) connect(p *peer) oracle.Accepted {
	e.t.Helper()
	for range 100 {
		m := e.hello()
		h, err := wire.DecodeHello(m)
		if err != nil {
			e.t.Fatal(err)
		}
		e.p, e.stream = p, p.n.Open(e.t.Context(), m)
		session, accepted, err := p.o.OpenBlocks(h, time.Now())
		if err != nil {
			e.t.Fatal(err)
		}
		e.session, e.applier = session, wire.NewApplier(h, session, p.n.cfg.Seed)
		e.stream.Begin(session)
		ok := true
		if accepted.SnapshotRequired {
			ok = e.snapshot()
		} else {
			for _, b := range e.sent[accepted.ResumeFrom-1:] {
				ok = ok && e.say(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: b}})
			}
		}
		if ok {
			return accepted
		}
		e.cut()
	}
	e.t.Fatal("cut off again and again")
	return oracle.Accepted{}
}

// cut ends the stream as a broken connection does.
func (e *engine) cut() {
	e.session.Close(time.Now())
	e.stream.Close()
}

// say sends one message, waits for its ack, and says whether that came; if not, another stream has taken over.
func (e *engine) say(m *kvoraclev1.ReportBlocksRequest) bool {
	e.t.Helper()
	ack, receipt, err := e.stream.Do(m, func() (oracle.Ack, error) { return e.applier.Apply(m, time.Now()) })
	if err != nil {
		return false
	}
	receipt.Wait(e.t.Context().Done())
	return ack.Resync == nil || e.snapshot()
}

// asked sends a snapshot if the oracle has asked for one.
func (e *engine) asked() {
	select {
	case <-e.session.Resyncs():
		if !e.snapshot() {
			e.again()
		}
	default:
	}
}

// again reconnects where the stream was cut.
func (e *engine) again() {
	e.t.Helper()
	e.cut()
	e.connect(e.p)
}

func (e *engine) snapshot() bool {
	e.t.Helper()
	ok := e.say(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotBegin{
		SnapshotBegin: &kvoraclev1.SnapshotBegin{Sequence: e.seq},
	}})
	var chunk kvoraclev1.SnapshotChunk
	for id, parent := range e.parent {
		chunk.Stores = append(chunk.Stores, storeOf(parent, id))
	}
	ok = ok && e.say(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotChunk{SnapshotChunk: &chunk}})
	return ok && e.say(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotEnd{
		SnapshotEnd: &kvoraclev1.SnapshotEnd{BlockCount: uint64(len(e.parent))},
	}})
}

func storeOf(parent uint64, ids ...uint64) *kvoraclev1.StoreBlocks {
	m := &kvoraclev1.StoreBlocks{Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids}}}
	if parent == 0 {
		m.Parent = &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}}
	} else {
		m.Parent = &kvoraclev1.StoreBlocks_ParentBlockId{ParentBlockId: parent}
	}
	return m
}

// work is one batch of stores and evictions, most of them stores.
func (e *engine) work() {
	e.t.Helper()
	e.seq++
	b := &kvoraclev1.BlockBatch{Sequence: e.seq}
	for range 1 + e.rng.IntN(4) {
		if len(e.order) > 0 && e.rng.IntN(3) == 0 {
			if id := e.order[e.rng.IntN(len(e.order))]; e.kids[id] == 0 && e.has(id) {
				e.kids[e.parent[id]]--
				delete(e.parent, id)
				b.Ops = append(b.Ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: &kvoraclev1.RemoveBlocks{BlockIds: []uint64{id}}}})
			}
			continue
		}
		parent := uint64(0)
		if len(e.order) > 0 {
			if id := e.order[e.rng.IntN(len(e.order))]; e.has(id) {
				parent = id
			}
		}
		ids := make([]uint64, 1+e.rng.IntN(20))
		p := parent
		for i := range ids {
			ids[i] = e.rng.Uint64() | 1
			e.parent[ids[i]] = p
			e.kids[p]++
			p = ids[i]
		}
		e.order = append(e.order, ids...)
		b.Ops = append(b.Ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: storeOf(parent, ids...)}})
	}
	e.sent = append(e.sent, b)
	if !e.say(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: b}}) {
		e.again()
	}
}

func (e *engine) has(id uint64) bool {
	_, ok := e.parent[id]
	return ok
}

// held is what the engine holds, sorted.
func (e *engine) held() []uint64 {
	out := make([]uint64, 0, len(e.parent))
	for id := range e.parent {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// believed is what a replica believes of a worker, sorted; nil if it does not know it or does not trust it.
func (p *peer) believed(worker string) []uint64 {
	v, err := p.o.Verify(worker, 0, time.Now())
	if err != nil || v.Confidence != oracle.Fresh {
		return nil
	}
	out := make([]uint64, 0, len(v.IDs[fleet.Device]))
	for _, id := range v.IDs[fleet.Device] {
		out = append(out, uint64(id))
	}
	slices.Sort(out)
	return out
}

// eventually waits for something that must come.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	end := time.NewTimer(patience)
	defer end.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !is() {
		select {
		case <-end.C:
			t.Fatalf("never: %s", what)
		case <-look.C:
		}
	}
}

// agree waits until replicas believe of each engine what it holds, block by block.
func agree(t *testing.T, peers []*peer, engines []*engine) {
	t.Helper()
	for _, p := range peers {
		for _, e := range engines {
			var got []uint64
			want := e.held()
			ok := false
			end := time.Now().Add(patience)
			for !ok && time.Now().Before(end) {
				e.asked()
				got = p.believed(e.worker)
				if ok = got != nil && slices.Equal(got, want); !ok {
					<-time.After(5 * time.Millisecond)
				}
			}
			if !ok {
				t.Fatalf("%s of %s (-want +got):\n%s%+v", p.n.cfg.Name, e.worker, cmp.Diff(len(want), len(got)), p.n.Stats())
			}
		}
	}
}
