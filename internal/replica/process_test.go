package replica_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	nats "github.com/nats-io/nats-server/v2/server"
	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/server"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// What TestMain is told by whoever starts this program again, to be killed.
const (
	envProcess = "KVORACLE_TEST_PROCESS" // nats, or a replica's name
	envNATS    = "KVORACLE_TEST_NATS"    // addresses
	envStore   = "KVORACLE_TEST_STORE"   // folder of NATS
	envCluster = "KVORACLE_TEST_CLUSTER" // addresses of a cluster's members among themselves, its own first; none: it is alone
)

// TestMain is a replica or a NATS server where it is told to be, until its input ends.
func TestMain(m *testing.M) {
	name := os.Getenv(envProcess)
	if name == "" {
		m.Run()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	be := beReplica
	if name == "nats" {
		be = beNATS
	}
	if err := be(ctx, name); err != nil {
		fmt.Fprintln(os.Stderr, name, err) // whoever waits for its address gets none
	}
}

func beReplica(ctx context.Context, name string) error {
	s, err := server.New(server.Config{
		Listen: "127.0.0.1:0", NATSURL: "nats://" + strings.ReplaceAll(os.Getenv(envNATS), ",", ",nats://"), ReplicaID: name, Lease: time.Hour,
		WorkerLease: time.Hour, SnapshotInterval: time.Second, NATSCopies: strings.Count(os.Getenv(envNATS), ",") + 1,
	}, server.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)).With("replica", name)))
	if err != nil {
		return err
	}
	if err := s.Listen(ctx); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(os.Stdout, s.Addr())
	return s.Run(ctx)
}

func beNATS(ctx context.Context, _ string) error {
	a, err := net.ResolveTCPAddr("tcp", os.Getenv(envNATS))
	if err != nil {
		return err
	}
	opts := &nats.Options{Host: a.IP.String(), Port: a.Port, JetStream: true, StoreDir: os.Getenv(envStore), NoLog: true, NoSigs: true}
	if members := os.Getenv(envCluster); members != "" {
		own, _, _ := strings.Cut(members, ",")
		host, port, err := net.SplitHostPort(own)
		if err != nil {
			return err
		}
		opts.ServerName, opts.Cluster.Name, opts.Cluster.Host = own, "test", host
		if opts.Cluster.Port, err = strconv.Atoi(port); err != nil {
			return err
		}
		opts.Routes = nats.RoutesFromStr("nats://" + strings.ReplaceAll(members, ",", ",nats://"))
	}
	s, err := nats.NewServer(opts)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return errors.New("does not start")
	}
	_, _ = fmt.Fprintln(os.Stdout, s.Addr())
	<-ctx.Done()
	s.Shutdown()
	return nil
}

// quietAddress is one that is free, and that no connection is given by itself: whoever looks for a NATS that is away at such a
// port may find himself.
func quietAddress(t *testing.T) string {
	t.Helper()
	const from, to = 20_000, 32_000
	for range 100 {
		lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprint("127.0.0.1:", from+rand.IntN(to-from)))
		if err != nil {
			continue
		}
		_ = lis.Close()
		return lis.Addr().String()
	}
	t.Fatal("no port is free")
	return ""
}

// child is this program again, as something else.
type child struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string
	said    *lines // what it has said
	kill    func() // as a crash does
	end     func() // as an orderly stop does; waits for it
}

// signal sends it one.
func (c *child) signal(s os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// process starts one and waits until it says where it is.
func process(t *testing.T, name, natsAddress, store, cluster string) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), envProcess+"="+name, envNATS+"="+natsAddress, envStore+"="+store, envCluster+"="+cluster)
	said := &lines{}
	cmd.Stderr = io.MultiWriter(os.Stderr, said)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: cmd, said: said}
	wait := sync.OnceFunc(func() { _ = cmd.Wait() }) // killed, or ended
	c.kill = func() {
		_ = cmd.Process.Kill()
		_ = in.Close()
		wait()
	}
	c.end = func() {
		_ = in.Close()
		wait()
	}
	t.Cleanup(c.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%s does not start: %v", name, err)
	}
	c.address = strings.TrimSpace(line)
	return c
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// has says whether it has a line with all of some words.
func (l *lines) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return true
		}
	}
	return false
}

