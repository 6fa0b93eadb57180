package sim

import (
	"context"
	"fmt"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// PairOptions describe a disaggregated fleet.
type PairOptions struct {
	LiveOptions
	// Prefill is how many of the engines, the first ones, only prefill. The others decode.
	Prefill int
	// Whole lets those that decode prefill as well.
	Whole bool
	// Apart asks for a prefill and for a decode worker separately, as if each were all there is.
	Apart bool
	// Rack is how many neighbouring engines stand in one rack; 0: nothing is known. Half of each rack prefills.
	Rack int
}

// LivePairs is Live for a fleet in which some prefill and others decode.
type LivePairs struct {
	Live

	o     PairOptions
	links policy.Links
	racks []int // by engine
	first map[*Request]oracle.DecisionID
}

var (
	_ PairChooser = (*LivePairs)(nil)
	_ Observer    = (*LivePairs)(nil)
)

// NewLivePairs makes one for one run.
func NewLivePairs(o PairOptions) *LivePairs {
	a := &LivePairs{Live: Live{o: o.LiveOptions}, o: o, links: o.Oracle.Links, first: map[*Request]oracle.DecisionID{}}
	if a.links == (policy.Links{}) {
		a.links = policy.DefaultLinks()
	}
	return a
}

// Attach implements Attached.
func (a *LivePairs) Attach(o *Options) error {
	a.racks = make([]int, o.Engines)
	a.spec = func(i int, s *fleet.Spec) {
		s.Roles = fleet.Prefill
		// The prefill engines are dealt out over the racks, and so are the others.
		place := i
		if i >= a.o.Prefill {
			place = i - a.o.Prefill
			if s.Roles = fleet.Decode; a.o.Whole {
				s.Roles |= fleet.Aggregated
			}
		}
		if n := a.o.Rack; n > 0 {
			a.racks[i] = place * 2 / n
			s.Labels = map[string]string{"rack": fmt.Sprint("rack-", a.racks[i])}
		}
	}
	if err := a.Live.Attach(o); err != nil {
		return err
	}
	o.Observer = a
	return nil
}

// Link implements PairChooser.
func (a *LivePairs) Link(prefill, decode, tokens int) float64 {
	far := policy.SameZone
	if a.o.Rack > 0 && a.racks[prefill] == a.racks[decode] {
		far = policy.SameRack
	}
	return a.links.Setup + a.links.PerToken[far]*float64(tokens)
}

// ChoosePair implements PairChooser.
func (a *LivePairs) ChoosePair(t float64, r *Request, _ *Fleet) (prefill, decode int) {
	a.tick(t)
	if !a.o.Apart {
		d := a.ask(t, r, func(q *oracle.RouteRequest) { q.Role, q.IsPair = fleet.Decode, true })
		if d == nil {
			return -1, -1
		}
		a.decisions[r] = d.Decision
		decode = a.engines[d.Target.Worker]
		if d.Prefill == nil {
			return decode, decode
		}
		return a.engines[d.Prefill.Worker], decode
	}
	p := a.ask(t, r, func(q *oracle.RouteRequest) { q.Role = fleet.Prefill })
	if p == nil {
		return -1, -1
	}
	a.first[r] = p.Decision
	d := a.ask(t, r, func(q *oracle.RouteRequest) {
		q.Role = fleet.Decode
		for name, i := range a.engines {
			if i < a.o.Prefill {
				q.Denied = append(q.Denied, name)
			}
		}
	})
	if d == nil {
		return -1, -1
	}
	a.decisions[r] = d.Decision
	return a.engines[p.Target.Worker], a.engines[d.Target.Worker]
}

func (a *LivePairs) ask(t float64, r *Request, change func(*oracle.RouteRequest)) *oracle.Answer {
	q := &oracle.RouteRequest{
		Model: liveModel, Session: r.Session,
		Prompt: oracle.Prompt{Locals: r.Locals(a.keyspace, a.blockSize), LocalsSize: a.blockSize, Length: r.Input},
	}
	change(q)
	answer, err := a.oracle.Route(context.Background(), q, moment(t))
	if a.note(err); a.err != nil {
		return nil
	}
	return answer
}

// FirstToken implements Observer.
func (a *LivePairs) FirstToken(t float64, j *Job) {
	if id, ok := a.first[j.Request]; ok {
		delete(a.first, j.Request)
		a.progress(t, &oracle.Event{Decision: id, Step: oracle.FirstToken, TTFT: j.FirstToken - j.Arrived})
		a.progress(t, &oracle.Event{Decision: id, Step: oracle.Finished, OutputTokens: 1, Cached: -1})
	}
	a.Live.FirstToken(t, j)
}
