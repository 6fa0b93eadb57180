package replay

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvoracle/kvoracle/internal/sim"
)

// UnsharedName is the workload without shared prefixes.
const UnsharedName = "unshared"

// Suite is the published comparison, from the traces in a folder. A quick one takes a few hundred requests of each and
// one fleet: it checks that everything works, and its numbers mean nothing.
func Suite(dir string, isQuick bool) (Plan, error) {
	plan := Plan{
		Loads: []float64{0.5, 0.7, 0.9}, Contestants: Contestants(), Degrees: Degrees(), DegreeLoads: []float64{0.9},
		Near: []float64{0.96, 0.98, 1, 1.02, 1.04},
		// Those that look at nothing, or at two of many, are nobody's best rival.
		Capacity: func(c *Contestant) bool {
			return c.Name != "random" && c.Name != "round_robin" && c.Name != "power_of_two"
		},
		Seeds: 3, Keep: 0.9,
		WithDegrees: func(c *Cell) bool { return c.Engines == 8 && c.Model.Name == sim.Model8B().Name },
	}
	classes, fleets, generated := []sim.Model{sim.Model8B(), sim.Model70B()}, []int{8, 32}, 6000
	if isQuick {
		plan.Loads, plan.Seeds = []float64{0.7, 0.9}, 1
		classes, fleets, generated = classes[:1], fleets[:1], 300
		all := plan.WithDegrees
		plan.WithDegrees = func(c *Cell) bool { return all(c) && c.Workload.Name == UnsharedName }
	}
	var tools *Workload
	for _, f := range []struct {
		name, title string
		read        sim.ReadOptions
		workload    Workload
	}{
		{"mooncake_conversation", "Mooncake conversation", sim.ReadOptions{First: 5000, Spread: 3}, Workload{}},
		{"mooncake_synthetic", "Mooncake synthetic", sim.ReadOptions{}, Workload{}},
		{"gen_toolagent", "tools and agents", sim.ReadOptions{First: 6000}, Workload{}},
		{"lmcache_agents", "LMCache agents", sim.ReadOptions{BlockSize: 16}, Workload{BlockSize: 64, IsClosed: true}},
	} {
		if isQuick {
			f.workload.Horizon = 60
			if !f.workload.IsClosed {
				f.read.First = 300
			}
		}
		tr, err := ReadFile(filepath.Join(dir, f.name+".jsonl.gz"), f.read)
		if err != nil {
			return plan, err
		}
		w := f.workload
		w.Name, w.Title, w.Trace = f.name, f.title, tr
		if w.Name == "gen_toolagent" {
			tools = &w
		}
		for _, m := range classes {
			for _, n := range fleets {
				if isQuick && w.IsClosed {
					n = 2
				}
				plan.Cells = append(plan.Cells, Cell{Workload: &w, Model: m, Engines: n})
			}
		}
	}
	for _, g := range []Workload{
		{Name: UnsharedName, Title: "nothing shared", Trace: sim.Unshared(generated, 1)},
		{Name: "hot_head", Title: "one hot head", Trace: sim.HotHead(generated, 1)},
		{Name: "multi_tenant", Title: "many tenants", Trace: sim.MultiTenant(generated, 1)},
		{Name: "long_chat", Title: "long answers", Trace: sim.LongChat(generated, 1)},
		{Name: "retrieval", Title: "documents in any order", Trace: sim.Retrieval(generated, 1)},
		{Name: "long_agents", Title: "long agents", Trace: sim.LongAgents(generated/2, 1)},
	} {
		plan.Cells = append(plan.Cells, Cell{Workload: &g, Model: classes[0], Engines: 8})
	}
	if !isQuick {
		plan.Scenarios = Scenarios(&Workload{Name: "multi_tenant", Title: "many tenants", Trace: sim.MultiTenant(20_000, 2)}, tools)
	}
	return plan, nil
}

// ReadFile reads a trace.
func ReadFile(path string, o sim.ReadOptions) (*sim.Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tr, err := sim.ReadTrace(f, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return tr, nil
}
