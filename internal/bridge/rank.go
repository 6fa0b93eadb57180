package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvoracle/kvoracle/internal/engine/feed"
	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/engine/mapping"
	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

const (
	// QueueBytes bounds what a rank has published and the bridge has not read: minutes of a busy rank. What waits for a
	// replay is bounded by as much again.
	QueueBytes    = 64 << 20
	queueMessages = 100_000 // vLLM's own high-water mark
	maxMessage    = 16 << 20

	// doubtFor is how long contents are kept that may be wrong. Engines never repeat a removal, so they do not get better
	// by themselves; a credit for what has gone costs more than one that is missing.
	doubtFor = 2 * time.Second
	// replayIdle is how long a publisher may take for the next batch of a replay: it repeats between sends.
	replayIdle = 5 * time.Second
	tick       = 50 * time.Millisecond
)

// rank hears one rank of an engine. Everything but the counters belongs to run's goroutine.
type rank struct {
	w      *worker
	number int
	events zmtp.Config // with overZeroMQ
	replay string      // "": none
	log    *slog.Logger

	feed     *feed.Feed[message]
	life     *life // whose reporter is told
	mapper   *mapping.Mapper
	batch    kvevents.Batch
	limits   kvevents.Limits
	isJoined bool // the life that the feed is about to be told of has begun already

	// conn is the newest connection: the only one that counts. A bound socket may still have one of a former process beside it,
	// whose last messages, taken for the new one's, would be believed in place of what has the same numbers.
	conn uint64

	ctx    func() context.Context // of run
	asked  uint64                 // replays asked for so far; answers of earlier ones are not wanted
	cancel context.CancelFunc     // of the replay under way; nil: none
	tasks  sync.WaitGroup
	heard  chan []zmtp.Delivery
	again  chan answer
	items  chan item     // with the other ways
	lives  chan struct{} // one token: look at the worker's life

	count rankCounters
}

// rankCounters are read by whoever looks.
type rankCounters struct {
	isConnected atomic.Bool
	trust       atomic.Uint32
	lastEvent   atomic.Int64 // Unix nanoseconds
	queued      atomic.Int64

	mu      sync.Mutex
	feed    feed.Stats
	mapping mapping.Stats // of the present life
	before  mapping.Stats // of the former ones
	drops   map[string]uint64
}

// newRank makes one; events, replay and topic are of rank 0's sockets, and not looked at with ways that have none.
func newRank(w *worker, number int, events, replay, topic string) (*rank, error) {
	r := &rank{
		w: w, number: number, log: w.log.With("rank", number), limits: kvevents.DefaultLimits(),
		heard: make(chan []zmtp.Delivery, 1), again: make(chan answer, 64), items: make(chan item, 64), lives: make(chan struct{}, 1),
	}
	if w.way == overZeroMQ {
		at, err := rankEndpoint(events, number)
		if err != nil {
			return nil, fmt.Errorf("events: %w", err)
		}
		r.events = socket(at, topic)
		if replay != "" {
			if r.replay, err = rankEndpoint(replay, number); err != nil {
				return nil, fmt.Errorf("replay: %w", err)
			}
		}
	}
	r.feed = feed.New(feed.Config{HasReplay: r.replay != "", DoubtFor: doubtFor, ReplayTimeout: 2 * replayIdle, Bytes: QueueBytes}, r)
	return r, nil
}

// run hears the rank until ctx is done.
func (r *rank) run(ctx context.Context) {
	r.ctx = func() context.Context { return ctx }
	r.adopt(r.w.current.Load())
	defer r.tasks.Wait()
	if r.w.way != overZeroMQ {
		r.loop(ctx)
		return
	}
	open := zmtp.Dial
	if r.w.cfg.Bind {
		open = zmtp.Listen
	}
	sub, err := open(ctx, r.events)
	for pause := retryLeast; err != nil; pause = min(2*pause, retryMost) {
		r.w.complain("events", err)
		if !rest(ctx, pause) {
			return
		}
		sub, err = open(ctx, r.events)
	}
	r.tasks.Go(func() { r.pump(ctx, sub) })
	r.loop(ctx)
	sub.Close()
	if r.cancel != nil {
		r.cancel()
	}
}

