package replay

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chart is a picture of lines over two axes, as SVG.
type chart struct {
	title, x, y string
	isLogX      bool
	isLogY      bool
	yFrom0      bool // a linear y axis begins at 0
	series      []series
	hint        string // for those who cannot see it
}

// series is one line.
type series struct {
	name, colour string
	isBold       bool
	isDashed     bool
	xs, ys       []float64
}

// palette tells a dozen lines apart, ours first and the reference second.
func palette(i int) string {
	colours := []string{
		"#0b6e4f", "#666666", "#d1495b", "#edae49", "#00798c", "#8e44ad", "#c0392b", "#2e86c1", "#7d6608", "#ba4a00", "#5d6d7e", "#1abc9c", "#909497",
	}
	return colours[i%len(colours)]
}

const (
	chartHeight = 340
	marginLeft  = 64
	marginRight = 172 // room for the legend
	marginTop   = 34
	marginFoot  = 46
)

// axis maps values to pixels.
type axis struct {
	lo, hi   float64
	from, to float64 // pixels
	isLog    bool
}

func (a *axis) at(v float64) float64 {
	lo, hi := a.lo, a.hi
	if a.isLog {
		v, lo, hi = math.Log(max(v, a.lo)), math.Log(lo), math.Log(hi)
	}
	p := a.from + (v-lo)/(hi-lo)*(a.to-a.from)
	return min(max(p, min(a.from, a.to)), max(a.from, a.to))
}

// newAxis covers values with some room. A logarithmic one needs values above 0.
func newAxis(values []float64, isLog, from0 bool, from, to float64) axis {
	a := axis{lo: math.Inf(1), hi: math.Inf(-1), from: from, to: to, isLog: isLog}
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) || isLog && v <= 0 {
			continue
		}
		a.lo, a.hi = min(a.lo, v), max(a.hi, v)
	}
	if math.IsInf(a.lo, 1) {
		a.lo, a.hi = 1, 2
	}
	if from0 && !isLog {
		a.lo = min(a.lo, 0)
	}
	if a.hi <= a.lo {
		a.hi = a.lo + max(math.Abs(a.lo), 1)*0.1
	}
	return a
}

// ticks are round values within the axis.
func (a *axis) ticks() []float64 {
	var out []float64
	if a.isLog {
		steps := []float64{1, 2, 5}
		if a.hi < 10*a.lo {
			steps = []float64{1, 1.5, 2, 3, 4, 5, 7}
		}
		for e := math.Floor(math.Log10(a.lo)); e <= math.Ceil(math.Log10(a.hi)); e++ {
			for _, m := range steps {
				if v := m * math.Pow(10, e); v >= a.lo*0.999 && v <= a.hi*1.001 {
					out = append(out, v)
				}
			}
		}
		return out
	}
	step := math.Pow(10, math.Floor(math.Log10((a.hi-a.lo)/4)))
	for _, m := range []float64{5, 2} {
		if (a.hi-a.lo)/(step*m) >= 3 {
			step *= m
			break
		}
	}
	for v := math.Ceil(a.lo/step) * step; v <= a.hi+step*1e-9; v += step {
		out = append(out, v)
	}
	return out
}

// plain writes a number with as many digits as it needs.
func plain(v float64) string {
	if math.Abs(v) < 1e-12 {
		return "0"
	}
	return fmt.Sprintf("%.4g", v)
}

// svg draws the chart.
func (c *chart) svg() string {
	const width = 720.0
	var xs, ys []float64
	for _, s := range c.series {
		xs, ys = append(xs, s.xs...), append(ys, s.ys...)
	}
	x := newAxis(xs, c.isLogX, false, marginLeft, width-marginRight)
	y := newAxis(ys, c.isLogY, c.yFrom0, chartHeight-marginFoot, marginTop)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" role="img" aria-label="%s">`+"\n", width, chartHeight, html.EscapeString(c.title+": "+c.hint))
	fmt.Fprintf(&b, `<text x="%d" y="18" class="title">%s</text>`+"\n", marginLeft, html.EscapeString(c.title))
	for _, v := range y.ticks() {
		fmt.Fprintf(&b, `<line x1="%d" x2="%.1f" y1="%.1f" y2="%.1f" class="grid"/><text x="%d" y="%.1f" class="tick" text-anchor="end">%s</text>`+"\n",
			marginLeft, width-marginRight, y.at(v), y.at(v), marginLeft-6, y.at(v)+4, plain(v))
	}
	for _, v := range x.ticks() {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" class="grid"/><text x="%.1f" y="%d" class="tick" text-anchor="middle">%s</text>`+"\n",
			x.at(v), x.at(v), marginTop, chartHeight-marginFoot, x.at(v), chartHeight-marginFoot+16, plain(v))
	}
	fmt.Fprintf(&b, `<text x="%.1f" y="%d" class="label" text-anchor="middle">%s</text>`+"\n", (marginLeft+width-marginRight)/2, chartHeight-8, html.EscapeString(c.x))
	fmt.Fprintf(&b, `<text x="14" y="%.1f" class="label" text-anchor="middle" transform="rotate(-90 14 %.1f)">%s</text>`+"\n",
		float64(chartHeight)/2, float64(chartHeight)/2, html.EscapeString(c.y))
	for i, s := range c.series {
		style := "1.4"
		if s.isBold {
			style = "3"
		}
		dash := ""
		if s.isDashed {
			dash = ` stroke-dasharray="5 4"`
		}
		var points []string
		for k := range s.xs {
			if v := s.ys[k]; !math.IsNaN(v) && !math.IsInf(v, 0) {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x.at(s.xs[k]), y.at(v)))
			}
		}
		if len(points) > 0 {
			fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="%s"%s points="%s"><title>%s</title></polyline>`+"\n",
				s.colour, style, dash, strings.Join(points, " "), html.EscapeString(s.name))
		}
		at := float64(marginTop + 8 + i*19)
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="%s" stroke-width="%s"%s/><text x="%.1f" y="%.1f" class="tick">%s</text>`+"\n",
			width-marginRight+12, width-marginRight+34, at, at, s.colour, style, dash, width-marginRight+40, at+4, html.EscapeString(s.name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// bar is one of a list of horizontal bars.
type bar struct {
	name, colour, label string
	value               float64
}

// barsSVG draws horizontal bars, one below the other.
func barsSVG(title string, list []bar) string {
	const width, left, right, step = 720, 172, 90, 24
	height := marginTop + step*len(list) + 12
	most := 0.0
	for _, x := range list {
		most = max(most, x.value)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n", width, height, html.EscapeString(title))
	fmt.Fprintf(&b, `<text x="%d" y="18" class="title">%s</text>`+"\n", left, html.EscapeString(title))
	for i, x := range list {
		long := 0.0
		if most > 0 && x.value > 0 {
			long = x.value / most * (width - left - right)
		}
		at := marginTop + i*step
		fmt.Fprintf(&b, `<text x="%d" y="%d" class="tick" text-anchor="end">%s</text><rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d" class="tick">%s</text>`+"\n",
			left-8, at+14, html.EscapeString(x.name), left, at+3, long, step-8, x.colour, left+long+6, at+14, html.EscapeString(x.label))
	}
	b.WriteString("</svg>\n")
	return b.String()
}