// natsProcess is NATS at an address that it can have again.
func natsProcess(t *testing.T, address, store string) *child {
	t.Helper()
	if address == "" {
		address = quietAddress(t)
	}
	return process(t, "nats", address, store, "")
}

// remote is a replica in a process of its own.
func remote(t *testing.T, name, natsAddress string) (*rig, *child) {
	t.Helper()
	c := process(t, name, natsAddress, "", "")
	conn, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r := &rig{t, conn, kvoraclev1.NewRouteServiceClient(conn), kvoraclev1.NewFleetServiceClient(conn)}
	waitFor(t, name+" is ready", func() bool { return r.is(healthReadiness) && r.is(healthReplication) })
	return r, c
}

// reporter tells of a worker that only ever stores, two blocks a batch, so that what it has told is known by the last batch.
type reporter struct {
	t      *testing.T
	worker string
	sent   uint64
	acked  uint64
	passed uint64 // of those sent, whose blocks are gone again
	stream kvoraclev1.RouteService_ReportBlocksClient
}

// connect goes on at a replica, which must know all that was acknowledged.
func (p *reporter) connect(r *rig) {
	p.t.Helper()
	var err error
	if p.stream, err = r.route.ReportBlocks(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	p.send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
		Worker:      &kvoraclev1.WorkerSpec{WorkerId: p.worker, Address: p.worker + ":8000", Model: "demo", BlockSize: 16},
		Incarnation: 1, NextSequence: p.sent + 1, HashScheme: "xxh3-64/1337", Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
	}}})
	m, err := p.stream.Recv()
	if err != nil {
		p.t.Fatal(err)
	}
	if a := m.GetAccepted(); a.GetSnapshotRequired() || a.GetResumeFrom() <= p.acked {
		p.t.Fatalf("told to go on with %v though %d was acknowledged", a, p.acked)
	}
	p.acked = m.GetAccepted().GetResumeFrom() - 1 // the last may have been taken in and its ack lost
	for seq := m.GetAccepted().GetResumeFrom(); seq <= p.sent; seq++ {
		p.batch(seq)
	}
	p.await(p.sent)
}

func (p *reporter) send(m *kvoraclev1.ReportBlocksRequest) {
	p.t.Helper()
	if err := p.stream.Send(m); err != nil {
		p.t.Fatal(err)
	}
}

func (p *reporter) batch(seq uint64) {
	p.t.Helper()
	p.send(storing(seq))
}

// storing is the batch of a number.
func storing(seq uint64) *kvoraclev1.ReportBlocksRequest {
	return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{
		Sequence: seq, Ops: []*kvoraclev1.BlockOp{{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
			Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
			Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: []uint64{2 * seq, 2*seq + 1}}},
		}}}},
	}}}
}

// await waits for an ack.
func (p *reporter) await(seq uint64) {
	p.t.Helper()
	for p.acked < seq {
		m, err := p.stream.Recv()
		if err != nil {
			p.t.Fatal(err)
		}
		p.acked = max(p.acked, m.GetAck().GetAppliedSequence())
	}
}

// work tells some more.
func (p *reporter) work(batches int) {
	p.t.Helper()
	for range batches {
		p.sent++
		p.batch(p.sent)
	}
	p.await(p.sent)
}

// known waits until replicas know all that was told.
func (p *reporter) known(all ...*rig) {
	p.t.Helper()
	for _, r := range all {
		waitFor(p.t, "all is known", func() bool {
			x := r.rank(p.worker)
			return x.GetAppliedSequence() == p.sent && x.GetDeviceBlocks() == 2*(p.sent-p.passed) && x.GetConfidence().GetBlocks() == kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH
		})
	}
}

// tells waits until one replica hears of what another decides: what NATS loses is not told again, so that goes on.
func tells(from, to *rig) {
	from.t.Helper()
	before := to.booked("w")
	waitFor(from.t, "bookings are told", func() bool {
		if _, err := from.ask(0); err != nil {
			from.t.Fatal(err)
		}
		return to.booked("w") > before
	})
}

