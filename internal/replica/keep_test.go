package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/snapshot"
)

// keeps makes a replica one that keeps copies in NATS, of a deployment with a secret.
func (p *peer) keeps(cfg *Config, secret string) {
	cfg.Save = func(ctx context.Context, to io.Writer) error {
		_, err := snapshot.Write(ctx, to, secret, p.o, time.Now())
		return err
	}
	cfg.Load = func(open func() (io.ReadCloser, error)) error {
		_, err := snapshot.Load(open, secret, p.o, time.Now())
		return err
	}
}

// keeper is quick for a replica that makes a copy when the test says so.
func keeper(name string) Config {
	cfg := quick(name)
	cfg.SaveEvery = 24 * time.Hour
	return cfg
}

// makeCopy has a replica make one now.
func (p *peer) makeCopy() {
	p.t.Helper()
	b, err := p.n.bucket(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	all, err := p.n.lookAtCopies(p.t.Context(), b, p.n.logNow())
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.n.save(p.t.Context(), b, &all[copies-1]); err != nil {
		p.t.Fatal(err)
	}
}

// bucketOf is the store of copies, by a client of its own.
func bucketOf(t *testing.T, b *broker) (jetstream.JetStream, jetstream.ObjectStore) {
	t.Helper()
	nc, err := nats.Connect(b.now.Load().ClientURL(), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	store, err := js.CreateOrUpdateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "kvoracle_index", MaxBytes: 2 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return js, store
}

// announced is how often replicas have told whole targets.
func announced(peers []*peer) (times uint64) {
	for _, p := range peers {
		times += p.n.Stats().Announced
	}
	return times
}

// TestAFreshReplicaBeginsWithACopy: what was reported before the copy comes out of it, what came since out of the log, and
// nobody has to tell anything again but where it stands; nor is anything believed before that.
func TestAFreshReplicaBeginsWithACopy(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 4, func(c *Config) { c.SaveEvery = 24 * time.Hour })
	work := func() {
		for range 20 {
			for _, e := range engines {
				e.work()
			}
		}
	}
	work()
	peers[1].makeCopy()
	work()
	engines[3].again()
	before := announced(peers)
	d := joinedPeer(t, b, keeper("d"))
	for _, e := range engines {
		if got := d.believed(e.worker); !slices.Equal(got, e.held()) {
			t.Errorf("joined with %d blocks of %s, want %d", len(got), e.worker, len(e.held()))
		}
	}
	if s := d.n.Stats(); s.Loaded != 1 || !isDegraded(peers) && (announced(peers) != before || s.LackedTotal != 0) {
		t.Errorf("%d were announced; %+v", announced(peers)-before, s)
	}
	work()
	agree(t, append(peers, d), engines)
}

// TestACopyIsNotBelievedUntilSomebodySpeaks: of a worker whose replica is gone, all is there and counts as what it is, unverified;
// its reporter goes on where it stood.
func TestACopyIsNotBelievedUntilSomebodySpeaks(t *testing.T) {
	b := newBroker(t)
	a, other := joinedPeer(t, b, keeper("a")), joinedPeer(t, b, keeper("b"))
	e := newEngine(t, "w", 3)
	e.connect(a)
	for range 10 {
		e.work()
	}
	other.makeCopy()
	for range 10 {
		e.work()
	}
	agree(t, []*peer{a, other}, []*engine{e})
	a.cable.cut()
	other.stop()
	d := joinedPeer(t, b, keeper("d"))
	v, err := d.o.Verify("w", 0, time.Now())
	if err != nil || v.Confidence != oracle.Stale || len(v.IDs[fleet.Device]) != len(e.held()) {
		t.Fatalf("it begins %v with %d blocks, want stale with %d: %v", v.Confidence, len(v.IDs[fleet.Device]), len(e.held()), err)
	}
	if got := e.connect(d); got.SnapshotRequired || got.ResumeFrom != e.seq+1 {
		t.Errorf("the reporter is told %+v, want to go on", got)
	}
	agree(t, []*peer{d}, []*engine{e})
}

// TestCopiesAndStorms: replicas end and begin at any moment, with copies of any age, while engines report, move, cut their
// streams and start again, and operators drain. Whoever joins knows what all others do.
func TestCopiesAndStorms(t *testing.T) {
	rng := rand.New(rand.NewPCG(20, 27))
	b := newBroker(t)
	names := []string{"a", "b", "c"}
	peers := make([]*peer, len(names))
	for i, name := range names {
		peers[i] = joinedPeer(t, b, keeper(name))
	}
	var engines []*engine
	for i := range 4 {
		e := newEngine(t, fmt.Sprint("w", i), uint64(i))
		e.connect(peers[i%3])
		engines = append(engines, e)
	}
	loaded := uint64(0)
	for range 6 {
		for range 60 {
			e := engines[rng.IntN(len(engines))]
			switch rng.IntN(25) {
			case 0:
				var wg sync.WaitGroup
				wg.Go(peers[rng.IntN(3)].makeCopy)
				for range 10 {
					engines[rng.IntN(len(engines))].work()
				}
				wg.Wait()
			case 1:
				e.cut()
				e.connect(peers[rng.IntN(3)])
			case 2:
				e.snapshot()
			case 3:
				e.restart(e.p)
			case 4:
				is := rng.IntN(2) == 0
				a := Undrain
				if is {
					a = Drain
				}
				p := peers[rng.IntN(3)]
				p.n.Do(a, "w0", nil, func() { _, _ = p.o.Drain("w0", is) })
			default:
				e.work()
			}
		}
		i := rng.IntN(3)
		peers[i].stop()
		for _, e := range engines {
			if e.p == peers[i] {
				e.connect(peers[(i+1)%3])
			}
		}
		peers[i] = joinedPeer(t, b, keeper(names[i]))
		loaded += peers[i].n.Stats().Loaded
		agree(t, peers, engines)
		was := peers[(i+1)%3].o.Workers("", time.Now())
		for k, w := range peers[i].o.Workers("", time.Now()) {
			if w.Spec.Worker != was[k].Spec.Worker || w.IsDraining != was[k].IsDraining {
				t.Errorf("%s: draining %v, another says %v of %s", w.Spec.Worker, w.IsDraining, was[k].IsDraining, was[k].Spec.Worker)
			}
		}
	}
	if loaded == 0 {
		t.Error("no copy was ever begun with")
	}
}

// bad is a copy that must not be taken, and what is said of it.
type bad struct {
	name, says string
	put        func(t *testing.T, js jetstream.JetStream, store jetstream.ObjectStore, good []byte, meta jetstream.ObjectMeta)
}

func putAs(change func([]byte, *jetstream.ObjectMeta) []byte) func(*testing.T, jetstream.JetStream, jetstream.ObjectStore, []byte, jetstream.ObjectMeta) {
	return func(t *testing.T, _ jetstream.JetStream, store jetstream.ObjectStore, good []byte, meta jetstream.ObjectMeta) {
		data := change(slices.Clone(good), &meta)
		if _, err := store.PutBytes(t.Context(), meta.Name, nil); err != nil { // what was there is gone
			t.Fatal(err)
		}
		if _, err := store.Put(t.Context(), meta, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
	}
}

func badCopies() []bad {
	return []bad{
		{"damaged", "the checksum does not match", putAs(func(d []byte, _ *jetstream.ObjectMeta) []byte { d[len(d)/2] ^= 4; return d })},
		{"cut short", "it ends in the middle", putAs(func(d []byte, _ *jetstream.ObjectMeta) []byte { return d[:len(d)-9] })},
		{"too long", "it goes on after its end", putAs(func(d []byte, _ *jetstream.ObjectMeta) []byte { return append(d, 0) })},
		{"of another kind", "it does not begin with", putAs(func([]byte, *jetstream.ObjectMeta) []byte { return []byte("no copy at all") })},
		{"of another version", "of version 2, want 1", putAs(func(d []byte, _ *jetstream.ObjectMeta) []byte { return reversion(d) })},
		{"of another log", "of another log", putAs(func(d []byte, m *jetstream.ObjectMeta) []byte {
			m.Metadata[metaLog] = "12345"
			return d
		})},
		{"of no log", "does not name a position", putAs(func(d []byte, m *jetstream.ObjectMeta) []byte {
			delete(m.Metadata, metaPosition)
			return d
		})},
		{"of the future", "has lost its end", putAs(func(d []byte, m *jetstream.ObjectMeta) []byte {
			m.Metadata[metaPosition] = strconv.Itoa(1 << 50)
			return d
		})},
		{"without its middle", "", func(t *testing.T, js jetstream.JetStream, store jetstream.ObjectStore, good []byte, meta jetstream.ObjectMeta) {
			t.Helper()
			meta.Opts.ChunkSize = uint32(len(good)/3 + 1)
			if _, err := store.Put(t.Context(), meta, bytes.NewReader(good)); err != nil {
				t.Fatal(err)
			}
			s, err := js.Stream(t.Context(), "OBJ_kvoracle_index")
			if err != nil {
				t.Fatal(err)
			}
			if err := s.DeleteMsg(t.Context(), s.CachedInfo().State.LastSeq-2); err != nil {
				t.Fatal(err)
			}
		}},
	}
}

// reversion makes a copy one of the next version, which nobody else would know by its checksum.
func reversion(d []byte) []byte {
	const head = 8 // of the file, and of a frame
	payload := d[2*head : 2*head+int(binary.LittleEndian.Uint32(d[head:]))]
	payload[1]++
	binary.LittleEndian.PutUint32(d[head+4:], crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)))
	return d
}

