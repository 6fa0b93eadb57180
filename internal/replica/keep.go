package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
)

// Several replicas keep copies of what they know in JetStream's object store, so that one that starts needs not be told
// everything again. A copy names the position in the log that it stands for: with what comes behind that, it is enough.
//
//   - Whoever finds that no newer copy has come for Config.SaveEvery makes one. Two at once do no harm. It notes where the log
//     ends, asks all streams of all replicas to say hello again behind that, and copies when it has applied these: so each
//     target's contents show all that the log has before its hello, which is where a reader can begin with it.
//   - A copy goes into one of a few places, over the oldest; JetStream shows it when all of it is there, and a writer that dies
//     leaves the former one. What such a writer leaves behind is swept by the next.
//   - A reader takes the newest copy of the log it finds, whose position the log still has. It is read through before any of
//     it is in the oracle. The log behind it is applied as in a life that begins again (replay.go), up to where it ended
//     then. Of what comes out nothing is believed before the target's origin has said hello again, with digests: who differs
//     is announced, as always.
//   - Where there is none that can be used, everything is announced.

const (
	copies    = 3       // places for them
	copyChunk = 1 << 17 // bytes of a message
	copyPace  = 32 << 20
	// askLate is how long a target's hello may take, after the log was read, before its contents are asked for.
	askLate = 5 * time.Second
)

// The metadata of a copy.
const (
	metaLog      = "log"      // when the log was made, in Unix nanoseconds
	metaPosition = "position" // in it
	metaOrigin   = "origin"   // replica that wrote it
)

// seeding is how a replica begins with a copy. Whoever takes the token decides.
type seeding struct {
	token   chan struct{}
	decided chan struct{} // closed then
	isDone  bool          // with a copy; valid once decided is closed, and guarded by Node.mu
	failed  int           // times that JetStream did not answer
}

func newSeeding() seeding {
	s := seeding{token: make(chan struct{}, 1), decided: make(chan struct{})}
	s.token <- struct{}{}
	return s
}

// kept is a copy in a place.
type kept struct {
	name     string
	info     *jetstream.ObjectInfo // nil: nothing is there
	log      int64
	position uint64
	err      error // why it cannot be used
}

// says is what a line about it has.
func (k *kept) says(bucket string) []slog.Attr {
	return []slog.Attr{
		slog.String("bucket", bucket), slog.String("name", k.name), slog.Time("written", k.info.ModTime), slog.String("origin", k.info.Metadata[metaOrigin]),
	}
}

func (n *Node) bucketName() string { return n.cfg.Prefix + "_index" }

// bucket finds the store of copies, or makes it. An operator's own settings of it stay.
func (n *Node) bucket(ctx context.Context) (jetstream.ObjectStore, error) {
	b, err := n.js.ObjectStore(ctx, n.bucketName())
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		b, err = n.js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
			Bucket: n.bucketName(), MaxBytes: n.cfg.SaveBytes, Replicas: n.cfg.LogCopies,
		})
	}
	return b, err
}

// lookAtCopies finds what is in the places, those of a log first, by position and newest first.
func (n *Node) lookAtCopies(ctx context.Context, b jetstream.ObjectStore, log int64) ([]kept, error) {
	all := make([]kept, copies)
	for i := range all {
		k := &all[i]
		k.name = "index-" + strconv.Itoa(i)
		info, err := b.GetInfo(ctx, k.name)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			k.err = err
			continue
		}
		if errors.Is(err, jetstream.ErrBadObjectMeta) {
			k.info, k.err = &jetstream.ObjectInfo{}, err
			continue
		}
		if err != nil {
			return nil, err
		}
		k.info = info
		var errLog, errPosition error
		k.log, errLog = strconv.ParseInt(info.Metadata[metaLog], 10, 64)
		k.position, errPosition = strconv.ParseUint(info.Metadata[metaPosition], 10, 64)
		switch {
		case errLog != nil || errPosition != nil:
			k.err = fmt.Errorf("its metadata does not name a position in a log: %v", info.Metadata)
		case k.log != log:
			k.err = fmt.Errorf("of another log, made at %s", time.Unix(0, k.log).UTC().Format(time.RFC3339))
		}
	}
	slices.SortStableFunc(all, func(a, b kept) int {
		if (a.err == nil) != (b.err == nil) {
			if a.err == nil {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.position, a.position)
	})
	return all, nil
}

