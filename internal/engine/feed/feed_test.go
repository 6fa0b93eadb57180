package feed

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"
)

// batch is a message of the simulated engine: it adds or takes copies of blocks, or drops all of them.
type batch struct {
	life, sequence int
	add, take      []int
	isClear        bool
	isBroken       bool
}

func (b *batch) Sum() uint64 { return uint64(b.life)<<32 | uint64(b.sequence)<<1 | 1 }
func (*batch) Size() int     { return 100 }

// engine publishes, and remembers in a ring.
type engine struct {
	r        *rand.Rand
	life     int
	sequence int
	holds    map[int]int
	ring     []*batch
	ringSize int
}

func (e *engine) restart() {
	e.life++
	e.sequence, e.ring = 0, nil
	e.holds = make(map[int]int)
}

// step publishes the next batch. What an engine numbers and fails to send is nowhere in its ring.
func (e *engine) step() *batch {
	b := &batch{life: e.life, sequence: e.sequence}
	e.sequence++
	if e.r.IntN(60) == 0 {
		b.isClear = true
		clear(e.holds)
	} else {
		for range 1 + e.r.IntN(3) {
			x := e.r.IntN(30)
			if e.holds[x] > 0 && e.r.IntN(2) == 0 {
				b.take = append(b.take, x)
				if e.holds[x]--; e.holds[x] == 0 {
					delete(e.holds, x)
				}
			} else {
				b.add = append(b.add, x)
				e.holds[x]++
			}
		}
	}
	e.ring = append(e.ring, b)
	if len(e.ring) > e.ringSize {
		e.ring = e.ring[1:]
	}
	return b
}

// picture is what a feed makes of it, and what it should be: of the life and the number of the last batch applied.
type picture struct {
	t        *testing.T
	seed     uint64
	holds    map[int]int
	truths   map[[2]int]map[int]int
	trust    Trust
	last     *batch
	asked    []uint64
	lives    map[Cause]int
	rightful int // batches applied while Whole
}

func (p *picture) Apply(sequence uint64, b *batch) Result {
	if int(sequence) != b.sequence {
		p.t.Fatalf("seed %d: batch %d came as %d", p.seed, b.sequence, sequence)
	}
	if b.isBroken {
		return Result{IsLost: true}
	}
	p.last = b
	if b.isClear {
		clear(p.holds)
	}
	for _, x := range b.add {
		p.holds[x]++
	}
	for _, x := range b.take {
		if p.holds[x] > 0 {
			p.holds[x]--
		}
		if p.holds[x] == 0 {
			delete(p.holds, x)
		}
	}
	return Result{IsWhole: b.isClear}
}

func (p *picture) Replay(from uint64) { p.asked = append(p.asked, from) }

func (p *picture) NewLife(c Cause) {
	p.lives[c]++
	p.last = nil
	clear(p.holds)
}

func (p *picture) Trust(t Trust) { p.trust = t }

// check holds the picture to what its trust promises.
func (p *picture) check() {
	if p.trust == Doubtful || p.last == nil {
		return
	}
	truth := p.truths[[2]int{p.last.life, p.last.sequence}]
	if p.trust == Whole {
		p.rightful++
		if !maps.Equal(truth, p.holds) {
			p.t.Fatalf("seed %d: whole after batch %d of life %d: %v, want %v", p.seed, p.last.sequence, p.last.life, p.holds, truth)
		}
		return
	}
	for x, n := range p.holds {
		if n > truth[x] {
			p.t.Fatalf("seed %d: %v after batch %d of life %d: %v, which is not in %v", p.seed, p.trust, p.last.sequence, p.last.life, p.holds, truth)
		}
	}
}

// world is an engine, a feed, and what lies between.
type world struct {
	r       *rand.Rand
	e       *engine
	p       *picture
	f       *Feed[*batch]
	now     time.Time
	pending []*batch // on the live connection
	isUp    bool
	faults  bool
	lossy   bool // messages may get lost without the connection
	mute    bool // replays fail
	parked  []*batch
}

func newWorld(t *testing.T, seed uint64, ring int) *world {
	r := rand.New(rand.NewPCG(seed, 3))
	w := &world{
		r: r, now: time.Unix(1e9, 0), faults: true, lossy: seed%3 != 0, mute: seed%5 == 0,
		e: &engine{r: r, ringSize: ring, holds: make(map[int]int)},
		p: &picture{t: t, seed: seed, holds: make(map[int]int), truths: make(map[[2]int]map[int]int), lives: make(map[Cause]int)},
	}
	w.f = New(Config{HasReplay: ring > 0, Messages: 40, DoubtFor: time.Minute, Quiet: 2 * time.Second}, w.p)
	return w
}

func (w *world) publish() {
	b := w.e.step()
	w.p.truths[[2]int{b.life, b.sequence}] = maps.Clone(w.e.holds)
	if w.isUp {
		w.pending = append(w.pending, b)
	}
}