// TestCopiesThatMustNotBeTaken: each is named with its fault, and the one before it is taken, whole. If there is none, all is
// asked for.
func TestCopiesThatMustNotBeTaken(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 2, func(c *Config) { c.SaveEvery = 24 * time.Hour })
	js, store := bucketOf(t, b)
	for range 30 {
		for _, e := range engines {
			e.work()
		}
	}
	peers[0].makeCopy()
	peers[1].makeCopy()
	all, err := peers[0].n.lookAtCopies(t.Context(), store, peers[0].n.logNow())
	if err != nil || all[0].err != nil || all[1].err != nil || all[2].info != nil {
		t.Fatalf("%+v: %v", all, err)
	}
	newest, older := all[0], all[1]
	good, err := store.GetBytes(t.Context(), newest.name)
	if err != nil {
		t.Fatal(err)
	}
	begin := func(name, secret string) (*peer, *logged) {
		t.Helper()
		said := &logged{}
		p := newPeerWith(t, b, keeper(name), func(p *peer, cfg *Config) {
			p.keeps(cfg, secret)
			p.said = said
		})
		p.joins()
		return p, said
	}
	for i, x := range badCopies() {
		t.Run(x.name, func(t *testing.T) {
			meta := newest.info.ObjectMeta
			meta.Metadata = map[string]string{metaLog: newest.info.Metadata[metaLog], metaPosition: newest.info.Metadata[metaPosition]}
			meta.Opts = &jetstream.ObjectMetaOptions{ChunkSize: copyChunk}
			x.put(t, js, store, good, meta)
			p, said := begin("x"+strconv.Itoa(i), "")
			defer p.stop()
			if s := p.n.Stats(); s.Unloaded != 1 || s.Loaded != 1 {
				t.Errorf("%d refused, %d taken, want one of each", s.Unloaded, s.Loaded)
			}
			if text := said.String(); !strings.Contains(text, "cannot be used") || !strings.Contains(text, newest.name) || !strings.Contains(text, x.says) ||
				!strings.Contains(text, `is loaded" bucket=kvoracle_index name=`+older.name) {
				t.Errorf("it says\n%s", text)
			}
			for _, e := range engines {
				if !slices.Equal(p.believed(e.worker), e.held()) {
					t.Errorf("it begins with %d blocks, want %d", len(p.believed(e.worker)), len(e.held()))
				}
			}
		})
	}
	t.Run("of another deployment", func(t *testing.T) {
		p, said := begin("y", "a secret")
		defer p.stop()
		if s := p.n.Stats(); s.Unloaded != 2 || s.Loaded != 0 || !strings.Contains(said.String(), "another deployment") || !strings.Contains(said.String(), "no copy of the index in NATS") {
			t.Errorf("%+v; it says\n%s", s, said)
		}
	})
	t.Run("whose log has gone on", func(t *testing.T) {
		log, err := js.Stream(t.Context(), "kvoracle_log")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			engines[0].work()
		}
		if err := log.Purge(t.Context(), jetstream.WithPurgeKeep(1)); err != nil {
			t.Fatal(err)
		}
		p, said := begin("z", "")
		defer p.stop()
		if s := p.n.Stats(); s.Unloaded != 2 || s.Loaded != 0 || !strings.Contains(said.String(), "of the log, which begins with") {
			t.Errorf("%+v; it says\n%s", s, said)
		}
		agree(t, append(peers, p), engines)
	})
}