// keep makes copies until ctx is done.
func (n *Node) keep(ctx context.Context) {
	var newest string // the one that was seen last
	since := time.Now()
	wait := func() time.Duration { return n.cfg.SaveEvery/8 + rand.N(n.cfg.SaveEvery/8) } // who looks first is anybody
	tick := time.NewTimer(wait())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		tick.Reset(wait())
		if !n.joined.Load() || !n.isConnected() || !n.following.Load() {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, n.cfg.natsWait)
		b, err := n.bucket(asked)
		var all []kept
		if err == nil {
			all, err = n.lookAtCopies(asked, b, n.logNow())
		}
		cancel()
		if err != nil {
			n.notKept(ctx, err)
			continue
		}
		if all[0].err == nil && all[0].info.NUID != newest {
			newest, since = all[0].info.NUID, time.Now()
		}
		if time.Since(since) < n.cfg.SaveEvery {
			continue
		}
		since = time.Now() // a failure is tried again when it would be due
		n.sweep(ctx, all)
		if err := n.save(ctx, b, &all[copies-1]); err != nil {
			n.notKept(ctx, err)
		}
	}
}

func (n *Node) notKept(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	n.count.unkept.Add(1)
	n.log.LogAttrs(ctx, slog.LevelWarn, "no copy of the index is kept in NATS", slog.String("bucket", n.bucketName()), slog.Any("error", err))
}

// save writes a copy over what is in a place.
func (n *Node) save(ctx context.Context, b jetstream.ObjectStore, place *kept) error {
	start := time.Now()
	log, position, err := n.markAll(ctx)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	saved := make(chan struct{})
	go func() {
		defer close(saved)
		_ = w.CloseWithError(n.cfg.Save(ctx, w))
	}()
	info, err := b.Put(ctx, jetstream.ObjectMeta{
		Name: place.name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: copyChunk},
		Metadata: map[string]string{metaLog: strconv.FormatInt(log, 10), metaPosition: strconv.FormatUint(position, 10), metaOrigin: n.cfg.Name},
	}, &paced{r: r, start: time.Now()})
	_ = r.Close() // of which the writer hears if it goes on
	<-saved
	if err != nil {
		return fmt.Errorf("replica: %s: %w", place.name, err)
	}
	n.count.kept.Add(1)
	n.count.keptBytes.Add(info.Size)
	n.log.LogAttrs(ctx, slog.LevelDebug, "a copy of the index is kept in NATS", slog.String("bucket", n.bucketName()), slog.String("name", place.name),
		slog.Uint64("position", position), slog.Uint64("bytes", info.Size), slog.Duration("took", time.Since(start)))
	return nil
}

// paced reads no faster than reports and bookings on the same connection can bear.
type paced struct {
	r     io.Reader
	start time.Time
	n     int64
}

// Read implements io.Reader.
func (p *paced) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.n += int64(n)
	time.Sleep(time.Duration(float64(p.n)/copyPace*float64(time.Second)) - time.Since(p.start))
	return n, err
}

