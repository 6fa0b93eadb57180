package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// follow applies the log until ctx is done. Whatever goes wrong, it begins again behind the last entry that was applied.
func (n *Node) follow(ctx context.Context) {
	const soon, seldom = 100 * time.Millisecond, 5 * time.Second
	wait := time.Duration(0)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-n.rescan:
		case <-time.After(wait):
		}
		if !n.isConnected() {
			wait = time.Second // connected wakes us
			continue
		}
		err := n.followOnce(ctx)
		if n.following.Swap(false) {
			wait = 0
		}
		wait = min(max(2*wait, soon), seldom) // what NATS was too slow to answer it still works on
		if ctx.Err() != nil {
			return
		}
		n.count.restarts.Add(1)
		level := slog.LevelWarn
		if errors.Is(err, errCameBack) {
			level = slog.LevelInfo
		}
		n.log.LogAttrs(ctx, level, "the log is read again", slog.Any("error", err))
	}
}

// ensure finds the log, or makes it. An operator's own settings of it stay; one of this process's own has those of today.
func (n *Node) ensure(ctx context.Context) (jetstream.Stream, *jetstream.StreamInfo, error) {
	want := jetstream.StreamConfig{
		Name: n.name, Subjects: []string{n.cfg.Prefix + ".log.>"}, Discard: jetstream.DiscardOld,
		MaxBytes: n.cfg.LogBytes, MaxAge: n.cfg.LogAge, Replicas: n.cfg.LogCopies,
	}
	s, err := n.js.Stream(ctx, n.name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		s, err = n.js.CreateStream(ctx, want)
	case err != nil || !n.isAlone():
	case s.CachedInfo().Config.MaxBytes != want.MaxBytes || s.CachedInfo().Config.MaxAge != want.MaxAge:
		s, err = n.js.UpdateStream(ctx, want)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("replica: the log: %w", err)
	}
	info, err := s.Info(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("replica: the log: %w", err)
	}
	return s, info, nil
}

var errCameBack = errors.New("replica: NATS came back")

func (n *Node) followOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := n.seed(ctx); err != nil {
		return err
	}
	asked, done := context.WithTimeout(ctx, n.cfg.natsWait)
	defer done()
	s, info, err := n.ensure(asked)
	if err != nil {
		return err
	}
	from := n.take(info)
	messages, stop, err := n.messages(asked, s, from)
	if err != nil {
		return err
	}
	defer stop()
	n.following.Store(true)
	wake(n.todo)
	n.askForAll()
	watched := make(chan error, 1)
	go func() {
		watched <- n.watchLog(ctx, s, info)
		cancel()
	}()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err == nil {
			err = n.message(m)
		}
		if err != nil {
			cancel()
			return errors.Join(err, <-watched)
		}
	}
}

// messages reads the log from a position on, until stop.
func (n *Node) messages(ctx context.Context, s jetstream.Stream, from uint64) (_ jetstream.MessagesContext, stop func(), _ error) {
	consumer, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: 30 * time.Second,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("replica: the log: %w", err)
	}
	name := consumer.CachedInfo().Name
	messages, err := consumer.Messages(jetstream.PullMaxMessages(1000), jetstream.PullExpiry(10*time.Second), jetstream.PullHeartbeat(3*time.Second),
		jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		n.dropConsumer(ctx, s, name)
		return nil, nil, fmt.Errorf("replica: the log: %w", err)
	}
	return messages, func() {
		messages.Stop()
		n.dropConsumer(ctx, s, name)
	}, nil
}

// dropConsumer spares NATS to find out that nobody reads.
func (n *Node) dropConsumer(ctx context.Context, s jetstream.Stream, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = s.DeleteConsumer(ctx, name) // it goes by itself, later
}

// watchLog looks whether the log is still the one that is read, and how far it goes. It returns when it is not, when NATS
// came back meanwhile, or when ctx is done.
func (n *Node) watchLog(ctx context.Context, s jetstream.Stream, was *jetstream.StreamInfo) error {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	stuck, at := 0, uint64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.rescan:
			return errCameBack
		case <-every.C:
		}
		n.mu.Lock()
		position := n.position // before the log is looked at, which goes on
		n.mu.Unlock()
		asked, cancel := context.WithTimeout(ctx, n.cfg.natsWait)
		info, err := s.Info(asked)
		cancel()
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		if err != nil {
			continue // the beats of the consumer say whether NATS is there
		}
		if !info.Created.Equal(was.Created) {
			return errors.New("replica: the log was made anew")
		}
		n.mu.Lock()
		n.tail = max(n.tail, info.State.LastSeq)
		n.mu.Unlock()
		if position > info.State.LastSeq {
			return errors.New("replica: the log has lost its end")
		}
		if stuck++; position >= info.State.LastSeq || position != at {
			stuck = 0
		}
		if at = position; stuck > 5 {
			return errors.New("replica: the log is not delivered")
		}
	}
}

// logNow says which log is read.
func (n *Node) logNow() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.logID
}

// take begins to read a log and returns from where. One that is not the one read before, or has lost its end, begins a new
// count: what was claimed in the old one is claimed again by who has it.
func (n *Node) take(info *jetstream.StreamInfo) (from uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tail = info.State.LastSeq
	if id := info.Created.UnixNano(); id != n.logID || n.position > info.State.LastSeq {
		if n.logID != 0 {
			n.count.newLogs.Add(1)
		}
		n.logID, n.position = id, info.State.LastSeq
		n.caughtUp()
		for _, t := range n.targets {
			t.claim = 0
			if t.local == nil {
				n.lack(t)
			}
		}
		for s := range n.streams {
			s.void()
		}
		for worker, w := range n.acts.wishes {
			w.position = 0
			n.acts.wishes[worker] = w
		}
	}
	if n.replay.to = info.State.LastSeq; n.position >= n.replay.to {
		n.caughtUp()
	}
	return n.position + 1
}

// message applies one message of the log.
func (n *Node) message(m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("replica: the log: %w", err)
	}
	at := meta.Sequence.Stream
	n.mu.Lock()
	defer n.mu.Unlock()
	if at <= n.position {
		return nil // read again from too early
	}
	if at > n.replay.to && !n.isAlone() {
		n.caughtUp()
	}
	if at > n.position+1 {
		// The log did not keep what came before. Whoever sees its next entry would know; the others are asked for too.
		n.count.holes.Add(1)
		for _, t := range n.targets {
			if t.local == nil {
				n.lack(t)
			}
		}
	}
	if n.replay.isOn {
		n.replay.last = meta.Timestamp
	}
	n.apply(m.Data(), at, time.Now())
	n.position = at
	n.tail = max(n.tail, at)
	if at == n.replay.to && !n.isAlone() {
		n.caughtUp()
	}
	return nil
}