// TestACopyThatGoesAway: its store is deleted, or another is written into its place, before it is read for the second time.
// Nothing of it is there then, and all is asked for.
func TestACopyThatGoesAway(t *testing.T) {
	for name, away := range map[string]func(*testing.T, jetstream.JetStream, jetstream.ObjectStore){
		"deleted": func(t *testing.T, js jetstream.JetStream, _ jetstream.ObjectStore) {
			t.Helper()
			if err := js.DeleteObjectStore(t.Context(), "kvoracle_index"); err != nil {
				t.Error(err)
			}
		},
		"replaced": func(t *testing.T, _ jetstream.JetStream, store jetstream.ObjectStore) {
			t.Helper()
			all, err := store.List(t.Context())
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			same, err := store.GetBytes(t.Context(), all[0].Name)
			if err != nil {
				t.Fatal(err)
			}
			meta := all[0].ObjectMeta
			if _, err := store.Put(t.Context(), meta, bytes.NewReader(same)); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { goesAway(t, away) })
	}
}

func goesAway(t *testing.T, away func(*testing.T, jetstream.JetStream, jetstream.ObjectStore)) {
	t.Helper()
	b := newBroker(t)
	peers, engines := trio(t, b, 2, func(c *Config) { c.SaveEvery = 24 * time.Hour })
	js, store := bucketOf(t, b)
	for _, e := range engines {
		e.work()
	}
	peers[0].makeCopy()
	var failed error
	left := -1
	d := newPeerWith(t, b, keeper("d"), func(p *peer, cfg *Config) {
		load, opened := cfg.Load, 0
		cfg.Load = func(open func() (io.ReadCloser, error)) error {
			failed = load(func() (io.ReadCloser, error) {
				if opened++; opened == 2 {
					away(t, js, store)
				}
				return open()
			})
			left = len(p.o.Workers("", time.Now()))
			return failed
		}
	})
	d.joins()
	if s := d.n.Stats(); failed == nil || left != 0 || s.Unloaded != 1 || s.Loaded != 0 {
		t.Errorf("%v, with %d workers left behind: %+v", failed, left, s)
	}
	agree(t, append(peers, d), engines)
}

