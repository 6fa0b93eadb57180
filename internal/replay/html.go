package replay

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"math"
	"slices"

	"github.com/kvoracle/kvoracle/internal/sim"
)

// HTML writes the report as one page that needs nothing else: a table and pictures for each cell. The page is well-formed
// XML, too.
func (r *Report) HTML(w io.Writer, title string) error {
	p := &page{w: w}
	p.f("<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head><meta charset=\"utf-8\"/>\n<title>%s</title>\n<style>%s</style></head><body>\n",
		html.EscapeString(title), css)
	p.f("<h1>%s</h1>\n", html.EscapeString(title))
	p.f("<p>Every policy on the same requests and the same simulated engines, in virtual time. Engines are a model: ratios carry further than seconds. "+
		"Load 1 is the highest at which the informed greedy rule, which sees the engines' exact state, keeps p90 TTFT within %d times and mean TPOT within %d times of its unloaded values.</p>\n", ttftSlack, tpotSlack)
	for i := range r.Cells {
		r.htmlCell(p, &r.Cells[i])
	}
	p.f("<h2>Who is who</h2>\n<table>\n")
	for _, l := range r.Policies {
		p.f("<tr><th>%s</th><td class=\"text\">%s</td></tr>\n", html.EscapeString(l.Title), html.EscapeString(l.Rule))
	}
	p.f("</table>\n</body></html>\n")
	return p.err
}

const css = `
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em;border-bottom:1px solid #ccc}
table{border-collapse:collapse;margin:1em 0;font-size:.9em}
td,th{padding:.25em .7em;text-align:right;border-bottom:1px solid #e5e5e5}
th:first-child,td:first-child,td.text{text-align:left}
tr.ours{font-weight:bold;background:#eef7f2}
svg{width:100%;height:auto;margin:.6em 0}
svg .title{font:bold 14px system-ui,sans-serif}
svg .tick{font:12px system-ui,sans-serif;fill:#444}
svg .label{font:12px system-ui,sans-serif;fill:#222}
svg .grid{stroke:#e8e8e8;stroke-width:1}
`

func (r *Report) htmlCell(p *page, c *CellReport) {
	p.f("<h2>%s, %s model, %d engines</h2>\n", html.EscapeString(c.Title), html.EscapeString(c.Model), c.Engines)
	unit := fmt.Sprintf("%.3g times the trace's arrivals", c.Scale.Full)
	if c.IsClosed {
		unit = fmt.Sprintf("%.0f users", c.Scale.Full)
	}
	p.f("<p>%d requests; load 1 is %s; promised: p90 TTFT %.3g s, mean TPOT %.3g ms.</p>\n", c.Requests, unit, c.Scale.TTFT90, c.Scale.TPOT*1e3)
	load := slices.MaxFunc(r.Loads, cmp.Compare[float64])
	r.htmlTable(p, c, load)
	for _, svg := range r.pictures(c, load) {
		p.f("%s", svg)
	}
}

func (r *Report) htmlTable(p *page, c *CellReport, load float64) {
	p.f("<table>\n<tr><th>at load %.2g</th><th>TTFT mean, s</th><th>p50</th><th>p90</th><th>p99</th><th>TPOT mean, ms</th><th>cached</th><th>imbalance</th><th>capacity by p90 TTFT</th><th>and by mean TPOT</th></tr>\n", load)
	for _, l := range r.Policies {
		x := c.At(l.Name, load)
		if x == nil {
			continue
		}
		class := ""
		if l.IsOurs {
			class = ` class="ours"`
		}
		capacity, promise := "-", "-"
		if v, ok := c.Capacities[l.Name]; ok {
			capacity, promise = number(v.TTFT, 2), number(v.Promise, 2)
		}
		t := &x.Result.TTFT
		p.f("<tr%s><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%.1f %%</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", class, html.EscapeString(l.Title),
			number(t.Mean, 3), number(t.P50, 3), number(t.P90, 3), number(t.P99, 3), number(x.Result.TPOT.Mean*1e3, 1),
			100*x.Result.CachedShare, number(x.Result.Imbalance, 2), capacity, promise)
	}
	p.f("</table>\n")
}

