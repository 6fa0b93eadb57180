package replay

import (
	"fmt"
	"math"
)

// writeScenarios shows what every policy made of each scenario, and where a rival was better.
func (r *Report) writeScenarios(p *page) {
	if len(r.Scenarios) == 0 {
		return
	}
	p.f("## Fleets that change, and traffic that does\n\n" +
		"Mean and p99 TTFT in seconds of the requests that arrive in the time named, best rival in bold. Load is in units of load 1 of the fleet\n" +
		"as it is before. Of engines that come and go everybody hears at once; requests of one that dies are sent again. But one whose death\n" +
		"becomes known later looks idle until then: a request that is sent there fails after a second, and its gateway asks again with that\n" +
		"engine in denied_workers. kvoracle finds out by its lease, the others are told at that moment, and informed greedy sees it at once.\n" +
		"How fast an engine is nobody is told but informed greedy, which sees it: kvoracle learns it from first tokens, llm-d sees queues\n" +
		"grow, the others count requests, tokens, blocks or seconds as if all engines were alike. *Share*: what the engines in question served\n" +
		"of these requests with kvoracle, 1 being as much as others.\n")
	cell := ""
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		if name := s.Workload; name != cell {
			cell = name
			p.f("\n### On %s\n\n", name)
			head := []string{"what", "load", "share"}
			for _, l := range r.Policies {
				if s.At(l.Name) != nil {
					head = append(head, l.Title)
				}
			}
			p.head(head...)
		}
		row := []string{s.Title, fmt.Sprintf("%.1f", s.Load), "-"}
		if len(s.Touched) > 0 {
			row[2] = number(s.Shares[Ours], 2)
		}
		mean, tail := s.best(r.Policies)
		for _, l := range r.Policies {
			x := s.At(l.Name)
			if x == nil {
				continue
			}
			m, t := number(meanTTFT(x), 3), number(x.Result.TTFT.P99, 2)
			if mean != nil && x.Policy == mean.Policy {
				m = "**" + m + "**"
			}
			if tail != nil && x.Policy == tail.Policy {
				t = "**" + t + "**"
			}
			row = append(row, m+", "+t)
		}
		p.row(row...)
	}
	p.f("\n")
	lost := 0
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		ours := s.At(Ours)
		mean, tail := s.best(r.Policies)
		if ours == nil || mean == nil {
			continue
		}
		m, t := meanTTFT(ours)/meanTTFT(mean), ours.Result.TTFT.P99/tail.Result.TTFT.P99
		if m <= 1.005 && t <= 1.05 {
			continue
		}
		if lost++; lost == 1 {
			p.f("Where a rival's mean is lower by more than half a percent, or its p99 by more than 5:\n\n")
			p.head("what", "ours / best rival's mean", "its rule", "ours / best rival's p99", "its rule")
		}
		p.row(s.Workload+", "+s.Title, number(m, 3), r.titleOf(mean.Policy), number(t, 3), r.titleOf(tail.Policy))
	}
	p.f("\n%d of %d.", lost, len(r.Scenarios))
	if lost > 0 {
		p.f(" On many tenants a burst of one new prefix and the death of an engine have in common that many requests at once lack a\n" +
			"prefix. Each that waits for a holder adds to what one more copy would have saved, and within half a second kvoracle has copies on\n" +
			"most engines; whoever comes there meanwhile pays for the computing of them. llm-d precise keeps the burst on three. On tools and\n" +
			"agents a minute has some 700 requests: p99 is the seventh worst of them, and moves as far with changes that mean nothing.")
	}
	p.f("\n\n")
}

// best are the points of the rivals with the lowest mean and the lowest p99; nil: there are none.
func (r *ScenarioReport) best(policies []Label) (mean, tail *Point) {
	least, lowest := math.Inf(1), math.Inf(1)
	for _, l := range policies {
		x := r.At(l.Name)
		if x == nil || !l.IsRival {
			continue
		}
		if v := meanTTFT(x); v < least {
			least, mean = v, x
		}
		if v := x.Result.TTFT.P99; v < lowest {
			lowest, tail = v, x
		}
	}
	return mean, tail
}

func (r *Report) titleOf(policy string) string {
	for _, l := range r.Policies {
		if l.Name == policy {
			return l.Title
		}
	}
	return policy
}
