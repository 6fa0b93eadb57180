package load

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// after is a moment of the tests' clock.
func after(d time.Duration) time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(d) }

// twin is the tracker without a single sum: a slice of bookings that is searched, and added up when asked.
type twin struct {
	cfg      Config
	clock    time.Duration
	bookings []*twinBooking
	targets  map[fleet.TargetID]*twinTarget
	models   map[string]*twinModel
	count    Counters
	told     map[string][]news // by gateway: what it did last; see note
	habits   map[string][2]float64
	inferred bool // the next end is
	presumed []Presumption
	came     int // arrivals at targets
	spoken   int // news of bookings
}

// twinModel is what is learned of a model.
type twinModel struct{ output, uncached float64 }

// modelOf is what a target serves: two have many targets, one has a single one.
func modelOf(id fleet.TargetID) string {
	if id == 8 {
		return "alone"
	}
	return []string{"even", "odd"}[id%2]
}

// model is what is learned of a target's model.
func (w *twin) model(id fleet.TargetID) *twinModel {
	name := modelOf(id)
	if w.models[name] == nil {
		w.models[name] = &twinModel{200, 512}
	}
	return w.models[name]
}

// forget drops a target, and with the last its model.
func (w *twin) forget(id fleet.TargetID) {
	delete(w.targets, id)
	for other := range w.targets {
		if modelOf(other) == modelOf(id) {
			return
		}
	}
	delete(w.models, modelOf(id))
}

// news is what a gateway did about a request.
type news struct {
	isWord          bool // it told something
	ended, wasFirst bool // the request has ended, and its first token had come
	givenUp         bool
}

type twinBooking struct {
	Booking
	sent, first, told    bool
	came                 int // number of its arrival at its target
	output               int
	made, at, heard      time.Duration
	order                int // of heard
	nanos, decode        int64
	timed, over          bool
	end                  time.Duration // when it will be over
	expected             int
	prompt, fresh, share int
	marks                Marks
}

type twinTarget struct {
	chosen  uint64
	sampled int64
	at      time.Duration
	has     bool
	sample  *Sample // last accepted
	ext     external
	held    float64 // when it came
	turn    time.Duration
}

func newTwin(cfg Config) *twin {
	return &twin{cfg: cfg.withDefaults(), targets: map[fleet.TargetID]*twinTarget{}, told: map[string][]news{}, habits: map[string][2]float64{}, models: map[string]*twinModel{}}
}

func (w *twin) find(match func(*twinBooking) bool) *twinBooking {
	i := slices.IndexFunc(w.bookings, match)
	if i < 0 {
		return nil
	}
	return w.bookings[i]
}

func (w *twin) byID(id DecisionID) *twinBooking {
	return w.find(func(b *twinBooking) bool { return b.ID == id })
}

func (w *twin) drop(match func(*twinBooking) bool) int {
	n := len(w.bookings)
	w.bookings = slices.DeleteFunc(w.bookings, match)
	return n - len(w.bookings)
}

func (w *twin) book(b Booking, m Marks) error {
	switch {
	case w.targets[b.Target] == nil:
		return ErrUnknownTarget
	case w.byID(b.ID) != nil,
		b.RequestID != "" && w.find(func(o *twinBooking) bool { return o.RequestID == b.RequestID }) != nil:
		w.count.Repeated++
		return ErrRepeated
	case len(w.bookings) >= w.cfg.MaxBookings:
		w.count.Full++
		return ErrFull
	}
	n := &twinBooking{Booking: b, made: w.clock, at: w.clock, heard: w.clock}
	n.prompt = max(b.PromptTokens, 0)
	n.fresh, n.share = min(max(b.UncachedTokens, 0), n.prompt), min(max(b.SharedTokens, 0), n.prompt)
	if n.marks = m; m.Covered > 0 {
		n.share = min(m.Covered, n.prompt)
	}
	w.renew(n)
	n.nanos, n.decode = int64(math.Round(max(b.PrefillSeconds, 0)*1e9)), int64(math.Round(max(b.DecodeSeconds, 0)*1e9))
	n.expected = min(max(b.ExpectedOutput, 0), w.cfg.MaxExpectedOutput)
	if n.expected == 0 {
		n.expected = int(math.Round(w.model(b.Target).output))
	}
	w.came++
	n.came = w.came
	w.bookings = append(w.bookings, n)
	w.count.Booked++
	w.targets[b.Target].chosen = w.count.Booked
	about := w.model(b.Target)
	about.uncached += 0.01 * (float64(n.fresh) - about.uncached)
	return nil
}