// pictures are a cell's plots; those of single requests only where they were kept.
func (r *Report) pictures(c *CellReport, load float64) []string {
	frontier := chart{
		title: "Load against time to first token", x: "load", y: "mean TTFT, s", isLogY: true, hint: "mean time to first token of each policy at each load",
	}
	spread := chart{
		title: fmt.Sprintf("Time to first token at load %.2g: share of requests served within", load), x: "TTFT, s", y: "share of requests",
		isLogX: true, hint: "distribution of time to first token by policy",
	}
	over := chart{
		title: fmt.Sprintf("Requests in flight over time at load %.2g", load), x: "virtual seconds", y: "requests", yFrom0: true, hint: "requests in flight by policy",
	}
	var cached, capacity []bar
	for i, l := range r.Policies {
		line := series{name: l.Title, colour: palette(i), isBold: l.IsOurs, isDashed: !l.IsOurs && !l.IsRival}
		f := line
		for _, at := range r.Loads {
			if x := c.At(l.Name, at); x != nil {
				f.xs, f.ys = append(f.xs, at), append(f.ys, x.Result.TTFT.Mean)
			}
		}
		if len(f.xs) > 0 {
			frontier.series = append(frontier.series, f)
		}
		x := c.At(l.Name, load)
		if x == nil {
			continue
		}
		cached = append(cached, bar{l.Title, palette(i), fmt.Sprintf("%.1f %%", 100*x.Result.CachedShare), x.Result.CachedShare})
		if v, ok := c.Capacities[l.Name]; ok {
			capacity = append(capacity, bar{l.Title, palette(i), number(v.TTFT, 2), v.TTFT})
		}
		if len(x.Kept) > 0 {
			s := line
			s.xs, s.ys = distribution(x.Kept)
			spread.series = append(spread.series, s)
			t := line
			t.xs, t.ys = inFlight(x.Kept)
			over.series = append(over.series, t)
		}
	}
	out := []string{frontier.svg()}
	if len(spread.series) > 0 {
		out = append(out, spread.svg(), over.svg())
	}
	out = append(out, barsSVG("Prompt tokens served from the cache", cached))
	if len(capacity) > 0 {
		out = append(out, barsSVG("Capacity: highest load with p90 TTFT as promised", capacity))
	}
	return out
}

// resolution is how many points a line gets.
const resolution = 160

// distribution is the share of requests with at most so long a time to first token.
func distribution(rs []sim.Served) (xs, ys []float64) {
	var ttft []float64
	for _, r := range rs {
		ttft = append(ttft, r.FirstToken-r.Arrived)
	}
	slices.Sort(ttft)
	for i := range resolution + 1 {
		q := float64(i) / resolution
		xs, ys = append(xs, ttft[int(q*float64(len(ttft)-1))]), append(ys, q)
	}
	return xs, ys
}

// inFlight counts requests that have arrived and not finished, at even moments.
func inFlight(rs []sim.Served) (xs, ys []float64) {
	begin, end := math.Inf(1), math.Inf(-1)
	var come, gone []float64
	for _, r := range rs {
		begin, end = min(begin, r.Arrived), max(end, r.Finished)
		come, gone = append(come, r.Arrived), append(gone, r.Finished)
	}
	slices.Sort(come)
	slices.Sort(gone)
	before := func(s []float64, t float64) int {
		n, _ := slices.BinarySearchFunc(s, t, func(a, b float64) int {
			if a <= b {
				return -1
			}
			return 1
		})
		return n
	}
	for i := range resolution + 1 {
		t := begin + (end-begin)*float64(i)/resolution
		xs, ys = append(xs, t), append(ys, float64(before(come, t)-before(gone, t)))
	}
	return xs, ys
}
