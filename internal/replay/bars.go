package replay

import (
	"fmt"
	"io"
	"math"
	"slices"
)

// Bar is one promise and what was measured of it.
type Bar struct {
	Name            string
	Measured, Limit float64
	IsFloor         bool   // at least Limit; otherwise at most
	What            string // in words
	Where           string // the cell that decided, or the number of cells in a median
}

// IsMet reports whether the promise was kept.
func (b *Bar) IsMet() bool {
	if math.IsNaN(b.Measured) {
		return false
	}
	if b.IsFloor {
		return b.Measured >= b.Limit
	}
	return b.Measured <= b.Limit
}

// Verdict is ok or short.
func (b *Bar) Verdict() string {
	if b.IsMet() {
		return "ok"
	}
	return "short"
}

// PrintBars writes a line for each.
func PrintBars(w io.Writer, bars []Bar) error {
	for i := range bars {
		b := &bars[i]
		if _, err := fmt.Fprintf(w, "bar  %-28s %7.3f %6.2f %-5s  (%s; %s)\n", b.Name, b.Measured, b.Limit, b.Verdict(), b.What, b.Where); err != nil {
			return err
		}
	}
	return nil
}

// sample is a number from a cell.
type sample struct {
	value float64
	where string
}

type samples []sample

// worst is the greatest, or the least.
func (s samples) worst(least bool) sample {
	w := sample{math.NaN(), "nothing measured"}
	for _, x := range s {
		if math.IsNaN(w.value) || (x.value > w.value) != least {
			w = x
		}
	}
	return w
}

func (s samples) median() sample {
	if len(s) == 0 {
		return sample{math.NaN(), "nothing measured"}
	}
	v := make([]float64, len(s))
	for i := range s {
		v[i] = s[i].value
	}
	slices.Sort(v)
	m := v[len(v)/2]
	if len(v)%2 == 0 {
		m = (m + v[len(v)/2-1]) / 2
	}
	return sample{m, fmt.Sprintf("of %d cells", len(s))}
}

// ratios divides our number by another's in every cell at the loads.
func (r *Report) ratios(loads []float64, other func(*CellReport, float64) (ours, theirs float64, ok bool)) samples {
	var out samples
	for i := range r.Cells {
		c := &r.Cells[i]
		for _, load := range loads {
			if ours, theirs, ok := other(c, load); ok && theirs > 0 {
				out = append(out, sample{ours / theirs, fmt.Sprintf("%s at %.1f", c.Name, load)})
			}
		}
	}
	return out
}

func meanTTFT(p *Point) float64 { return p.Result.TTFT.Mean }
func p99TTFT(p *Point) float64  { return p.Result.TTFT.P99 }

// against compares us with one policy.
func against(policy string, of func(*Point) float64) func(*CellReport, float64) (float64, float64, bool) {
	return func(c *CellReport, load float64) (float64, float64, bool) {
		a, b := c.At(Ours, load), c.At(policy, load)
		if a == nil || b == nil {
			return 0, 0, false
		}
		return of(a), of(b), true
	}
}

// againstBest compares us with the best rival of the cell.
func (r *Report) againstBest(of func(*Point) float64) func(*CellReport, float64) (float64, float64, bool) {
	return func(c *CellReport, load float64) (float64, float64, bool) {
		a, best := c.At(Ours, load), math.Inf(1)
		for _, l := range r.Policies {
			if p := c.At(l.Name, load); p != nil && l.IsRival {
				best = min(best, of(p))
			}
		}
		if a == nil || math.IsInf(best, 1) {
			return 0, 0, false
		}
		return of(a), best, true
	}
}

