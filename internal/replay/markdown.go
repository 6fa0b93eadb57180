package replay

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// page collects what is written and the first error.
type page struct {
	w   io.Writer
	err error
}

func (p *page) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// row writes a line of a table.
func (p *page) row(cells ...string) { p.f("| %s |\n", strings.Join(cells, " | ")) }

// head writes the first two lines of a table; all columns but the first are numbers.
func (p *page) head(cells ...string) {
	p.row(cells...)
	p.f("|---|%s\n", strings.Repeat("---:|", len(cells)-1))
}

// Markdown writes the page of a report. The command is the one that made it; isPart says that it left out some of what
// the page is meant to show.
func (r *Report) Markdown(w io.Writer, command string, isPart bool) error {
	p := &page{w: w}
	p.f("# Results: every policy on the same requests\n\n")
	p.f("<!-- Written by `%s`; do not edit. -->\n\n", command)
	p.f("Written by `%s` out of the traces in [`bench/traces`](../bench/traces/README.md) and six made-up workloads. All\n"+
		"policies serve the same requests on the same simulated engines (`internal/sim` says how, and what is left out); the numbers are\n"+
		"the same on every run. Engines are a model: ratios carry further than seconds. kvoracle is the real oracle, in virtual time.\n\n", command)
	if isPart {
		p.f("**This is a part of the comparison only.** `make replay` measures all of it, and writes this page anew.\n\n")
	}
	p.f("**Load 1** is the highest at which the informed greedy rule, which sees the engines' exact state, keeps p90 TTFT within %d times and\n"+
		"mean TPOT within %d times of its unloaded values. A *cell* is a workload, an engine class (8B on one H100, 70B on four) and a number of\n"+
		"engines. The first %.0f %% of each run warm the caches and are not counted.\n\n", ttftSlack, tpotSlack, warmup*100)
	r.writeBars(p)
	r.writeSummary(p)
	r.writeWorkloads(p)
	r.writeLosses(p)
	r.writeCapacity(p)
	r.writeTails(p)
	r.writeDegrees(p)
	r.writeScenarios(p)
	r.writeRules(p)
	return p.err
}

func (r *Report) writeBars(p *page) {
	p.f("## What is promised\n\n")
	p.row("bar", "measured", "limit", "", "what", "where")
	p.f("|---|---:|---:|---|---|---|\n")
	for _, b := range r.Bars() {
		verdict := b.Verdict()
		switch {
		case math.IsNaN(b.Measured):
			verdict = "not measured"
		case !b.IsMet():
			verdict = "**short**"
		}
		limit := "at most"
		if b.IsFloor {
			limit = "at least"
		}
		p.row(b.Name, number(b.Measured, 3), fmt.Sprintf("%s %.2f", limit, b.Limit), verdict, b.What, b.Where)
	}
	p.f("\n")
}

// ratio is a policy's mean TTFT in units of the reference's.
func (c *CellReport) ratio(policy string, load float64) float64 {
	a, b := c.At(policy, load), c.At(Informed, load)
	if a == nil || b == nil || b.Result.TTFT.Mean == 0 {
		return math.NaN()
	}
	return a.Result.TTFT.Mean / b.Result.TTFT.Mean
}

// spread is "median (worst)".
func (r *Report) spread(policy string, load float64, workload string) string {
	var s samples
	for i := range r.Cells {
		if c := &r.Cells[i]; workload == "" || c.Workload == workload {
			if v := c.ratio(policy, load); !math.IsNaN(v) {
				s = append(s, sample{v, c.Name})
			}
		}
	}
	if len(s) == 1 {
		return number(s[0].value, 2)
	}
	return fmt.Sprintf("%s (%s)", number(s.median().value, 2), number(s.worst(false).value, 2))
}

func (r *Report) writeSummary(p *page) {
	p.f("## Mean time to first token, against the informed greedy rule\n\nMedian over all %d cells, the worst in brackets.\n\n", len(r.Cells))
	head := []string{"policy"}
	for _, l := range r.Loads {
		head = append(head, fmt.Sprintf("load %.1f", l))
	}
	p.head(head...)
	for _, l := range r.Policies {
		cells := []string{title(l)}
		for _, load := range r.Loads {
			cells = append(cells, r.spread(l.Name, load, ""))
		}
		p.row(cells...)
	}
	p.f("\nInformed greedy also sees how far the iteration under way is on each engine, which nobody tells a router. Where prompts are short\n" +
		"that is what it is better by: with it hidden, the two are within 2 %% of each other on long answers and where nothing is shared\n" +
		"(`go test -v -run IterationUnderWay ./internal/sim`).\n\n")
}

func title(l Label) string {
	if l.IsOurs {
		return "**" + l.Title + "**"
	}
	return l.Title
}