// A replica is killed, and NATS is, with its log and without: whoever is left decides, nothing that was acknowledged is lost,
// and in the end all know the same.
func TestProcessesDie(t *testing.T) {
	store := t.TempDir()
	broker := natsProcess(t, "", store)
	address := broker.address
	a, first := remote(t, "a", address)
	b, _ := remote(t, "b", address)
	p := &reporter{t: t, worker: "w"}
	p.connect(a)
	p.work(50)
	p.known(a, b)
	decides := func(all ...*rig) {
		t.Helper()
		for i := range 20 {
			if _, err := all[i%len(all)].ask(i); err != nil {
				t.Fatalf("no decision: %v", err)
			}
		}
	}
	decides(a, b)
	tells(b, a)

	tells(a, b)
	p.sent++ // on its way when the replica dies
	p.batch(p.sent)
	first.kill()
	decides(b)
	p.connect(b) // nothing acknowledged is lost
	p.work(50)
	a, _ = remote(t, "a", address) // the next life knows all when it is ready
	if x := a.rank("w"); x.GetDeviceBlocks() != 2*p.sent {
		t.Errorf("ready with %d blocks, want %d", x.GetDeviceBlocks(), 2*p.sent)
	}
	decides(a, b)

	for _, isEmpty := range []bool{false, true} {
		broker.kill()
		for _, r := range []*rig{a, b} {
			waitFor(t, "NATS is missed", func() bool { return !r.is(healthReplication) })
		}
		decides(a, b)
		p.work(10) // acknowledged without the log
		if isEmpty {
			store = t.TempDir()
		}
		broker = natsProcess(t, address, store)
		p.work(10)
		p.known(a, b)
		for _, r := range []*rig{a, b} {
			waitFor(t, "all is well again", func() bool { return r.is(healthReplication) && r.is(healthReadiness) })
		}
		tells(b, a)
		tells(a, b)
	}
}

// TestAReplicaBeginsWithASnapshotInNATS: all replicas are killed, and NATS goes on. The next one begins with the newest snapshot
// that they have left in the object store and with what the log has behind it, which is all that was acknowledged; and it
// believes none of it until the reporter has spoken, who goes on where it stood.
func TestAReplicaBeginsWithASnapshotInNATS(t *testing.T) {
	t.Parallel() // most of it is waiting
	broker := natsProcess(t, "", t.TempDir())
	a, first := remote(t, "a", broker.address)
	b, second := remote(t, "b", broker.address)
	p, q := &reporter{t: t, worker: "w"}, &reporter{t: t, worker: "x"}
	p.connect(a)
	q.connect(b)
	p.work(50)
	q.work(50)
	store := newest(t, broker.address)
	was := store()
	waitFor(t, "a snapshot of that", func() bool { now := store(); return now != "" && now != was })
	p.work(50) // mostly behind it
	q.work(7)
	first.kill()
	second.kill()

	start := time.Now()
	c, third := remote(t, "c", broker.address)
	t.Logf("ready %v after its start", time.Since(start).Round(time.Millisecond))
	if !third.said.has("a copy of the index in NATS is loaded") {
		t.Error("it has not begun with it")
	}
	for _, r := range []*reporter{p, q} {
		if x := c.rank(r.worker); x.GetAppliedSequence() != r.sent || x.GetDeviceBlocks() != 2*r.sent ||
			x.GetConfidence().GetBlocks() != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_STALE {
			t.Errorf("%s begins with %v, want %d blocks that are not believed", r.worker, x, 2*r.sent)
		}
		r.connect(c)
		r.work(10)
		r.known(c)
	}
}

// newest looks for the newest snapshot that replicas keep in NATS.
func newest(t *testing.T, address string) func() (digest string) {
	t.Helper()
	nc, err := natsclient.Connect("nats://"+address, natsclient.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return func() string {
		bucket, err := js.ObjectStore(t.Context(), "kvoracle_index")
		if err != nil {
			return ""
		}
		all, err := bucket.List(t.Context())
		if err != nil {
			return ""
		}
		return slices.MaxFunc(all, func(a, b *jetstream.ObjectInfo) int { return a.ModTime.Compare(b.ModTime) }).NUID
	}
}