func (w *twin) dispatched(id DecisionID, to fleet.TargetID, has bool, gateway string) Outcome {
	b := w.byID(id)
	if b == nil || (has && w.targets[to] == nil) {
		return Unknown
	}
	moves := has && to != b.Target
	if b.told || (b.sent && !moves) {
		return Late
	}
	if moves {
		w.came++
		b.Target, b.came, b.at, b.first, b.timed, b.over = to, w.came, w.clock, false, false, false
	}
	if gateway != "" {
		b.Gateway = gateway
	}
	b.sent = true
	w.note(b, news{isWord: true})
	w.renew(b)
	return Applied
}

func (w *twin) renew(b *twinBooking) {
	w.spoken++
	b.heard, b.order = w.clock, w.spoken
}

// schedule says when a booking that decodes since at is over.
func (w *twin) schedule(b *twinBooking, at time.Duration) {
	b.timed = b.decode > 0 && !w.tells(b.Gateway).end
	b.end = at + time.Duration(b.decode)
	if left := b.expected - b.output; left > 0 {
		b.end = at + time.Duration(float64(b.decode)*(float64(left)/float64(b.expected)))
	}
}

func (w *twin) firstToken(id DecisionID) (Outcome, time.Duration) {
	b := w.byID(id)
	if b == nil {
		return Unknown, 0
	}
	if b.told {
		return Late, 0
	}
	b.first, b.told, b.over = true, true, false
	w.renew(b)
	w.note(b, news{isWord: true})
	w.schedule(b, w.clock)
	w.targets[b.Target].turn = w.clock
	return Applied, w.clock - b.made
}

func (w *twin) generating(id DecisionID, out int) Outcome {
	b := w.byID(id)
	if b == nil {
		return Unknown
	}
	out = max(out, 0)
	if out < b.output {
		return Late
	}
	b.output, b.over = out, false
	w.renew(b)
	b.first, b.told = b.first || out > 0, b.told || out > 0
	w.note(b, news{isWord: true})
	if b.first {
		w.schedule(b, w.clock)
	}
	return Applied
}

func (w *twin) end(id DecisionID, out int, counter *uint64) Outcome {
	b := w.byID(id)
	if b == nil {
		return Unknown
	}
	if counter == &w.count.Finished && !w.inferred {
		w.note(b, news{isWord: true, ended: true, wasFirst: b.told})
		if o := max(out, b.output); o > 0 {
			about := w.model(b.Target)
			about.output += 0.01 * (float64(o) - about.output)
		}
	}
	if counter != &w.count.Finished && !w.inferred {
		w.note(b, news{isWord: true, ended: true, givenUp: true})
	}
	w.drop(func(o *twinBooking) bool { return o == b })
	*counter++
	return Applied
}

// expire drops what nobody has spoken of for a lease, the longest silent first.
func (w *twin) expire() int {
	slices.SortFunc(w.bookings, func(a, b *twinBooking) int { return a.order - b.order })
	return w.drop(func(b *twinBooking) bool {
		silent := w.clock-b.heard >= w.cfg.Lease
		if silent {
			w.note(b, news{ended: true, wasFirst: b.told})
			if !b.over {
				w.presumed = append(w.presumed, Presumption{ID: b.ID, Ended: true})
			}
		}
		return silent
	})
}

func (w *twin) note(b *twinBooking, n news) { w.told[b.Gateway] = append(w.told[b.Gateway], n) }

// tells goes through everything a gateway has done since it was last asked.
func (w *twin) tells(gateway string) (is struct{ first, end bool }) {
	first, end := w.habits[gateway][0], w.habits[gateway][1]
	lean := func(habit *float64, met bool) {
		if met {
			*habit += 0.2 * (1 - *habit)
		} else {
			*habit += 0.2 * (0 - *habit)
		}
	}
	_, known := w.habits[gateway]
	for _, n := range w.told[gateway] {
		if !known && n.isWord {
			known, first, end = true, 1, 1
		}
		if known && n.ended {
			lean(&end, n.isWord)
			if !n.givenUp {
				lean(&first, n.wasFirst)
			}
		}
	}
	if !known {
		return is
	}
	delete(w.told, gateway)
	w.habits[gateway] = [2]float64{first, end}
	is.first, is.end = first >= 0.5, end >= 0.5
	return is
}

// nanos adds up the prefills of a target.
func (w *twin) nanos(id fleet.TargetID) int64 {
	sum := int64(0)
	for _, b := range w.bookings {
		if b.Target == id && !b.first {
			sum += b.nanos
		}
	}
	return sum
}