// TestACopyThatStopsComing: the way to NATS swallows it while most of it is still there. Reading it ends.
func TestACopyThatStopsComing(t *testing.T) {
	const size = 48 << 20 // more than NATS has under way
	b := newBroker(t)
	a := joinedPeer(t, b, keeper("a"))
	_, store := bucketOf(t, b)
	if _, err := store.Put(t.Context(), jetstream.ObjectMeta{
		Name: "index-0", Metadata: map[string]string{metaLog: strconv.FormatInt(a.n.logNow(), 10), metaPosition: "0"},
	}, io.LimitReader(zeros{}, size)); err != nil {
		t.Fatal(err)
	}
	var got int64
	var failed error
	cfg := keeper("d")
	cfg.natsWait = 500 * time.Millisecond
	d := newPeerWith(t, b, cfg, func(p *peer, cfg *Config) {
		cfg.Load = func(open func() (io.ReadCloser, error)) error {
			r, err := open()
			if err != nil {
				return err
			}
			defer func() { _ = r.Close() }()
			first, err := io.CopyN(io.Discard, r, 1<<20)
			if err != nil {
				return err
			}
			p.cable.swallow()
			got, failed = io.Copy(io.Discard, r)
			got += first
			p.cable.mend()
			return failed
		}
	})
	d.joins()
	if failed == nil || got == size || d.n.Stats().Unloaded != 1 {
		t.Errorf("%d bytes came, then %v: %+v", got, failed, d.n.Stats())
	}
}

