package replica

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/oracle"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
)

// How often an origin is asked for one target: at first, and at most after that has not helped.
const (
	askAgain  = 500 * time.Millisecond
	askSeldom = 30 * time.Second
	// forgetAfter is how long it is known who owned a target that nobody speaks of.
	forgetAfter = 30 * time.Minute
)

// joining is a replica's way from its start to where the others are.
type joining struct {
	since   time.Time         // of looking for NATS at all
	askedAt time.Time         // of the last question for all; zero: not asked
	tail    uint64            // of the log at that moment, or of the last announcement that answers it
	waiting map[string]uint64 // replicas that will announce, with their lives
	// isHeldUp: a copy is being read.
	isHeldUp bool
}

// watch does what time asks for, until ctx is done.
func (n *Node) watch(ctx context.Context) {
	n.mu.Lock()
	n.joining.since = time.Now()
	n.mu.Unlock()
	beat := time.NewTicker(n.cfg.BeatEvery)
	defer beat.Stop()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	beats := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			n.publishBeat(false)
			n.tellDigests()
			if beats++; beats%visitBeats == 0 {
				n.tellGateways()
			}
		case now := <-look.C:
			n.look(now)
		}
	}
}

func (n *Node) publishBeat(isLast bool) {
	n.send("beat", &replicav1.Beat{Origin: n.cfg.Name, Boot: n.boot, Leaving: isLast, Space: n.o.Space()})
}

// send publishes by core NATS. What is lost is said again.
func (n *Node) send(subject string, m proto.Message) {
	if n.isAlone() || !n.isConnected() {
		return
	}
	if err := n.nc.Publish(n.cfg.Prefix+"."+subject, marshal(m)); err != nil {
		n.log.LogAttrs(context.Background(), slog.LevelDebug, "notice not sent", slog.String("subject", subject), slog.Any("error", err))
	}
}

// tellDigests publishes the standings that are due. A stream that is busy is told at the next beat.
func (n *Node) tellDigests() {
	if n.isAlone() || !n.isConnected() || !n.following.Load() {
		return
	}
	n.mu.Lock()
	all := make([]*Stream, 0, len(n.streams))
	for s := range n.streams {
		all = append(all, s)
	}
	n.mu.Unlock()
	now := time.Now()
	for _, s := range all {
		if !s.mu.TryLock() {
			continue
		}
		if s.session != nil && !s.isBroken.Load() && !s.superseded.Load() && now.After(s.digestAt) {
			s.tellStanding()
		}
		s.mu.Unlock()
	}
}

// look is one look at everything that time changes.
func (n *Node) look(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.join(now)
	n.trust(now)
	silent := n.findSilent(now)
	for _, t := range n.targets {
		n.lookAt(t, silent, now)
	}
	n.heard.look(n, n.cutAt.IsZero() && now.Sub(n.healedAt) > visitMost*n.cfg.BeatEvery, now)
}

// lookAt is look for one target.
func (n *Node) lookAt(t *target, silent map[string]bool, now time.Time) {
	if t.local != nil {
		return
	}
	if t.session != nil && (silent[t.origin] || n.cutAt.IsZero() && now.Sub(t.heard) > n.cfg.SilentAfter && now.Sub(n.healedAt) > n.cfg.SilentAfter) {
		n.leave(t, now)
		t.lacks = true // should it come back
	}
	if t.session != nil {
		select {
		case <-t.session.Kicked():
			// Removed, or reborn by another's word.
			t.session, t.applier = nil, nil
			n.drop(t)
			n.lack(t)
		case r := <-t.session.Resyncs():
			// Asked for by this replica itself: for what an operator dropped, or engines did not have.
			if r.Reason == oracle.ResyncOutcomes {
				n.ask(&replicav1.Ask{Worker: t.key.worker, DpRank: t.key.rank, FromReporter: true})
			} else {
				n.lack(t)
			}
		default:
		}
	}
	if t.session == nil && now.Sub(t.heard) > forgetAfter {
		n.drop(t)
		delete(n.targets, t.key)
		return
	}
	if t.lacks && now.After(t.nextAsk) && n.isConnected() && n.isAlive(t.origin, t.boot) {
		t.pause = min(max(2*t.pause, askAgain), askSeldom)
		t.nextAsk = now.Add(t.pause)
		n.ask(&replicav1.Ask{Worker: t.key.worker, DpRank: t.key.rank})
	}
}

func (n *Node) ask(m *replicav1.Ask) {
	m.Origin, m.Boot = n.cfg.Name, n.boot
	n.count.asked.Add(1)
	n.send("ask", m)
}

// trust marks the targets of others when NATS has been away for the grace, and takes that back when all it had to say since
// has been applied.
func (n *Node) trust(now time.Time) {
	isCut := !n.cutAt.IsZero() && now.Sub(n.cutAt) > n.cfg.Grace
	isWell := n.cutAt.IsZero() && n.following.Load() && n.position >= n.tail
	if isCut == n.mistrust || n.mistrust && !isWell {
		return
	}
	n.mistrust = isCut
	for _, t := range n.targets {
		if t.session != nil {
			t.session.Mistrust(isCut || t.lacks, now)
		}
	}
}

// hear notes a sign of life.
func (n *Node) hear(name string, boot uint64, now time.Time) {
	o := n.origins[name]
	if o == nil {
		if len(n.origins) >= maxOrigins {
			n.count.refused.Add(1)
			return
		}
		o = &origin{}
		n.origins[name] = o
	}
	if boot < o.boot {
		return // the log still has words of a former life
	}
	if o.boot != boot {
		for _, t := range n.targets {
			if t.origin == name && t.boot != boot && t.local == nil {
				n.leave(t, now) // its former life's
			}
		}
	}
	if boot != o.boot {
		n.heard.reborn(name, boot, now)
	}
	o.boot, o.heard = boot, now
}

