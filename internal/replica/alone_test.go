package replica

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/journal"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/snapshot"
)

// former is one life of a process that is alone with its log.
type former struct {
	*peer
	dir  *snapshot.Dir
	j    *journal.Journal
	said *logged
}

// newFormer begins one in a folder: first what was saved, then the log, as the server does.
func newFormer(t *testing.T, path string) *former {
	t.Helper()
	said := &logged{}
	log := slog.New(slog.NewTextHandler(io.MultiWriter(&testLog{t: t, name: "self"}, said), nil))
	dir, err := snapshot.Open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	l := &former{peer: &peer{t: t, o: oracle.New(oracle.Config{}, nil)}, dir: dir, said: said}
	if got, err := dir.Load(t.Context(), l.o, time.Now()); err != nil || len(got.Refused) > 0 {
		t.Fatalf("%+v: %v", got, err)
	}
	l.j = journal.New(journal.Config{Dir: filepath.Join(path, "log"), MaxBytes: 1 << 30, Log: log})
	if err := l.j.Start(); err != nil {
		t.Fatal(err)
	}
	cfg := quick("self")
	cfg.Server = l.j
	if l.n, err = New(cfg, l.o, log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.n.Run(ctx) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		l.j.Close()
		_ = dir.Close()
	})
	t.Cleanup(l.stop)
	for _, c := range []<-chan struct{}{l.n.Replayed(), l.n.Joined()} {
		select {
		case <-c:
		case <-time.After(patience):
			t.Fatalf("does not begin: %+v", l.n.Stats())
		}
	}
	return l
}

// save saves everything while more is reported, and forgets what of the log is shown by it, unless it ends before.
func (l *former) save(meanwhile func(), isTrimmed bool) {
	l.t.Helper()
	mark, ok := l.n.Mark()
	if !ok {
		l.t.Fatalf("no mark: %+v", l.n.Stats())
	}
	meanwhile()
	if _, err := l.dir.Write(l.t.Context(), l.o, time.Now()); err != nil {
		l.t.Fatal(err)
	}
	if isTrimmed {
		l.n.Trim(mark)
	}
}

// remembers holds what a life begins with against what an engine holds: all of it, and nothing believed before it has spoken.
func (l *former) remembers(e *engine) {
	l.t.Helper()
	v, err := l.o.Verify(e.worker, 0, time.Now())
	if err != nil {
		l.t.Fatal(err)
	}
	got := make([]uint64, 0, len(v.IDs[fleet.Device]))
	for _, id := range v.IDs[fleet.Device] {
		got = append(got, uint64(id))
	}
	slices.Sort(got)
	if v.Confidence != oracle.Stale || !slices.Equal(got, e.held()) {
		l.t.Fatalf("%s begins %v with %d blocks, want stale with %d; %+v", e.worker, v.Confidence, len(got), len(e.held()), l.n.Stats())
	}
}

// TestALifeBeginsWhereTheLogEnds: a process that is alone with its log ends at any moment, with saves at others, while engines
// report, cut their streams, state their contents and start again. The next life begins with all that was acknowledged, and
// no reporter has to say anything twice.
func TestALifeBeginsWhereTheLogEnds(t *testing.T) {
	rng := rand.New(rand.NewPCG(20, 26))
	path := t.TempDir()
	var engines []*engine
	for i := range 3 {
		engines = append(engines, newEngine(t, fmt.Sprint("w", i), uint64(i)))
	}
	isDrained := false
	for k := range 8 {
		l := newFormer(t, path)
		for _, e := range engines {
			if k > 0 {
				l.remembers(e)
			}
			if a := e.connect(l.peer); a.SnapshotRequired || a.ResumeFrom != e.seq+1 {
				t.Fatalf("life %d: %s is told to go on with %+v, and stands at %d", k, e.worker, a, e.seq)
			}
			if l.believed(e.worker) == nil {
				t.Fatalf("life %d: %s has spoken and is not believed", k, e.worker)
			}
		}
		if w := l.o.Workers("", time.Now())[0]; k > 0 && w.IsDraining != isDrained {
			t.Fatalf("life %d: draining %v, want %v", k, w.IsDraining, isDrained)
		}
		for range 30 + rng.IntN(60) {
			e := engines[rng.IntN(len(engines))]
			switch rng.IntN(30) {
			case 0:
				l.save(func() {
					for range 1 + rng.IntN(5) {
						engines[rng.IntN(len(engines))].work()
					}
				}, rng.IntN(3) > 0)
			case 1:
				e.again()
			case 2:
				e.snapshot()
			case 3:
				e.restart(l.peer)
			case 4:
				isDrained = !isDrained
				a := Undrain
				if isDrained {
					a = Drain
				}
				l.n.Do(a, "w0", nil, func() { _, _ = l.o.Drain("w0", isDrained) })
			default:
				e.work()
			}
		}
		if isDegraded([]*peer{l.peer}) {
			t.Fatalf("something is not in the log: %+v", l.n.Stats())
		}
		l.stop() // no stream has said that it ends, and nothing is saved
	}
}

// TestALogOfOnesOwnDoesNotAge: what it has outlives any time that the process is away, also where the log was made by a version
// that gave it an age. Of other replicas, which there are none, nothing is said.
func TestALogOfOnesOwnDoesNotAge(t *testing.T) {
	path := t.TempDir()
	const age = 500 * time.Millisecond
	first := newFormer(t, path)
	was, err := first.n.js.Stream(t.Context(), first.n.name)
	if err != nil {
		t.Fatal(err)
	}
	older := was.CachedInfo().Config
	older.MaxAge, older.MaxBytes, older.Duplicates = age, older.MaxBytes/2, age
	if _, err := first.n.js.UpdateStream(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	first.stop()

	second := newFormer(t, path)
	e := newEngine(t, "w", 1)
	e.connect(second.peer)
	for range 5 {
		e.work()
	}
	now, err := second.n.js.Stream(t.Context(), second.n.name)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := now.CachedInfo().Config, was.CachedInfo().Config; got.MaxAge != 0 || got.MaxBytes != want.MaxBytes || got.Discard != jetstream.DiscardOld {
		t.Errorf("the log keeps %d bytes for %v, want %d without an age", got.MaxBytes, got.MaxAge, want.MaxBytes)
	}
	second.stop()
	<-time.After(3 * age)

	third := newFormer(t, path)
	third.remembers(e)
	if strings.Contains(third.said.String(), "other replicas") {
		t.Errorf("it is alone and says\n%s", third.said)
	}
}