// begun is what the clock has worked off of the first.
func (w *twin) begun(id fleet.TargetID) int64 {
	var b *twinBooking
	for _, o := range w.bookings {
		if o.Target == id && !o.first && (b == nil || o.came < b.came) {
			b = o
		}
	}
	if b == nil {
		return 0
	}
	had := w.step() - max(w.targets[id].turn, b.at)
	done := int64(float64(max(had, 0)) / 1.25)
	if done > b.nanos { // overdue
		return max(b.nanos-(done-b.nanos), 0)
	}
	return done
}

// presume looks for the first prefill of a target until it may stay, and then for bookings that are over.
func (w *twin) presume(id fleet.TargetID) {
	w.presumePrefills(id)
	for _, b := range w.bookings {
		if b.Target == id && b.timed && b.end <= w.step() {
			b.timed = false
			w.outlive(b)
		}
	}
}

func (w *twin) outlive(b *twinBooking) {
	if b.over = !w.tells(b.Gateway).end; b.over {
		w.count.Outlived++
		w.presumed = append(w.presumed, Presumption{ID: b.ID, Ended: true})
	}
}

func (w *twin) step() time.Duration { return w.clock.Truncate(10 * time.Millisecond) }

// surplus ends those that will be over soonest where a sample shows fewer than are booked.
func (w *twin) surplus(id fleet.TargetID, s *Sample) {
	n := w.own(id).Booked - s.Running.Value - s.Waiting.Value
	for ; s.Running.Known && s.Waiting.Known && n > 0; n-- {
		var next *twinBooking
		for _, b := range w.bookings {
			if b.Target == id && b.timed && (next == nil || b.end < next.end) {
				next = b
			}
		}
		if next == nil {
			return
		}
		next.timed = false
		w.outlive(next)
	}
}

func (w *twin) presumePrefills(id fleet.TargetID) {
	g := w.targets[id]
	for g != nil {
		var b *twinBooking
		for _, o := range w.bookings {
			if o.Target == id && !o.first && (b == nil || o.came < b.came) {
				b = o
			}
		}
		if b == nil || w.tells(b.Gateway).first {
			return
		}
		begun := max(g.turn, b.at)
		given := max(time.Duration(float64(b.nanos)*1.25), 10*time.Millisecond)
		if w.step() < begun+given {
			return
		}
		g.turn, b.first = begun+given, true
		w.count.Presumed++
		w.presumed = append(w.presumed, Presumption{ID: b.ID})
		w.schedule(b, g.turn)
	}
}

func (w *twin) isFresh(g *twinTarget) bool {
	return g != nil && g.has && w.clock-g.at <= w.cfg.MaxReportAge
}

func (w *twin) report(id fleet.TargetID, s Sample) (Belief, error) {
	g := w.targets[id]
	if g == nil {
		return Belief{}, ErrUnknownTarget
	}
	w.presume(id)
	ignored := s.SampledAt != 0 && s.SampledAt < g.sampled && w.isFresh(g)
	if !ignored {
		w.surplus(id, &s)
	}
	st := w.own(id)
	if ignored {
		w.count.SamplesIgnored++
	} else {
		w.count.Samples++
		if s.SampledAt != 0 {
			g.sampled = s.SampledAt
		}
		beyond := max(0, s.Running.Value+s.Waiting.Value-st.Booked)
		g.ext = external{waiting: int64(min(beyond, max(0, s.Waiting.Value-st.Prefilling)))}
		g.ext.decoding = int64(beyond) - g.ext.waiting
		g.ext.tokens = float64(g.ext.waiting) * w.model(id).uncached
		if s.WaitingPrefillTokens.Known {
			g.ext.tokens = max(0, float64(s.WaitingPrefillTokens.Value)-st.PendingPrefillTokens)
		}
		rate := w.cfg.PrefillSecondsPerToken
		if s.SecondsPerToken > 0 {
			rate = s.SecondsPerToken
		}
		g.ext.seconds = g.ext.tokens * rate
		g.has, g.at, g.sample, g.held = true, w.clock, &s, st.HeldTokens-w.queued(id, s.Waiting.Value)
	}
	return Belief{
		Ignored:               ignored,
		InFlight:              st.Booked + int(g.ext.requests()),
		Booked:                st.Booked,
		PendingPrefillSeconds: st.PendingPrefillSeconds + g.ext.seconds,
	}, nil
}