// markAll prepares for a copy and returns what it will stand for. A replica that does not answer in time leaves targets behind
// that whoever reads the copy will ask for.
func (n *Node) markAll(ctx context.Context) (log int64, position uint64, err error) {
	asked, cancel := context.WithTimeout(ctx, n.cfg.natsWait)
	defer cancel()
	s, err := n.js.Stream(asked, n.name)
	if err != nil {
		return 0, 0, fmt.Errorf("replica: the log: %w", err)
	}
	log, position = s.CachedInfo().Created.UnixNano(), s.CachedInfo().State.LastSeq
	if n.greetAll(); log != n.logNow() {
		return 0, 0, errNotLogged
	}
	n.send("ask", &replicav1.Ask{Origin: n.cfg.Name, Boot: n.boot, Greet: true})
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !n.isGreeted(position) {
		select {
		case <-look.C:
		case <-asked.Done():
			if n.isBehind(position) {
				return 0, 0, errors.New("replica: too far behind the log for a copy")
			}
			return log, position, ctx.Err()
		}
	}
	return log, position, nil
}

// isBehind says whether something of the log up to a position is not applied yet.
func (n *Node) isBehind(position uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.position < position
}

// isGreeted says whether all that other replicas' reporters say is applied from a hello behind position on.
func (n *Node) isGreeted(position uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.position < position {
		return false
	}
	for _, t := range n.targets {
		if t.session != nil && t.began <= position {
			return false
		}
	}
	return true
}

// sweep removes what writers have left behind that died, and what stands in no place: where JetStream keeps a copy's chunks is
// said in its ADR 20.
func (n *Node) sweep(ctx context.Context, all []kept) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.natsWait)
	defer cancel()
	chunks := "$O." + n.bucketName() + ".C."
	s, err := n.js.Stream(ctx, "OBJ_"+n.bucketName())
	if err != nil {
		return
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(chunks+">"))
	if err != nil {
		return
	}
	for subject := range info.State.Subjects {
		if slices.ContainsFunc(all, func(k kept) bool { return k.info != nil && chunks+k.info.NUID == subject }) {
			continue
		}
		last, err := s.GetLastMsgForSubject(ctx, subject)
		if err != nil || info.TimeStamp.Sub(last.Time) < n.cfg.sweepAfter {
			continue // somebody is writing it
		}
		if err := s.Purge(ctx, jetstream.WithPurgeSubject(subject)); err == nil {
			n.count.swept.Add(1)
		}
	}
}

// Seeded waits until it is decided whether this replica begins with a copy from NATS, and says whether it does. If NATS does
// not come in time it does not. A nil node's never does.
func (n *Node) Seeded(over <-chan struct{}) bool {
	if n == nil || n.cfg.Load == nil {
		return false
	}
	select {
	case <-n.seeding.decided:
		return n.seeding.isDone
	case <-over:
		return false
	case <-time.After(n.cfg.natsWait):
	}
	select {
	case <-n.seeding.token:
		close(n.seeding.decided)
	default: // it is being read
	}
	select {
	case <-n.seeding.decided:
	case <-over:
		return false
	}
	return n.seeding.isDone
}

