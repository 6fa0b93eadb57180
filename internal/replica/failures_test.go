//go:build linux || darwin

package replica_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// asked is a stream of questions that goes on whatever happens: to one replica, and if that does not answer to the next. None
// may stay without a decision.
type asked struct {
	mu              sync.Mutex
	all             []*rig // which may be asked now
	decided, turned atomic.Int64
	stop            func()
}

// asks begins to ask.
func asks(t *testing.T, all ...*rig) *asked {
	t.Helper()
	q := &asked{all: all}
	over, ended := make(chan struct{}), make(chan struct{})
	q.stop = sync.OnceFunc(func() {
		close(over)
		<-ended
	})
	t.Cleanup(q.stop)
	pause := time.NewTicker(5 * time.Millisecond)
	go func() {
		defer close(ended)
		defer pause.Stop()
		for n := 0; ; n++ {
			select {
			case <-over:
				return
			case <-pause.C:
			}
			q.mu.Lock()
			all := q.all
			q.mu.Unlock()
			var err error
			for k := range all {
				if _, err = all[(n+k)%len(all)].ask(n); err == nil {
					q.decided.Add(1)
					break
				}
				if c := status.Code(err); c != codes.Unavailable && c != codes.ResourceExhausted {
					break
				}
				q.turned.Add(1)
			}
			if err != nil && t.Context().Err() == nil {
				t.Errorf("question %d has no decision: %v", n, err)
				return
			}
		}
	}()
	return q
}

// of says who may be asked from now on.
func (q *asked) of(all ...*rig) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all = all
}

// goesOn waits for more decisions.
func (q *asked) goesOn(t *testing.T) {
	t.Helper()
	before := q.decided.Load()
	waitFor(t, "decisions go on", func() bool { return q.decided.Load() >= before+20 || t.Failed() })
}

// TestAMemberOfTheClusterDies: the log has three copies on a cluster of three NATS servers, and the one that leads it is
// killed. Decisions and reports go on; what was acknowledged is known to all, and to a replica that starts then.
func TestAMemberOfTheClusterDies(t *testing.T) {
	t.Parallel() // most of it is waiting
	var clients, routes, stores [3]string
	for i := range clients {
		clients[i], routes[i], stores[i] = quietAddress(t), quietAddress(t), t.TempDir()
	}
	member := func(i int) *child {
		t.Helper()
		return process(t, "nats", clients[i], stores[i], strings.Join([]string{routes[i], routes[(i+1)%3], routes[(i+2)%3]}, ","))
	}
	var cluster [3]*child
	for i := range cluster {
		cluster[i] = member(i)
	}
	addresses := strings.Join(clients[:], ",")
	a, _ := remote(t, "a", addresses)
	b, _ := remote(t, "b", addresses)
	p := &reporter{t: t, worker: "w"}
	p.connect(a)
	p.work(20)
	p.known(a, b)
	q := asks(t, a, b)
	leader := leads(t, addresses, routes[:])
	cluster[leader].kill()
	start := time.Now()
	q.goesOn(t)
	p.work(20)
	t.Logf("acknowledged %v after the kill", time.Since(start).Round(time.Millisecond))
	p.known(a, b)
	t.Logf("known alike %v after the kill", time.Since(start).Round(time.Millisecond))
	cluster[leader] = member(leader)
	for _, r := range []*rig{a, b} {
		waitFor(t, "all is well again", func() bool { return r.is(healthReplication) && r.is(healthReadiness) })
	}
	q.stop()
	c, _ := remote(t, "c", addresses)
	if x := c.rank("w"); x.GetDeviceBlocks() != 2*p.sent {
		t.Errorf("ready with %d blocks, want %d", x.GetDeviceBlocks(), 2*p.sent)
	}
}

// leads says which member leads the log, once all of them have all of it.
func leads(t *testing.T, addresses string, routes []string) (member int) {
	t.Helper()
	nc, err := nats.Connect("nats://"+strings.ReplaceAll(addresses, ",", ",nats://"), nats.Timeout(time.Minute), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the log has a leader and two that follow", func() bool {
		s, err := js.Stream(t.Context(), "kvoracle_log")
		if err != nil {
			return false
		}
		c := s.CachedInfo().Cluster
		if c == nil || len(c.Replicas) != 2 || !c.Replicas[0].Current || !c.Replicas[1].Current {
			return false
		}
		for i, r := range routes {
			if r == c.Leader {
				member = i
				return true
			}
		}
		return false
	})
	return member
}