// loop is where everything happens to the feed.
func (r *rank) loop(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case some := <-r.heard:
			now := time.Now()
			for i := range some {
				r.delivered(&some[i], now)
			}
		case x := <-r.items:
			r.taken(&x, time.Now())
		case a := <-r.again:
			r.replayed(&a, time.Now())
		case <-r.lives:
			r.keepUp()
		case now := <-ticker.C:
			r.feed.Tick(now)
		}
		r.look()
	}
}

// pump hands over what comes, as much at a time as there is: one hop for each message would cost more than the message.
func (r *rank) pump(ctx context.Context, sub *zmtp.Socket) {
	for {
		d, err := sub.Recv(ctx)
		if err != nil {
			return
		}
		some := []zmtp.Delivery{d}
		full := r.heard
		for len(some) < 256 && sub.Stats().Queued > 0 {
			if d, err = sub.Recv(ctx); err != nil {
				return
			}
			some = append(some, d)
		}
		r.count.queued.Store(int64(sub.Stats().Queued))
		select {
		case full <- some:
		case <-ctx.Done():
			return
		}
	}
}

// wake makes the rank look at the worker's life.
func (r *rank) wake() {
	select {
	case r.lives <- struct{}{}:
	default: // told
	}
}

// delivered takes a message, or what happened to a connection.
func (r *rank) delivered(d *zmtp.Delivery, now time.Time) {
	if d.Event != nil {
		r.event(d.Event, d.Conn, now)
		return
	}
	if d.Conn != r.conn {
		r.drop("former_connection", 1)
		return
	}
	f, err := kvevents.ParseLive(d.Message)
	if err != nil {
		r.drop("frames", 1)
		return
	}
	r.count.lastEvent.Store(now.UnixNano())
	r.feed.Live(f.Sequence, newMessage(f.Payload), now)
}

func (r *rank) event(e *zmtp.Event, conn uint64, now time.Time) {
	switch e.Kind {
	case zmtp.Connected:
		r.conn = max(r.conn, conn)
		if conn < r.conn {
			return // it was introduced after one that came later
		}
		r.count.isConnected.Store(true)
		r.log.Info("kvoracle bridge: the engine's events are there", "address", e.Address)
		r.keepUp() // what comes by a new connection is the new process's, if it is known that there is one
		r.feed.Connected(now)
		r.prove()
	case zmtp.Disconnected:
		if conn != r.conn {
			return
		}
		r.count.isConnected.Store(false)
		r.log.Info("kvoracle bridge: the engine's events have ended", "error", e.Err)
	case zmtp.Failed:
		r.log.Info("kvoracle bridge: the engine's events cannot be had yet", "error", e.Err)
	case zmtp.Dropped:
		r.drop("queue_full", e.Dropped) // the next number tells the feed
	}
}

// adopt begins to tell another life's reporter.
func (r *rank) adopt(l *life) {
	r.life = l
	cfg := mapping.Config{Engine: l.facts.Engine, Model: l.facts.Models[0], BlockSize: l.facts.BlockSize, Secret: l.secret}
	if n := l.facts.TotalBlocks; n > 0 {
		cfg.Names = 4096 + 8*n // the device's, and what lies behind it in other tiers
	}
	if r.mapper != nil {
		r.count.mu.Lock()
		add(&r.count.before, r.mapper.Stats())
		r.count.mu.Unlock()
	}
	r.mapper = mapping.New(cfg, mapping.Into(l.reporters[r.number]))
}

// keepUp follows the worker's life.
func (r *rank) keepUp() {
	if l := r.w.current.Load(); l != r.life {
		r.join(l)
	}
}

// join follows a life that began elsewhere: another rank, or the metrics, noticed first.
func (r *rank) join(l *life) {
	r.adopt(l)
	r.isJoined = true
	r.feed.Restarted(time.Now())
	r.isJoined = false
}