func (r *Report) writeWorkloads(p *page) {
	p.f("The same by workload, at loads %s.\n\n", joined(r.Loads))
	head := []string{"policy"}
	var names []string
	for i := range r.Cells {
		if c := &r.Cells[i]; !slices.Contains(names, c.Workload) {
			names, head = append(names, c.Workload), append(head, c.Title)
		}
	}
	p.head(head...)
	for _, l := range r.Policies {
		cells := []string{title(l)}
		for _, n := range names {
			var at []string
			for _, load := range r.Loads {
				at = append(at, r.spread(l.Name, load, n))
			}
			cells = append(cells, strings.Join(at, " / "))
		}
		p.row(cells...)
	}
	p.f("\n")
}

func joined(loads []float64) string {
	var s []string
	for _, l := range loads {
		s = append(s, fmt.Sprintf("%.1f", l))
	}
	return strings.Join(s, " / ")
}

// writeLosses lists every cell that somebody else wins.
func (r *Report) writeLosses(p *page) {
	p.f("## Where kvoracle is not the best\n\nEvery cell and load in which a rival's mean TTFT is lower than ours by more than half a percent.\n\n")
	p.head("cell", "load", "ours, s", "rival's, s", "ours / rival's", "rival")
	lost, all := 0, 0
	for i := range r.Cells {
		c := &r.Cells[i]
		for _, load := range r.Loads {
			ours := c.At(Ours, load)
			if ours == nil {
				continue
			}
			all++
			var best *Point
			name := ""
			for _, l := range r.Policies {
				if x := c.At(l.Name, load); x != nil && l.IsRival && (best == nil || meanTTFT(x) < meanTTFT(best)) {
					best, name = x, l.Title
				}
			}
			if best == nil || meanTTFT(ours) <= 1.005*meanTTFT(best) {
				continue
			}
			lost++
			p.row(c.Name, fmt.Sprintf("%.1f", load), number(meanTTFT(ours), 3), number(meanTTFT(best), 3),
				number(meanTTFT(ours)/meanTTFT(best), 3), name)
		}
	}
	p.f("\n%d of %d.\n\n", lost, all)
}

func (r *Report) writeCapacity(p *page) {
	if !slices.ContainsFunc(r.Cells, func(c CellReport) bool { return len(c.Capacities) > 0 }) {
		return
	}
	p.f("## Capacity: the highest load that keeps p90 TTFT\n\nIn units of load 1; the best rival in bold. Loads are %.0f %% apart and the same for\n"+
		"all. Near the end a promise is kept at one and not at the next as requests happen to fall together; each load at which it is kept is\n"+
		"a step. Where users wait for answers it is a search to the user. How long output tokens take is not looked at.\n\n", (climbStep-1)*100)
	r.writeCapacities(p, func(v Capacity) float64 { return v.TTFT })
	r.writeShort(p)
	p.f("\nThe same, and mean TPOT as promised, which is the stricter promise that load 1 is made of:\n\n")
	r.writeCapacities(p, func(v Capacity) float64 { return v.Promise })
	p.f("\nHere what ends kvoracle's is mean TPOT nearly everywhere, with p90 TTFT at a fifth to a half of its promise: prefills go where first\n" +
		"tokens come soonest, which is evenly, and each stalls what decodes there. Rules that let prompts queue at few engines stall fewer\n" +
		"sequences. A price on that moves the end and costs time to first token; nobody says what one is worth in terms of the other, so\n" +
		"there is none (`go test -v -run CapacityEndsByStalls ./internal/replay` shows both).\n\n")
}

// whyShort is what is known of a cell where a rival keeps p90 TTFT up to a higher load.
func whyShort(cell string) string {
	switch cell {
	case "mooncake_synthetic/8b/8":
		return "not settled by one trace: from 4 % below the end on it is kept at one load and broken at the next, by the best rivals, too"
	case "retrieval/8b/8":
		return "within a step: all of the best end within 1 %, where every engine computes all the time"
	case "long_chat/8b/8":
		return "memory ends it, with other seeds, too: kvoracle has shared heads on more engines, finds some 3 % fewer prompt tokens in caches than SMG " +
			"with events and has less room to decode"
	case "long_agents/8b/8":
		return "memory ends it: once caches give up conversations that go on, computing them again keeps it so. At one load this happens, at the " +
			"next it does not, and sooner with kvoracle, as with informed greedy, than with llm-d"
	default:
		return "not known"
	}
}

// writeShort lists the cells where a rival's capacity by p90 TTFT is higher.
func (r *Report) writeShort(p *page) {
	n := 0
	for i := range r.Cells {
		c := &r.Cells[i]
		ours, best := c.Capacities[Ours].TTFT, r.bestCapacity(c).TTFT
		if ours >= best {
			continue
		}
		if n++; n == 1 {
			p.f("\nWhere a rival's is higher:\n\n")
			p.head("cell", "ours / best rival's", "why")
		}
		p.row(c.Name, number(ours/best, 3), whyShort(c.Name))
	}
}