// marked is the memory that the marks of a target's bookings stand for, but for those of one booking.
func (w *twin) marked(id fleet.TargetID, but *twinBooking) float64 {
	blocks := map[uint64]int{}
	for _, b := range w.bookings {
		if b.Target == id && b != but && !b.over {
			for _, x := range b.marks.Blocks {
				blocks[x] = b.marks.Tokens
			}
		}
	}
	sum := 0
	for _, n := range blocks {
		sum += n
	}
	return float64(sum)
}

// queued is the memory of the n last to come of those without a first token.
func (w *twin) queued(id fleet.TargetID, n int) float64 {
	var waiting []*twinBooking
	for _, b := range w.bookings {
		if b.Target == id && !b.first {
			waiting = append(waiting, b)
		}
	}
	slices.SortFunc(waiting, func(a, b *twinBooking) int { return cmp.Compare(b.came, a.came) })
	sum := 0.0
	for _, b := range waiting[:min(len(waiting), max(n, 0))] {
		sum += float64(b.prompt-b.share+b.output) + w.marked(id, nil) - w.marked(id, b)
	}
	return sum
}

func saysKV(s *Sample) bool {
	return s.UsedBlocks.Known && s.TotalBlocks.Known && s.TotalBlocks.Value > 0
}

func saysWork(s *Sample) bool {
	return s.Running.Known || s.Waiting.Known || s.WaitingPrefillTokens.Known
}

func kvUsed(s *Sample) float64 {
	return min(1, float64(s.UsedBlocks.Value)/float64(s.TotalBlocks.Value))
}

// own adds up the bookings of a target.
func (w *twin) own(id fleet.TargetID) State {
	var s State
	var nanos int64
	for _, b := range w.bookings {
		if b.Target != id || b.over {
			continue
		}
		s.Booked++
		s.InFlight++
		if b.first {
			s.Decoding++
		} else {
			s.Prefilling++
			nanos += b.nanos
			s.PendingPrefillTokens += float64(b.fresh)
		}
		s.ActiveTokens += float64(b.prompt + b.output)
		s.HeldTokens += float64(b.prompt - b.share + b.output)
		s.OutputToCome += float64(max(0, b.expected-b.output))
	}
	s.HeldTokens += w.marked(id, nil)
	s.PendingPrefillSeconds = float64(nanos) / 1e9
	return s
}

func (w *twin) states(ids, peers []fleet.TargetID) []State {
	var works []external
	var used []float64
	anyFresh := false
	for _, id := range ids {
		w.presume(id)
		anyFresh = anyFresh || w.isFresh(w.targets[id])
	}
	for _, id := range peers {
		if g := w.targets[id]; w.isFresh(g) {
			anyFresh = true
			if saysWork(g.sample) {
				works = append(works, g.ext)
			}
			if saysKV(g.sample) {
				used = append(used, kvUsed(g.sample))
			}
		}
	}
	slices.SortFunc(works, func(a, b external) int {
		return cmp.Or(cmp.Compare(a.waiting+a.decoding, b.waiting+b.decoding), cmp.Compare(a.seconds, b.seconds),
			cmp.Compare(a.tokens, b.tokens), cmp.Compare(a.waiting, b.waiting))
	})
	slices.Sort(used)

	var out []State
	for _, id := range ids {
		s := w.own(id)
		g := w.targets[id]
		fresh := w.isFresh(g)
		var ext external
		s.KVUsed, s.ReportAge, s.Confidence, s.UnreportedTokens = -1, -1, BookedOnly, s.HeldTokens
		switch {
		case fresh:
			s.Confidence = Reported
		case anyFresh:
			s.Confidence = Imputed
		}
		switch {
		case fresh && saysWork(g.sample):
			ext = g.ext
		case len(works) > 0:
			ext = works[len(works)/2]
		}
		switch {
		case fresh && saysKV(g.sample):
			s.KVUsed = kvUsed(g.sample)
			s.UnreportedTokens -= g.held
		case len(used) > 0:
			s.KVUsed = used[len(used)/2]
		}
		if g != nil {
			s.LastChosen = g.chosen
			if g.has {
				s.ReportAge = w.clock - g.at
			}
		}
		s.PendingPrefillSeconds = float64(w.nanos(id)-w.begun(id)) / 1e9
		s.InFlight += int(ext.waiting + ext.decoding)
		s.Prefilling += int(ext.waiting)
		s.Decoding += int(ext.decoding)
		s.PendingPrefillSeconds += ext.seconds
		s.PendingPrefillTokens += ext.tokens
		out = append(out, s)
	}
	return out
}

func (w *twin) tell(o Outcome) {
	switch o {
	case Applied:
	case Late:
		w.count.Late++
	case Unknown:
		w.count.Unknown++
	}
}