// Bars are the promises of the project for this comparison. Cells at loads that were not measured are left out.
func (r *Report) Bars() []Bar {
	high, busy := []float64{0.9}, []float64{0.7, 0.9}
	var out []Bar
	add := func(name string, s sample, limit float64, isFloor bool, what string) {
		out = append(out, Bar{Name: name, Measured: s.value, Limit: limit, IsFloor: isFloor, What: what, Where: s.where})
	}
	add("ttft-informed-worst", r.ratios(r.Loads, against(Informed, meanTTFT)).worst(false), 1.05, false, "mean TTFT, ours / informed greedy, worst cell")
	add("ttft-informed-median-0.9", r.ratios(high, against(Informed, meanTTFT)).median(), 1, false, "the same at load 0.9, median")
	add("ttft-dynamo-worst", r.ratios(r.Loads, against(Dynamo, meanTTFT)).worst(false), 1, false, "mean TTFT, ours / Dynamo, worst cell")
	add("ttft-dynamo-median-0.9", r.ratios(high, against(Dynamo, meanTTFT)).median(), 0.85, false, "the same at load 0.9, median")
	for _, rival := range []struct{ name, title string }{{SGLang, "SGLang"}, {LLMD, "llm-d"}} {
		add("ttft-"+rival.name+"-worst", r.ratios(r.Loads, against(rival.name, meanTTFT)).worst(false), 1, false, "mean TTFT, ours / "+rival.title+", worst cell")
		add("ttft-"+rival.name+"-median-busy", r.ratios(busy, against(rival.name, meanTTFT)).median(), 0.75, false, "the same at loads 0.7 and 0.9, median")
	}
	add("p99-best-rival-worst", r.ratios(r.Loads, r.againstBest(p99TTFT)).worst(false), 1.05, false, "p99 TTFT, ours / the cell's best rival's, worst cell")

	var capacity, promise, wrong, blind, alone samples
	for i := range r.Cells {
		c := &r.Cells[i]
		best := r.bestCapacity(c)
		if v, ok := c.Capacities[Ours]; ok && best.TTFT > 0 {
			capacity = append(capacity, sample{v.TTFT / best.TTFT, c.Name})
		}
		if v, ok := c.Capacities[Ours]; ok && best.Promise > 0 {
			promise = append(promise, sample{v.Promise / best.Promise, c.Name})
		}
		for _, load := range r.Loads {
			where := fmt.Sprintf("%s at %.1f", c.Name, load)
			right := c.Degree(Ours, load)
			for _, name := range []string{PriorHigh, PriorLow} {
				if p := c.Degree(name, load); p != nil && right != nil {
					wrong = append(wrong, sample{meanTTFT(p) / meanTTFT(right), where + ", " + name})
				}
			}
			if p, q := c.Degree(DecisionsOnly, load), c.At(SGLang, load); p != nil && q != nil {
				blind = append(blind, sample{meanTTFT(p) / meanTTFT(q), where})
			}
			if p, q := c.At(Ours, load), c.At(Least, load); p != nil && q != nil && c.Workload == UnsharedName {
				alone = append(alone, sample{meanTTFT(p) / meanTTFT(q), where})
			}
		}
	}
	add("capacity-worst", capacity.worst(true), 1, true, "highest load with p90 TTFT as promised, ours / the cell's best rival's, worst cell")
	add("capacity-median", capacity.median(), 1.1, true, "the same, median")
	add("capacity-tpot-worst", promise.worst(true), 1, true, "highest load with p90 TTFT and mean TPOT as promised, ours / the cell's best rival's, worst cell")
	add("capacity-tpot-median", promise.median(), 1.1, true, "the same, median")
	add("wrong-prior-worst", wrong.worst(false), 1.03, false, "mean TTFT, prefill believed 4 times off / rightly, worst")
	add("decisions-only-worst", blind.worst(false), 1, false, "mean TTFT, knowing own decisions only / SGLang, worst")
	add("unshared-worst", alone.worst(false), 1.02, false, "mean TTFT without shared prefixes, ours / least loaded, worst")
	return out
}

// bestCapacity is that of the cell's best rival, which need not be the same one for both; 0: none was measured.
func (r *Report) bestCapacity(c *CellReport) Capacity {
	var best Capacity
	for _, l := range r.Policies {
		if l.IsRival {
			v := c.Capacities[l.Name]
			best.TTFT, best.Promise = max(best.TTFT, v.TTFT), max(best.Promise, v.Promise)
		}
	}
	return best
}
