package replica

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

var (
	errNotLogged = errors.New("replica: not in the log")
	errNotBegun  = errors.New("replica: the session is not open yet")
)

// announceAll announces the streams that are broken or wanted, until ctx is done.
func (n *Node) announceAll(ctx context.Context) {
	var c oracle.Contents
	pause := time.NewTicker(250 * time.Millisecond)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.todo:
		case <-pause.C:
		}
		if n.isConnected() && n.following.Load() {
			n.announceOnce(ctx, &c)
		}
	}
}

// announceOnce is one round: whoever asked for all before it began is answered when it is over, unless it failed.
func (n *Node) announceOnce(ctx context.Context, c *oracle.Contents) {
	n.mu.Lock()
	answers := n.answers
	n.answers = nil
	var due []*Stream
	for s := range n.streams {
		if s.isBroken.Load() || s.wanted.Load() || s.greeting.Load() {
			due = append(due, s)
		}
	}
	n.mu.Unlock()
	position, ok := n.pay(len(answers) > 0)
	failed, doubt := !ok, n.doubt
	for _, s := range due {
		if ctx.Err() != nil {
			return
		}
		if doubt && !n.knock(s) {
			failed = true
			break
		}
		var at uint64
		var err error
		if s.greeting.Swap(false) && !s.isBroken.Load() && !s.wanted.Load() {
			if at, err = n.commit(s.greet()); err != nil {
				s.fail(err)
			}
		} else {
			at, err = n.announce(s, c)
		}
		switch {
		case errors.Is(err, errNotBegun):
			// Its own first words will tell.
		case err != nil:
			failed = true
			n.log.LogAttrs(ctx, slog.LevelDebug, "not announced", slog.String("worker", s.key.worker), slog.Any("error", err))
		}
		doubt = errors.Is(err, errNotLogged)
		position = max(position, at)
	}
	n.doubt = doubt
	if failed {
		n.mu.Lock()
		n.answers = append(answers, n.answers...)
		n.mu.Unlock()
		return // again soon
	}
	for _, m := range answers {
		n.answer(m, &replicav1.Answer{Done: true, Position: position})
	}
}

// knock says whether the log takes anything, by an entry that means nothing: an end of what has not begun. An announcement holds
// its reporter up, which shall not wait for a log that is known not to answer.
func (n *Node) knock(s *Stream) bool {
	b := marshal(&replicav1.Entry{
		Origin: n.cfg.Name, Boot: n.boot, Session: rand.Uint64() | 1, Number: 1, Worker: s.key.worker, DpRank: s.key.rank, End: true,
	})
	f, err := n.js.PublishAsync(s.key.subject(n.cfg.Prefix), b, jetstream.WithStallWait(n.cfg.AckWait))
	if _, err = n.commit([]jetstream.PubAckFuture{f}, err); err != nil {
		return false
	}
	n.count.published.Add(1)
	n.count.publishedBytes.Add(uint64(len(b)))
	return true
}

func (n *Node) answer(m *nats.Msg, a *replicav1.Answer) {
	a.Origin, a.Boot = n.cfg.Name, n.boot
	if err := m.Respond(marshal(a)); err != nil {
		n.log.LogAttrs(context.Background(), slog.LevelDebug, "answer not sent", slog.Any("error", err))
	}
}

