package replay

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/kvoracle/kvoracle/internal/sim"
)

// pageOf makes the page of a small plan.
func pageOf(t *testing.T) string {
	t.Helper()
	rep, err := Run(t.Context(), small(t))
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	if err := rep.HTML(&page, `My log <&"> 2`); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

// TestHTML reads the page as strict XML: what is not well-formed would not be drawn. Every coordinate must lie in its
// picture, and nothing may be fetched from elsewhere.
func TestHTML(t *testing.T) {
	page := pageOf(t)
	dec := xml.NewDecoder(strings.NewReader(page))
	pictures, lines, bars, rows := 0, 0, 0, 0
	width, height := 0.0, 0.0
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v at line %d", err, strings.Count(page[:dec.InputOffset()], "\n")+1)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attr := map[string]string{}
		for _, a := range e.Attr {
			attr[a.Name.Local] = a.Value
			if n := a.Name.Local; n == "src" || n == "href" || n == "onload" {
				t.Errorf("<%s %s=%q>", e.Name.Local, n, a.Value)
			}
		}
		number := func(s string) float64 {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
				t.Errorf("<%s>: %q is no coordinate", e.Name.Local, s)
			}
			return v
		}
		switch e.Name.Local {
		case "script", "link", "img", "iframe":
			t.Errorf("<%s>", e.Name.Local)
		case "svg":
			pictures++
			box := strings.Fields(attr["viewBox"])
			width, height = number(box[2]), number(box[3])
			if attr["aria-label"] == "" {
				t.Error("a picture without words")
			}
		case "polyline":
			lines++
			for p := range strings.FieldsSeq(attr["points"]) {
				x, y, _ := strings.Cut(p, ",")
				if vx, vy := number(x), number(y); vx < 0 || vx > width || vy < 0 || vy > height {
					t.Errorf("point %s is outside of %v x %v", p, width, height)
				}
			}
		case "rect":
			bars++
			if x, w := number(attr["x"]), number(attr["width"]); w < 0 || x+w > width {
				t.Errorf("a bar from %v of %v in %v", x, w, width)
			}
		case "tr":
			rows++
		}
	}
	// Two cells. Each has the frontier, cached shares and capacities of five policies; the first also the distribution and
	// the requests over time.
	if pictures != 8 || lines != 5*2+5*2 || bars != 2*2*5 || rows != 2*6+5 {
		t.Errorf("%d pictures, %d lines, %d bars, %d rows", pictures, lines, bars, rows)
	}
	if !strings.Contains(page, "My log &lt;&amp;&#34;&gt; 2") {
		t.Error("the title is not escaped")
	}
	if s := strings.ReplaceAll(strings.ReplaceAll(page, "http://www.w3.org/2000/svg", ""), "http://www.w3.org/1999/xhtml", ""); strings.Contains(s, "http") || strings.Contains(s, "NaN") {
		t.Error("the page refers to something, or shows what is no number")
	}
}

func TestAxes(t *testing.T) {
	a := newAxis([]float64{0.03, 2, math.NaN(), 0, -1}, true, false, 0, 100)
	if a.lo != 0.03 || a.hi != 2 || a.at(0.03) != 0 || a.at(2) != 100 || a.at(0) != 0 || a.at(9) != 100 {
		t.Errorf("%+v: %v %v %v", a, a.at(0.03), a.at(2), a.at(0))
	}
	if got := a.ticks(); len(got) != 6 || got[0] != 0.05 || got[5] != 2 {
		t.Errorf("ticks %v", got)
	}
	b := newAxis([]float64{3, 17}, false, true, 100, 0)
	if b.lo != 0 || b.at(0) != 100 || b.at(17) != 0 {
		t.Errorf("%+v", b)
	}
	if got := b.ticks(); len(got) < 3 || len(got) > 9 || got[0] != 0 {
		t.Errorf("ticks %v", got)
	}
	for _, values := range [][]float64{nil, {5}, {math.Inf(1)}} {
		if c := newAxis(values, false, false, 0, 1); !(c.hi > c.lo) || len(c.ticks()) == 0 {
			t.Errorf("%v: %+v, %v", values, c, c.ticks())
		}
	}
}

func TestLinesOfRequests(t *testing.T) {
	rs := []sim.Served{{Arrived: 0, FirstToken: 1, Finished: 10}, {Arrived: 5, FirstToken: 7, Finished: 20}}
	xs, ys := inFlight(rs)
	for i, x := range xs {
		want := 1.0
		if x >= 5 && x < 10 {
			want = 2
		}
		if x == 20 {
			want = 0
		}
		if ys[i] != want {
			t.Errorf("at %v: %v in flight, want %v", x, ys[i], want)
		}
	}
	xs, ys = distribution(rs)
	if xs[0] != 1 || xs[len(xs)-1] != 2 || ys[0] != 0 || ys[len(ys)-1] != 1 {
		t.Errorf("%v %v", xs, ys)
	}
}