// TestNATSStandsStill: the process that keeps the log is stopped for some seconds, as by a disk that hangs. Decisions do not
// notice, reports are acknowledged without the log, which is said, and all is known alike soon after it goes on.
func TestNATSStandsStill(t *testing.T) {
	t.Parallel() // most of it is waiting
	broker := natsProcess(t, "", t.TempDir())
	a, first := remote(t, "a", broker.address)
	b, _ := remote(t, "b", broker.address)
	p := &reporter{t: t, worker: "w"}
	p.connect(a)
	p.work(20)
	p.known(a, b)
	q := asks(t, a, b)
	broker.signal(syscall.SIGSTOP)
	start, before := time.Now(), 0
	q.goesOn(t)
	p.work(20)
	t.Logf("acknowledged %v after it stood still", time.Since(start).Round(time.Millisecond))
	waitFor(t, "it is said", func() bool { return !a.is(healthReplication) })
	if !a.is(healthReadiness) {
		t.Error("not ready, for want of the log")
	}
	for i := range batches() { // which are not kept for later
		if p.comesAndGoes(); i == 100 {
			before = first.resident()
		}
	}
	q.goesOn(t)
	grown := first.resident() - before
	if t.Logf("it has grown by %d MiB", grown>>20); grown > 32<<20 && !isRace {
		t.Error("that is too much")
	}
	broker.signal(syscall.SIGCONT)
	start = time.Now()
	p.known(a, b)
	t.Logf("known alike %v after it went on", time.Since(start).Round(time.Millisecond))
	for _, r := range []*rig{a, b} {
		waitFor(t, "all is well again", func() bool { return r.is(healthReplication) && r.is(healthReadiness) })
	}
	q.goesOn(t)
	q.stop()
}

// TestRollingRestart: three replicas are ended in an orderly way and started again, one after another, under questions and
// reports. Each reporter moves to the next when its replica goes, where all that was acknowledged to it is known; no question
// stays without a decision, and each replica knows everything when it is ready again.
func TestRollingRestart(t *testing.T) {
	t.Parallel() // most of it is waiting
	broker := natsProcess(t, "", t.TempDir())
	names := []string{"a", "b", "c"}
	var all [3]*rig
	var procs [3]*child
	for i, name := range names {
		all[i], procs[i] = remote(t, name, broker.address)
	}
	var reporters [3]*reporter
	var at [3]int // the replica that each reports to
	for i, worker := range []string{"w1", "w2", "w3"} {
		reporters[i], at[i] = &reporter{t: t, worker: worker}, i
		reporters[i].connect(all[i])
		reporters[i].work(20)
	}
	for _, p := range reporters {
		p.known(all[:]...)
	}
	q := asks(t, all[:]...)
	for i, name := range names {
		next := (i + 1) % 3
		q.of(all[next], all[(i+2)%3])
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			procs[i].end()
		}()
		for k, p := range reporters {
			if at[k] != i {
				continue
			}
			for p.tryWork() { // until the replica sends it away
			}
			at[k] = next
			p.connect(all[next])
		}
		for _, p := range reporters {
			p.work(10)
		}
		<-ended
		start := time.Now()
		all[i], procs[i] = remote(t, name, broker.address)
		t.Logf("%s is ready %v after its start", name, time.Since(start).Round(time.Millisecond))
		for _, p := range reporters {
			if x := all[i].rank(p.worker); x.GetDeviceBlocks() != 2*p.sent {
				t.Errorf("%s is ready with %d blocks of %s, want %d", name, x.GetDeviceBlocks(), p.worker, 2*p.sent)
			}
		}
		q.of(all[:]...)
		q.goesOn(t)
	}
	for _, p := range reporters {
		p.work(10)
		p.known(all[:]...)
	}
	q.stop()
	t.Logf("%d decisions, %d turned to another replica", q.decided.Load(), q.turned.Load())
}

// tryWork tells one batch and waits for its ack; false: the stream has ended.
func (p *reporter) tryWork() bool {
	p.sent++
	p.stream.Send(storing(p.sent)) //nolint:errcheck // Recv says why
	for p.acked < p.sent {
		m, err := p.stream.Recv()
		if err != nil {
			return false
		}
		p.acked = max(p.acked, m.GetAck().GetAppliedSequence())
	}
	return true
}

// batches is how many of 64 KiB are told to a process that must not keep them: four times what it may grow by. The race detector
// has memory of its own, and time.
func batches() int {
	if isRace {
		return 128
	}
	return 2048
}

// comesAndGoes tells a batch that stores 4,096 blocks and removes them.
func (p *reporter) comesAndGoes() {
	p.t.Helper()
	p.sent++
	p.passed++
	ids := make([]uint64, 4096)
	for i := range ids {
		ids[i] = p.sent<<32 | uint64(i) | 1<<31
	}
	p.send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{
		Sequence: p.sent, Ops: []*kvoraclev1.BlockOp{
			{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
				Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
				Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids}},
			}}},
			{Op: &kvoraclev1.BlockOp_Remove{Remove: &kvoraclev1.RemoveBlocks{BlockIds: ids}}},
		},
	}}})
	p.await(p.sent)
}

// resident is the memory that a process has, where it can be known.
func (c *child) resident() (bytes int) {
	c.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0 // no Linux
	}
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			if _, err := fmt.Sscan(v, &bytes); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	return bytes << 10
}