// zeros is a reader of them.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestAWriterThatDies: its connection ends in the middle of a copy. What was there is still there, nothing of the half is
// shown, and the next writer sweeps it away.
func TestAWriterThatDies(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 2, func(c *Config) { c.SaveEvery = 24 * time.Hour })
	js, store := bucketOf(t, b)
	for _, e := range engines {
		e.work()
	}
	for range copies { // every place is taken
		peers[0].makeCopy()
	}
	x := newPeerWith(t, b, keeper("x"), func(p *peer, cfg *Config) {
		cfg.Save = func(_ context.Context, to io.Writer) error {
			_, err := io.CopyN(to, zeros{}, 1<<20)
			p.n.nc.Close() // as the system does for a process that is gone
			return err
		}
	})
	x.joins()
	all, err := x.n.lookAtCopies(t.Context(), store, x.n.logNow())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := x.n.bucket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := x.n.save(t.Context(), ours, &all[copies-1]); err == nil {
		t.Fatal("it was written all the same")
	}
	x.stop()
	remains := func() int {
		return len(subjects(t, js, "$O.kvoracle_index.C.>")) - copies
	}
	if n := remains(); n != 1 {
		t.Fatalf("remains of %d copies are there, want 1", n)
	}
	now, err := peers[0].n.lookAtCopies(t.Context(), store, peers[0].n.logNow())
	if err != nil {
		t.Fatal(err)
	}
	for i := range now {
		if now[i].err != nil || now[i].info.NUID != all[i].info.NUID {
			t.Errorf("%s has changed: %+v", now[i].name, now[i])
		}
	}
	d := joinedPeer(t, b, keeper("d"))
	if s := d.n.Stats(); s.Loaded != 1 || s.Unloaded != 0 {
		t.Errorf("%+v", s)
	}
	if peers[1].n.sweep(t.Context(), now); remains() != 1 {
		t.Error("what may still be written was swept")
	}
	peers[1].n.cfg.sweepAfter = 0
	if peers[1].n.sweep(t.Context(), now); remains() != 0 {
		t.Errorf("it was not swept: %+v", peers[1].n.Stats())
	}
	agree(t, append(peers, d), engines)
}

// TestCopiesComeByThemselves: one of the replicas makes one when there has been none for the interval, over the oldest, and all
// of them together never take more than their places.
func TestCopiesComeByThemselves(t *testing.T) {
	b := newBroker(t)
	peers, engines := trio(t, b, 1, func(c *Config) { c.SaveEvery = 100 * time.Millisecond })
	kept := func() (n uint64) {
		for _, p := range peers {
			n += p.n.Stats().Kept
		}
		return n
	}
	eventually(t, "more copies than there are places", func() bool {
		engines[0].work()
		return kept() > copies+3
	})
	for _, p := range peers {
		p.stop()
	}
	js, _ := bucketOf(t, b)
	if n := len(subjects(t, js, "$O.kvoracle_index.M.>")); n != copies {
		t.Errorf("%d copies are there, want %d", n, copies)
	}
}

// subjects are those of the store that match.
func subjects(t *testing.T, js jetstream.JetStream, match string) map[string]uint64 {
	t.Helper()
	s, err := js.Stream(t.Context(), "OBJ_kvoracle_index")
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(match))
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Subjects
}

// logged is what a replica has said.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