// deliver hands over the oldest message, or a younger one first, or twice, or never.
func (w *world) deliver() {
	if len(w.pending) == 0 {
		return
	}
	i := 0
	if w.faults && len(w.pending) > 1 && w.r.IntN(10) == 0 {
		i = 1
	}
	b := w.pending[i]
	if w.faults && w.r.IntN(60) == 0 {
		w.pending = append(w.pending[:i:i], w.pending[i+1:]...)
		w.parked = append(w.parked, b) // it comes much later
		return
	}
	isLost, isTwice := false, false
	if w.faults {
		isLost, isTwice = w.lossy && w.r.IntN(25) == 0, w.r.IntN(20) == 0
	}
	if !isTwice {
		w.pending = append(w.pending[:i:i], w.pending[i+1:]...)
	}
	if isLost {
		return
	}
	if w.faults && w.lossy && w.r.IntN(100) == 0 {
		broken := *b
		broken.isBroken = true
		b = &broken
	}
	w.f.Live(uint64(b.sequence), b, w.now)
	w.p.check()
}

// answer serves the newest replay that was asked for, now and then badly.
func (w *world) answer() {
	if len(w.p.asked) == 0 {
		return
	}
	from := w.p.asked[len(w.p.asked)-1]
	w.p.asked = nil
	for _, b := range w.e.ring {
		if uint64(b.sequence) < from {
			continue
		}
		if w.faults && (w.mute || w.r.IntN(40) == 0) {
			w.f.ReplayFailed(w.now)
			w.p.check()
			return
		}
		w.f.Replayed(uint64(b.sequence), b, w.now)
		w.p.check()
		if len(w.p.asked) > 0 {
			return // the feed wants another answer
		}
	}
	w.f.ReplayEnd(w.now)
	w.p.check()
}

func (w *world) connect() {
	w.isUp, w.pending, w.parked = true, nil, nil
	w.f.Connected(w.now)
	w.p.check()
}

func (w *world) tick(d time.Duration) {
	w.now = w.now.Add(d)
	w.f.Tick(w.now)
	w.p.check()
}

func (w *world) step() {
	switch n := w.r.IntN(100); {
	case n < 40:
		w.publish()
	case n < 80:
		w.deliver()
	case n < 92:
		w.answer()
	case n < 96:
		w.tick(time.Duration(w.r.IntN(200)) * time.Millisecond)
	case n < 97 && len(w.parked) > 0:
		w.pending = append(w.parked[:1:1], w.pending...)
		w.parked = w.parked[1:]
	case n < 98:
		if w.r.IntN(3) == 0 {
			w.isUp, w.pending = false, nil // what was on the way is lost
			for range w.r.IntN(6) {
				w.publish()
			}
			if w.r.IntN(2) == 0 {
				w.e.restart()
				n := w.r.IntN(2*w.e.ringSize + 20)
				if w.r.IntN(3) == 0 {
					n = int(w.f.Stats().Next) // it may look as if nothing had happened
				}
				for range n {
					w.publish()
				}
			}
			w.connect()
		}
	}
}

// settle stops the faults and lets everything arrive.
func (w *world) settle() {
	w.faults = false
	for range 200 {
		w.deliver()
		w.answer()
		w.tick(100 * time.Millisecond)
	}
	if w.e.ringSize == 0 {
		w.publish() // only a message behind a loss shows it
	}
	for range 50 {
		w.deliver()
		w.answer()
		w.tick(100 * time.Millisecond)
	}
}

// Lost, repeated, swapped and broken messages, cut connections, restarts, replays that fail: what is held is what the
// engine holds, or a part of it and said to be so, or in doubt and said to be so; and it ends in the newest life.
func TestNeverWrong(t *testing.T) {
	ends := make(map[string]map[Trust]int)
	for seed := range uint64(300) {
		ring := []int{0, 5, 1000}[seed%4%3]
		w := newWorld(t, seed, ring)
		for range w.r.IntN(3) * w.r.IntN(10) {
			w.publish() // before anybody listens
		}
		w.connect()
		for range 300 {
			w.step()
		}
		w.settle()
		if w.p.last == nil || w.p.last.life != w.e.life || w.p.last.sequence != w.e.sequence-1 {
			t.Fatalf("seed %d: ends after %+v in life %d at %d: %+v", seed, w.p.last, w.e.life, w.e.sequence, w.f.Stats())
		}
		if w.p.trust != w.f.TrustNow() {
			t.Fatalf("seed %d: told %v, is %v", seed, w.p.trust, w.f.TrustNow())
		}
		if s := w.f.Stats(); s.Waiting != 0 || s.WaitingFor != 0 || s.Next != uint64(w.e.sequence) {
			t.Fatalf("seed %d: at rest %+v", seed, s)
		}
		key := fmt.Sprintf("ring %d", ring)
		if ends[key] == nil {
			ends[key] = make(map[Trust]int)
		}
		ends[key][w.p.trust]++
		// After the time of doubt nothing is in doubt. A replay may be under way when it ends.
		for range 3 {
			w.tick(time.Minute)
			w.answer()
		}
		if w.p.trust == Doubtful {
			t.Fatalf("seed %d: in doubt for ever", seed)
		}
	}
	// With a ring that reaches back a loss is made good; only broken messages, of which the ring's copy counts too late,
	// and replays that fail for good leave doubt.
	if big := ends["ring 1000"]; big[Whole] < 3*big[Doubtful] {
		t.Errorf("a large ring did not help: %v", ends)
	}
	t.Log(ends)
}