// seed begins with the newest copy that can be used, once. An error says that it is to be tried again, before the log is read.
func (n *Node) seed(ctx context.Context) error {
	if n.cfg.Load == nil {
		return nil
	}
	select {
	case <-n.seeding.token:
	default:
		return nil
	}
	const mostTries = 3
	start := time.Now()
	n.mu.Lock()
	n.joining.isHeldUp = true // it is not the others who let us wait
	n.mu.Unlock()
	k, log, err := n.load(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seeding.failed++; err != nil && n.seeding.failed < mostTries {
		n.joining.isHeldUp = false
		n.seeding.token <- struct{}{}
		return err
	}
	defer close(n.seeding.decided)
	n.joining.isHeldUp, n.joining.since = false, n.joining.since.Add(time.Since(start))
	switch {
	case err != nil:
		n.log.LogAttrs(ctx, slog.LevelWarn, "copies of the index in NATS cannot be read; all is asked for", slog.Any("error", err))
	case k == nil:
		n.log.LogAttrs(ctx, slog.LevelInfo, "no copy of the index in NATS; all is asked for")
	default:
		n.count.loaded.Add(1)
		n.logID, n.position, n.replay.isOn, n.seeding.isDone = log, k.position, true, true
		n.log.LogAttrs(ctx, slog.LevelInfo, "a copy of the index in NATS is loaded", append(k.says(n.bucketName()),
			slog.Uint64("position", k.position), slog.Duration("took", time.Since(start)))...)
	}
	return nil
}

// load puts the newest copy in the oracle that can be used, and says which that was; nil: there is none.
func (n *Node) load(ctx context.Context) (*kept, int64, error) {
	asked, done := context.WithTimeout(ctx, n.cfg.natsWait)
	defer done()
	_, info, err := n.ensure(asked)
	if err != nil {
		return nil, 0, err
	}
	b, err := n.js.ObjectStore(asked, n.bucketName())
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, 0, nil
	}
	log := info.Created.UnixNano()
	var all []kept
	if err == nil {
		all, err = n.lookAtCopies(asked, b, log)
	}
	if err != nil {
		return nil, 0, err
	}
	refuse := func(k *kept) {
		n.count.unloaded.Add(1)
		n.log.LogAttrs(ctx, slog.LevelError, "a copy of the index in NATS cannot be used", append(k.says(n.bucketName()), slog.String("error", k.err.Error()))...)
	}
	for i := range all {
		if all[i].err != nil && all[i].info != nil {
			refuse(&all[i])
		}
	}
	for i := range all {
		k := &all[i]
		switch {
		case k.err != nil:
			continue
		case k.position+1 < info.State.FirstSeq:
			k.err = fmt.Errorf("it stands for entry %d of the log, which begins with %d", k.position, info.State.FirstSeq)
		case k.position > info.State.LastSeq && k.position > n.lastOf(ctx):
			k.err = fmt.Errorf("it stands for entry %d of the log, which has lost its end", k.position)
		default:
			k.err = n.cfg.Load(func() (io.ReadCloser, error) { return n.openCopy(ctx, b, k) })
		}
		if k.err == nil {
			return k, log, nil
		}
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		refuse(k)
	}
	return nil, 0, nil
}

// lastOf is where the log ends now.
func (n *Node) lastOf(ctx context.Context) uint64 {
	ctx, done := context.WithTimeout(ctx, n.cfg.natsWait)
	defer done()
	s, err := n.js.Stream(ctx, n.name)
	if err != nil {
		return 0
	}
	return s.CachedInfo().State.LastSeq
}

// openCopy begins to read a copy: that one, and not what may stand in its place meanwhile.
func (n *Node) openCopy(ctx context.Context, b jetstream.ObjectStore, k *kept) (io.ReadCloser, error) {
	const slowest = 1 << 20 // bytes a second
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(k.info.Size/slowest)*time.Second)
	from, err := b.Get(ctx, k.name)
	if err != nil {
		cancel()
		return nil, err
	}
	info, err := from.Info()
	if err == nil && info.NUID != k.info.NUID {
		err = errors.New("another stands in its place now")
	}
	if err != nil {
		cancel()
		_ = from.Close()
		return nil, err
	}
	// A read that waits for NATS cannot be ended by anybody before ctx is: it gets a goroutine that may be left behind.
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { _ = w.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer cancel()
		_, err := io.CopyBuffer(w, struct{ io.Reader }{from}, make([]byte, copyChunk))
		_ = w.CloseWithError(err)
		_ = from.Close()
	}()
	return &arriving{PipeReader: r, w: w, most: 2 * n.cfg.natsWait}, nil
}

// arriving is what is read from NATS as long as it comes.
type arriving struct {
	*io.PipeReader

	w    *io.PipeWriter
	most time.Duration
}

// Read implements io.Reader.
func (a *arriving) Read(b []byte) (int, error) {
	late := time.AfterFunc(a.most, func() { _ = a.w.CloseWithError(errors.New("no more of it comes")) })
	defer late.Stop()
	return a.PipeReader.Read(b)
}