// Apply implements feed.Handler.
func (r *rank) Apply(sequence uint64, m message) feed.Result {
	if err := r.w.way.decode(&r.batch, m.payload, &r.limits); err != nil {
		r.drop("payload", 1)
		return feed.Result{IsLost: true}
	}
	out := r.mapper.Apply(sequence, &r.batch)
	if m.account != accountNone { // it begins with a clear, which is not its end
		out.IsWhole = m.account == accountWhole
	}
	return feed.Result{IsWhole: out.IsWhole, IsDoubtful: out.IsDoubtful}
}

// Replay implements feed.Handler.
func (r *rank) Replay(from uint64) {
	if r.cancel != nil {
		r.cancel()
	}
	r.asked++
	ctx, cancel := context.WithCancel(r.ctx())
	r.cancel = cancel
	number := r.asked
	r.tasks.Go(func() {
		defer cancel()
		askAgain(ctx, r.replay, number, from, r.again)
	})
}

func (r *rank) replayed(a *answer, now time.Time) {
	switch {
	case a.asked != r.asked:
	case a.err != nil:
		r.log.Warn("kvoracle bridge: a replay broke off", "error", a.err)
		r.feed.ReplayFailed(now)
	case a.isEnd:
		r.feed.ReplayEnd(now)
	default:
		r.count.lastEvent.Store(now.UnixNano())
		r.feed.Replayed(a.frame.Sequence, newMessage(a.frame.Payload), now)
	}
}

// NewLife implements feed.Handler. A new process is another life to the oracle; contents that are only given up are not.
func (r *rank) NewLife(cause feed.Cause) {
	r.log.Info("kvoracle bridge: the rank begins anew", "cause", cause.String())
	if r.isJoined {
		return // the mapper is new
	}
	if cause == feed.Restarted || cause == feed.Reconnected {
		l, err := r.w.reborn(r.ctx(), r.life, nil)
		if err != nil {
			r.w.complain("no life begins", err)
		}
		if l != r.life {
			r.adopt(l)
			return
		}
	}
	r.mapper.Reset()
}

// Trust implements feed.Handler. What is in doubt is STALE at the oracle until the doubt is over.
func (r *rank) Trust(t feed.Trust) {
	r.count.trust.Store(uint32(t))
	r.life.reporters[r.number].Doubt(t == feed.Doubtful)
	r.log.Info("kvoracle bridge: trust in the rank's contents", "trust", t.String())
}

// drop counts what was left out before it reached the mapper.
func (r *rank) drop(reason string, n uint64) {
	r.count.mu.Lock()
	defer r.count.mu.Unlock()
	if r.count.drops == nil {
		r.count.drops = make(map[string]uint64)
	}
	r.count.drops[reason] += n
}

// look copies the figures for whoever asks.
func (r *rank) look() {
	r.count.mu.Lock()
	defer r.count.mu.Unlock()
	r.count.feed, r.count.mapping = r.feed.Stats(), r.mapper.Stats()
}

// fill says how it is with the rank.
func (r *rank) fill(s *Status) {
	c := &r.count
	s.Trust = feed.Trust(c.trust.Load())
	s.Queued = int(c.queued.Load())
	if at := c.lastEvent.Load(); at > 0 {
		s.LastEvent = time.Unix(0, at)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Next, s.Gaps, s.Replays, s.Missing = c.feed.Next, c.feed.Gaps, c.feed.Replays, c.feed.Missing
	s.Queued += c.feed.Waiting
	all := c.before
	add(&all, c.mapping)
	s.Batches, s.Events = all.Batches, all.Events
	s.Dropped = maps.Clone(c.drops)
	if s.Dropped == nil {
		s.Dropped = make(map[string]uint64)
	}
	dropped(s.Dropped, &all)
	switch {
	case !c.isConnected.Load():
		s.State = Disconnected
	case c.feed.Waiting > 0:
		s.State = CatchingUp
	default:
		s.State = Live
	}
}
