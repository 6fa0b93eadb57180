package replica

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/oracle"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Stream is a reporter's block stream at its origin. A nil one is of a service of one, and tells nobody anything.
//
// Do is called by one goroutine; the others by any.
type Stream struct {
	n     *Node
	key   key
	hello *kvoraclev1.BlocksHello
	// claimed gets the place of the claim when that has come back through the log, or none if the log was made anew meanwhile.
	claimed chan place
	// isBroken: something was applied that is not in the log; the stream has to be announced.
	isBroken   atomic.Bool
	superseded atomic.Bool // another replica owns the target
	wanted     atomic.Bool // somebody wants an announcement
	greeting   atomic.Bool // somebody wants it to say hello again
	reclaim    atomic.Bool // what was claimed is void: the log is another

	mu       sync.Mutex // the order of applying is the order of publishing
	session  *oracle.BlockSession
	id       uint64
	number   uint64
	claim    place
	isOver   bool
	isKept   bool // counted in Node.closed; guarded by Node.mu
	digestAt time.Time
}

// place is a position in one log. The zero place is none.
type place struct {
	log      int64 // when that was made
	position uint64
}

// Receipt is the way of one message into the log. The zero Receipt has nothing to wait for.
type Receipt struct {
	s       *Stream
	futures []jetstream.PubAckFuture
}

// Wait returns when the message is in the log, or has failed to get there, which the stream then takes care of; or when
// done is closed.
func (r *Receipt) Wait(done <-chan struct{}) {
	for _, f := range r.futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			r.s.fail(err)
			return
		case <-done:
			return
		}
	}
}

// fail notes that an entry may not be in the log.
func (s *Stream) fail(err error) {
	s.n.count.publishFailures.Add(1)
	s.n.log.LogAttrs(context.Background(), slog.LevelDebug, "not in the log", slog.String("worker", s.key.worker), slog.Any("error", err))
	s.isBroken.Store(true)
	wake(s.n.todo)
}

// Open takes a target over for a reporter that has said hello, and returns when everything that the log has about it has
// been applied here, or Config.HelloWait is over. The caller opens its session then and calls Begin.
func (n *Node) Open(ctx context.Context, m *kvoraclev1.BlocksHello) *Stream {
	if n == nil {
		return nil
	}
	s := &Stream{
		n: n, key: key{m.GetWorker().GetWorkerId(), m.GetDpRank()}, hello: m, claimed: make(chan place, 1), id: rand.Uint64() | 1,
		digestAt: time.Now().Add(n.cfg.DigestEvery),
	}
	n.mu.Lock()
	n.streams[s], n.sessions[s.id] = struct{}{}, s
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, n.cfg.HelloWait)
	defer cancel()
	select { // what others have told is the better part of what a fresh replica knows
	case <-n.readers:
	case <-ctx.Done():
	}
	if n.takeOver(ctx, s) {
		n.count.claims.Add(1)
		return s
	}
	n.count.lateHellos.Add(1)
	n.mu.Lock()
	n.late[s.key] = s
	n.mu.Unlock()
	s.isBroken.Store(true)
	return s
}

// takeOver writes the claim and waits until it has come back.
func (n *Node) takeOver(ctx context.Context, s *Stream) bool {
	if !n.isConnected() || !n.following.Load() {
		return false
	}
	s.mu.Lock()
	futures, err := s.publish(&replicav1.Entry{Request: marshal(&kvoraclev1.ReportBlocksRequest{
		Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: s.hello},
	})})
	s.mu.Unlock()
	if err != nil || len(futures) != 1 {
		return false
	}
	select {
	case at := <-s.claimed:
		s.mu.Lock()
		s.claim = at
		s.mu.Unlock()
		return at != place{}
	case err := <-futures[0].Err():
		s.fail(err)
	case <-ctx.Done():
	}
	return false
}

// Begin says that the session is open.
func (s *Stream) Begin(session *oracle.BlockSession) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = session
	s.n.mu.Lock()
	s.n.wanted(s.key.worker)
	s.n.mu.Unlock()
	if s.isBroken.Load() {
		wake(s.n.todo)
		return
	}
	s.tellStanding()
}

// tellStanding publishes where the target stands. mu is held.
func (s *Stream) tellStanding() {
	st, err := s.session.Standing()
	if err != nil {
		return // kicked: the caller will notice
	}
	s.digestAt = time.Now().Add(s.n.cfg.DigestEvery)
	futures, err := s.publish(&replicav1.Entry{After: encodeStanding(&st)})
	s.expect(futures, err)
}

