package replay

import (
	"slices"

	"github.com/kvoracle/kvoracle/internal/sim"
)

// Scenarios are fleets that are not all alike or do not stay as they are, and traffic that does not come evenly, on two
// workloads: many short prompts of many tenants, and the long ones of tools and agents. A fleet of 8 engines of one class
// it is, unless said otherwise.
func Scenarios(tenants, tools *Workload) []Scenario {
	// What happens begins at this second, when caches are warm; the requests of a minute count.
	const begin, minute = 90, 60
	const lease = 60 // the oracle's, if nobody says otherwise: see oracle.Config.WorkerLease
	model := sim.Model8B()
	slow := func(at int, speed float64) []float64 {
		s := slices.Repeat([]float64{1}, 8)
		for i := at; i < 8; i++ {
			s[i] = speed
		}
		return s
	}
	change := func(at float64, kind sim.ChangeKind, engines ...int) (out []sim.Change) {
		for _, e := range engines {
			out = append(out, sim.Change{At: at, Engine: e, Kind: kind})
		}
		return out
	}
	pace := func(at, speed float64) sim.Change {
		return sim.Change{At: at, Engine: 7, Kind: sim.Pace, Speed: speed}
	}
	all := []Scenario{
		{Name: "halves", Title: "half of the engines at 0.4 of the speed", Load: 0.7, Cell: Cell{Speeds: slow(4, 0.4)}},
		{Name: "halves_busy", Title: "the same at load 0.9", Load: 0.9, Cell: Cell{Speeds: slow(4, 0.4)}},
		{Name: "straggler", Title: "one engine at 0.25 of the speed", Load: 0.7, Cell: Cell{Speeds: slow(7, 0.25)}},
		{
			Name: "slows_down", Title: "one engine becomes 4 times slower: the minute after", Load: 0.7,
			Changes: []sim.Change{pace(begin, 0.25)}, From: begin, To: begin + minute,
		},
		{
			Name: "recovers", Title: "and is as fast as ever after a minute: the minute after that", Load: 0.7,
			Changes: []sim.Change{pace(begin-minute, 0.25), pace(begin, 1)}, From: begin, To: begin + minute,
		},
		{
			Name: "two_join", Title: "2 join 6 with empty caches: the minute after", Load: 0.9, Present: 6,
			Changes: change(begin, sim.Join, 6, 7), From: begin, To: begin + minute,
		},
		{
			Name: "scale_up", Title: "8 join 8 with empty caches: the minute after", Load: 1, Cell: Cell{Engines: 16}, Present: 8,
			Changes: change(begin, sim.Join, 8, 9, 10, 11, 12, 13, 14, 15), From: begin, To: begin + minute,
		},
		{
			Name: "drains", Title: "one is drained: the minute after", Load: 0.7,
			Changes: change(begin, sim.Drain, 7), From: begin, To: begin + minute,
		},
		{
			Name: "dies", Title: "one is killed and is back, empty, after 20 s: the minute from its death", Load: 0.7,
			Changes: append(change(begin, sim.Kill, 7), change(begin+20, sim.Join, 7)...), From: begin, To: begin + minute,
		},
		{
			Name: "vanishes", Title: "one is dead, known when its lease ends after 60 s: the 90 s from its death", Load: 0.7,
			Changes: append(change(begin, sim.Vanish, 7), change(begin+lease, sim.Kill, 7)...), From: begin, To: begin + lease + minute/2,
		},
		{
			Name: "burst", Title: "200 requests in 2 s that share 8,192 new tokens: the 10 s from the first", Load: 0.7,
			Surge: &sim.Surge{From: begin, For: 2, Requests: 200, Head: 8192, Tail: 200, Output: 100, Seed: 1}, From: begin, To: begin + 10,
		},
		{
			Name: "doubles", Title: "everything comes twice as fast for 30 s: the minute from then", Load: 0.7,
			Surge: &sim.Surge{From: begin, For: 30, Faster: 2}, From: begin, To: begin + minute,
		},
		{
			Name: "new_tenants", Title: "200 new tenants with 4,096 tokens each send 800 requests in 20 s: these 20 s", Load: 0.5,
			Surge: &sim.Surge{From: begin, For: 20, Requests: 800, Heads: 200, Head: 4096, Tail: 300, Output: 150, Seed: 1}, From: begin, To: begin + 20,
		},
	}
	var out []Scenario
	for _, w := range []*Workload{tenants, tools} {
		for _, s := range all {
			s.Workload, s.Model, s.Engines = w, model, max(s.Engines, 8)
			out = append(out, s)
		}
	}
	return out
}