// announce tells a stream's target anew, of one moment between two of the reporter's messages, which wait meanwhile. It
// returns the position of the last entry.
func (n *Node) announce(s *Stream, c *oracle.Contents) (position uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.superseded.Load():
		s.wanted.Store(false)
		s.isBroken.Store(false)
		if s.isOver {
			n.forget(s)
		}
		return 0, nil
	case s.isOver && s.reclaim.Load():
		n.forget(s) // nobody knows it in this log; their origin's silence about it will tell them
		return 0, nil
	case s.isOver:
		// The others know it under the id it had.
		if position, err = n.commit(s.publish(&replicav1.Entry{End: true})); err == nil {
			n.forget(s)
		}
		return position, err
	case s.session == nil:
		return 0, errNotBegun
	}
	s.wanted.Store(false) // who wants it from now on may want what comes after
	st, isDoubtful, err := s.session.Copy(c)
	if err != nil {
		s.isBroken.Store(false)
		return 0, nil // kicked: its handler will close it
	}
	if st.ByName && !st.IsAwaiting {
		s.session.Ask(oracle.ResyncGap) // others cannot be told what engine hashes stand for
		st.IsAwaiting = true
	}
	if s.reclaim.Swap(false) {
		s.claim = place{}
	}
	log := n.logNow() // after: if it is another by the time of the claim, that is to be made again
	n.rename(s)
	s.isBroken.Store(true) // until all of it is there
	hello := proto.CloneOf(s.hello)
	hello.NextSequence = st.Applied + 1
	standing := encodeStanding(&st)
	position, err = n.commit(s.publish(&replicav1.Entry{
		Announced: true, After: standing,
		Request: marshal(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: hello}}),
	}))
	if err != nil {
		return 0, err
	}
	if s.claim == (place{}) {
		s.claim = place{log, position}
	}
	if !st.IsAwaiting {
		if position, err = n.announceContents(s, c, &st, isDoubtful); err != nil {
			return 0, err
		}
	}
	s.digestAt = time.Now().Add(n.cfg.DigestEvery)
	s.isBroken.Store(false)
	if s.reclaim.Load() { // the log was made anew meanwhile
		s.isBroken.Store(true)
		return 0, errNotLogged
	}
	n.count.announced.Add(1)
	return position, nil
}

// announceContents publishes what was copied as a snapshot.
func (n *Node) announceContents(s *Stream, c *oracle.Contents, st *oracle.Standing, isDoubtful bool) (position uint64, err error) {
	begin := &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotBegin{
		SnapshotBegin: &kvoraclev1.SnapshotBegin{Sequence: st.Applied},
	}}
	if _, err = n.commit(s.publish(&replicav1.Entry{Request: marshal(begin), Lost: encodeDigests(&c.Lost)})); err != nil {
		return 0, err
	}
	var part kvoraclev1.SnapshotChunk
	ids := 0
	flush := func() {
		if len(part.Stores) == 0 || err != nil {
			return
		}
		_, err = n.commit(s.publish(&replicav1.Entry{Request: marshal(&kvoraclev1.ReportBlocksRequest{
			Message: &kvoraclev1.ReportBlocksRequest_SnapshotChunk{SnapshotChunk: &part},
		})}))
		part.Stores, ids = part.Stores[:0], 0
	}
	const mostIDs, mostStores = 32_768, 4096
	c.Each(func(r oracle.BlockRun) bool {
		for t, copies := range r.Copies {
			for range copies {
				part.Stores = append(part.Stores, store(&r, fleet.Tier(t)))
				if ids += len(r.IDs); ids >= mostIDs || len(part.Stores) >= mostStores {
					flush()
				}
			}
		}
		n.count.announcedBlocks.Add(uint64(len(r.IDs)))
		return err == nil
	})
	flush()
	if err != nil {
		return 0, err
	}
	end := &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotEnd{
		SnapshotEnd: &kvoraclev1.SnapshotEnd{Doubtful: isDoubtful}, // the digests say more than a count
	}}
	return n.commit(s.publish(&replicav1.Entry{Request: marshal(end), After: encodeStanding(st)}))
}

// store is one tier's copy of a run.
func store(r *oracle.BlockRun, t fleet.Tier) *kvoraclev1.StoreBlocks {
	ids := make([]uint64, len(r.IDs))
	for i, id := range r.IDs {
		ids[i] = uint64(id)
	}
	m := &kvoraclev1.StoreBlocks{
		Tier:    kvoraclev1.Tier(t + 1),
		Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids}},
	}
	if r.Parent.IsRoot {
		m.Parent = &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}}
	} else {
		m.Parent = &kvoraclev1.StoreBlocks_ParentBlockId{ParentBlockId: uint64(r.Parent.ID)}
	}
	return m
}

// rename begins a new session for what is announced. s.mu is held.
func (n *Node) rename(s *Stream) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sessions, s.id)
	s.id, s.number = rand.Uint64()|1, 0
	n.sessions[s.id] = s
}

// commit waits until entries are in the log, and returns the last one's position there.
func (n *Node) commit(futures []jetstream.PubAckFuture, err error) (position uint64, _ error) {
	if err != nil {
		n.count.publishFailures.Add(1)
		return 0, err
	}
	for _, f := range futures {
		select { // ends by Config.AckWait
		case ack := <-f.Ok():
			position = ack.Sequence
		case err := <-f.Err():
			n.count.publishFailures.Add(1)
			return 0, errors.Join(errNotLogged, err)
		}
	}
	return position, nil
}