// expect looks after entries that nobody waits for.
func (s *Stream) expect(futures []jetstream.PubAckFuture, err error) {
	if err != nil {
		s.fail(err)
	}
	for _, f := range futures {
		go func() {
			r := Receipt{s: s, futures: []jetstream.PubAckFuture{f}}
			r.Wait(nil) // ends by Config.AckWait
		}()
	}
}

// Do applies a message by f and publishes it. The order of both is the same. Whoever answers the reporter waits for the
// receipt first.
func (s *Stream) Do(m *kvoraclev1.ReportBlocksRequest, f func() (oracle.Ack, error)) (oracle.Ack, Receipt, error) {
	if s == nil {
		ack, err := f()
		return ack, Receipt{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ack, err := f()
	if err != nil || s.superseded.Load() {
		return ack, Receipt{}, err
	}
	if s.isBroken.Load() {
		s.n.count.unpublished.Add(1)
		return ack, Receipt{}, nil
	}
	futures, err := s.publish(&replicav1.Entry{Request: marshal(m), After: &replicav1.Standing{Applied: ack.Applied, Awaiting: ack.Awaiting}})
	if err != nil {
		s.fail(err)
		return ack, Receipt{}, nil // the reporter is served without the log
	}
	return ack, Receipt{s, futures}, nil
}

// Close says that the stream is over.
func (s *Stream) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isOver = true
	s.session = nil
	if s.superseded.Load() || !s.isBroken.Load() && s.tellEnd() || s.claim == (place{}) {
		s.n.forget(s)
		return
	}
	if !s.n.keepClosed(s) {
		s.n.forget(s)
		return
	}
	s.isBroken.Store(true)
	wake(s.n.todo)
}

// tellEnd publishes that the stream is over. mu is held.
func (s *Stream) tellEnd() bool {
	futures, err := s.publish(&replicav1.Entry{End: true})
	if err != nil {
		return false
	}
	s.expect(futures, nil)
	return true
}

// publish writes an entry in as many pieces as it takes. mu is held.
func (s *Stream) publish(e *replicav1.Entry) ([]jetstream.PubAckFuture, error) {
	e.Origin, e.Boot, e.Session, e.Claim, e.Log = s.n.cfg.Name, s.n.boot, s.id, s.claim.position, uint64(s.claim.log)
	e.Worker, e.DpRank = s.key.worker, s.key.rank
	subject, most := s.key.subject(s.n.cfg.Prefix), s.n.pieceBytes()
	whole, after, lost := e.GetRequest(), e.GetAfter(), e.GetLost()
	var futures []jetstream.PubAckFuture
	for {
		piece := whole[:min(len(whole), most)]
		whole = whole[len(piece):]
		s.number++
		e.Number, e.Request, e.More = s.number, piece, len(whole) > 0
		e.After, e.Lost = nil, nil
		if !e.GetMore() {
			e.After, e.Lost = after, lost
		}
		b := marshal(e)
		f, err := s.n.js.PublishAsync(subject, b, jetstream.WithStallWait(s.n.cfg.AckWait))
		if err != nil {
			return nil, err
		}
		s.n.count.published.Add(1)
		s.n.count.publishedBytes.Add(uint64(len(b)))
		futures = append(futures, f)
		if !e.GetMore() {
			return futures, nil
		}
	}
}

// pieceBytes is how much of a request an entry may have.
func (n *Node) pieceBytes() int {
	const head, least = 8 << 10, 1 << 10
	return min(max(int(n.nc.MaxPayload())-head, least), n.cfg.pieceBytes)
}

// forget drops a stream. Its mu is held.
func (n *Node) forget(s *Stream) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sessions, s.id)
	delete(n.streams, s)
	if n.late[s.key] == s {
		delete(n.late, s.key)
	}
	if s.isKept {
		s.isKept = false
		n.closed--
	}
	if t := n.targets[s.key]; t != nil && t.local == s {
		t.local = nil
	}
}

// keepClosed says whether there is room for one more stream that has to say that it is over.
func (n *Node) keepClosed(s *Stream) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.isKept {
		return true
	}
	if n.closed >= maxClosed {
		n.count.forgotten.Add(1)
		return false
	}
	n.closed++
	s.isKept = true
	return true
}

func marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil // only invalid UTF-8 fails, which came off no wire
	}
	return b
}