func (n *Node) isAlive(name string, boot uint64) bool {
	o := n.origins[name]
	return o != nil && o.boot == boot
}

// living is how many other replicas there are.
func (n *Node) living() int { return len(n.origins) }

// findSilent forgets replicas that give no signs of life. While NATS is away, and for a moment after, nobody is heard.
func (n *Node) findSilent(now time.Time) map[string]bool {
	if !n.cutAt.IsZero() || now.Sub(n.healedAt) < n.cfg.BeatTimeout {
		return nil
	}
	var silent map[string]bool
	for name, o := range n.origins {
		if now.Sub(o.heard) <= n.cfg.BeatTimeout {
			continue
		}
		if silent == nil {
			silent = make(map[string]bool)
		}
		silent[name] = true
		delete(n.origins, name)
		delete(n.joining.waiting, name)
		n.heard.gone(name, now)
		n.count.unheard.Add(1)
		n.log.LogAttrs(context.Background(), slog.LevelWarn, "a replica is not heard any more", slog.String("origin", name))
	}
	return silent
}

// join finds out whether the replica is where the others were when it asked them.
func (n *Node) join(now time.Time) {
	if n.joined.Load() || n.joining.isHeldUp {
		return
	}
	isThere := !n.joining.askedAt.IsZero() && now.Sub(n.joining.askedAt) >= n.cfg.JoinWindow && len(n.joining.waiting) == 0 &&
		n.following.Load() && n.position >= n.joining.tail
	if isThere || now.Sub(n.joining.since) > n.cfg.JoinTimeout {
		n.joined.Store(true)
		close(n.readers)
		if n.isAlone() {
			return
		}
		n.log.LogAttrs(context.Background(), slog.LevelInfo, "joined the other replicas", slog.Bool("complete", isThere),
			slog.Int("replicas", len(n.origins)), slog.Int("targets", len(n.targets)), slog.Duration("took", now.Sub(n.joining.since)))
	}
}

// askForAll asks everybody to announce everything, if this replica has not joined, or the log is another.
func (n *Node) askForAll() {
	n.mu.Lock()
	n.joining.askedAt, n.joining.tail = time.Now(), n.tail
	n.joining.waiting = make(map[string]uint64)
	knows := n.seeding.isDone
	n.mu.Unlock()
	if n.joined.Load() || n.isAlone() {
		return // what is missing is known by target, or nobody has it
	}
	n.count.asked.Add(1)
	m := &nats.Msg{
		Subject: n.cfg.Prefix + ".ask", Reply: n.inbox,
		Data: marshal(&replicav1.Ask{Origin: n.cfg.Name, Boot: n.boot, All: true, Greet: knows}),
	}
	if err := n.nc.PublishMsg(m); err != nil {
		n.log.LogAttrs(context.Background(), slog.LevelDebug, "question not sent", slog.Any("error", err))
	}
}

const maxNotice = 4096 // bytes of one by core NATS

// notice reads one. Our own come back too.
func notice[M interface {
	proto.Message
	GetOrigin() string
	GetBoot() uint64
}](n *Node, msg *nats.Msg, m M,
) bool {
	if len(msg.Data) > maxNotice || proto.Unmarshal(msg.Data, m) != nil || len(m.GetOrigin()) < 1 || len(m.GetOrigin()) > maxName || m.GetBoot() == 0 {
		n.count.malformedNotices.Add(1)
		return false
	}
	return m.GetOrigin() != n.cfg.Name || m.GetBoot() != n.boot
}

func (n *Node) onBeat(msg *nats.Msg) {
	m := &replicav1.Beat{}
	if !notice(n, msg, m) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.GetLeaving() {
		if o := n.origins[m.GetOrigin()]; o != nil && o.boot == m.GetBoot() {
			o.heard = time.Now().Add(-2 * n.cfg.BeatTimeout)
		}
		return
	}
	n.hear(m.GetOrigin(), m.GetBoot(), time.Now())
	n.heard.space(m.GetSpace(), m.GetOrigin(), m.GetBoot())
}

func (n *Node) onAsk(msg *nats.Msg) {
	m := &replicav1.Ask{}
	if !notice(n, msg, m) {
		return
	}
	n.count.answered.Add(1)
	if m.GetAll() || m.GetGreet() {
		if m.GetAll() {
			n.answer(msg, &replicav1.Answer{})
		}
		n.mu.Lock()
		if m.GetAll() && len(n.answers) < maxOrigins {
			n.answers = append(n.answers, msg)
		}
		for s := range n.streams {
			if m.GetGreet() {
				s.greeting.Store(true)
			} else {
				s.wanted.Store(true)
			}
		}
		n.mu.Unlock()
		wake(n.todo)
		return
	}
	n.mu.Lock()
	var s *Stream
	if t := n.targets[key{m.GetWorker(), m.GetDpRank()}]; t != nil {
		s = t.local
	}
	n.mu.Unlock()
	if s == nil {
		return
	}
	if m.GetFromReporter() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.session != nil {
			s.session.Ask(oracle.ResyncOutcomes)
		}
		return
	}
	s.wanted.Store(true)
	wake(n.todo)
}

func (n *Node) onAnswer(msg *nats.Msg) {
	m := &replicav1.Answer{}
	if !notice(n, msg, m) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hear(m.GetOrigin(), m.GetBoot(), time.Now())
	if n.joining.waiting == nil || n.origins[m.GetOrigin()] == nil {
		return
	}
	if !m.GetDone() {
		n.joining.waiting[m.GetOrigin()] = m.GetBoot()
		return
	}
	delete(n.joining.waiting, m.GetOrigin())
	n.joining.tail = max(n.joining.tail, m.GetPosition())
}