func (r *Report) writeCapacities(p *page, of func(Capacity) float64) {
	head := []string{"cell"}
	for _, l := range r.Policies {
		head = append(head, l.Title)
	}
	p.head(head...)
	for i := range r.Cells {
		c := &r.Cells[i]
		best := of(r.bestCapacity(c))
		cells := []string{c.Name}
		for _, l := range r.Policies {
			v, ok := c.Capacities[l.Name]
			switch {
			case !ok:
				cells = append(cells, "")
			case l.IsRival && of(v) == best:
				cells = append(cells, "**"+number(of(v), 2)+"**")
			default:
				cells = append(cells, number(of(v), 2))
			}
		}
		p.row(cells...)
	}
}

func (r *Report) writeTails(p *page) {
	load := slices.MaxFunc(r.Loads, cmp.Compare[float64])
	p.f("## Tails and cache at load %.1f\n\np99 TTFT in seconds, and the share of prompt tokens that came from a cache.\n\n", load)
	head := []string{"cell"}
	for _, l := range r.Policies {
		head = append(head, l.Title)
	}
	p.head(head...)
	for i := range r.Cells {
		c := &r.Cells[i]
		cells := []string{c.Name}
		for _, l := range r.Policies {
			if x := c.At(l.Name, load); x != nil {
				cells = append(cells, fmt.Sprintf("%s, %.0f %%", number(x.Result.TTFT.P99, 2), 100*x.Result.CachedShare))
			} else {
				cells = append(cells, "")
			}
		}
		p.row(cells...)
	}
	p.f("\n")
}

func (r *Report) writeDegrees(p *page) {
	if len(r.Degrees) == 0 {
		return
	}
	p.f("## What each piece of information is worth\n\nMean TTFT in units of kvoracle's own with everything, each the mean of\n" +
		"five runs at loads up to 4 %% lower and higher, or of three orders of sessions: a single one of long agents is 0.7 to 1.3 times another.\n\n")
	var cells []*CellReport
	head := []string{"told"}
	for i := range r.Cells {
		if c := &r.Cells[i]; len(c.Degrees) > 0 {
			cells, head = append(cells, c), append(head, c.Title)
		}
	}
	p.head(head...)
	for _, l := range r.Degrees {
		row := []string{fmt.Sprintf("%s: %s", l.Title, l.Rule)}
		for _, c := range cells {
			var at []string
			for _, load := range r.Loads {
				if a, b := c.Degree(l.Name, load), c.Degree(Ours, load); a != nil && b != nil {
					at = append(at, number(meanTTFT(a)/meanTTFT(b), 2))
				}
			}
			row = append(row, strings.Join(at, " / "))
		}
		p.row(row...)
	}
	p.f("\nNone of this is a setting: it follows from who reports. Block events are a worker's `ReportBlocks` stream, gauges its `ReportLoad`\n" +
		"stream; first tokens and ends are the gateway's `ReportProgress`. Of a worker that reports no blocks the cache is guessed from the\n" +
		"prompts it was sent. A gateway tells nothing until it is heard to: its prefills and its requests then end by the clock, when they are\n" +
		"predicted to (`internal/load/presume.go`).\n\n")
}

func (r *Report) writeRules(p *page) {
	p.f("## Who is who\n\nRules as published, with their default parameters; each is held to it by a transcript in `internal/policy/testdata/published.txt`.\n" +
		"Rivals know what they use at once and without error. Random ones are the mean of several seeds, and so are all where users wait\n" +
		"for answers, since the order of their sessions is drawn; capacities are of one.\n" +
		"SGLang's is the rule of SGLang's router and of SMG for years, most against least loaded; the new one is SMG's of August 2026, the holder\n" +
		"against the mean. Where that takes none of the holders its newest versions go by a wait they expect, here it is by requests.\n\n")
	p.row("policy", "rule")
	p.f("|---|---|\n")
	for _, l := range r.Policies {
		p.row(title(l), l.Rule)
	}
	p.f("\n")
	p.row("cell", "requests", "load 1", "promised p90 TTFT, s", "promised mean TPOT, ms", "requests measured at the highest load")
	p.f("|---|---:|---:|---:|---:|---:|\n")
	for i := range r.Cells {
		c := &r.Cells[i]
		full := fmt.Sprintf("%.3g times the trace's speed", c.Scale.Full)
		if c.IsClosed {
			full = fmt.Sprintf("%.0f users", c.Scale.Full)
		}
		n := 0
		if x := c.At(Informed, r.Loads[len(r.Loads)-1]); x != nil {
			n = x.Result.N
		}
		p.row(c.Name, fmt.Sprint(c.Requests), full, number(c.Scale.TTFT90, 3), number(c.Scale.TPOT*1e3, 1), fmt.Sprint(n))
	}
}

// number writes a number, and a dash for one that is none.
func number(v float64, digits int) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "-"
	}
	if v >= 100 {
		digits = 0
	}
	return fmt.Sprintf("%.*f", digits, v)
}
