package metrics

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
)

// family is one metric that is read here. Names of older releases have entries of their own, later in the list: the first
// that says something wins.
type family struct {
	name   string
	engine kvevents.Engine
	read   func(r *Reading, s series)
}

// series is one line of a family.
type series struct {
	labels map[string]string
	value  float64
}

// ParseText reads Prometheus text, all of it in body. The error is expfmt's: a line that matters is malformed. A body
// without any known metric gives an empty Reading.
func ParseText(body []byte) (Reading, error) {
	r := Reading{Facts: Facts{Source: "/metrics"}}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(relevant(body)))
	if err != nil {
		return Reading{}, fmt.Errorf("metrics: %w", err)
	}
	for _, f := range known() {
		mf := families[f.name]
		if mf == nil {
			continue
		}
		all := make([]series, 0, len(mf.GetMetric()))
		for _, m := range mf.GetMetric() {
			if v, ok := valueOf(m); ok {
				all = append(all, series{labelsOf(m), v})
			}
		}
		// SGLang has a series for each tensor- and pipeline-parallel rank: all but the first of them repeat it.
		slices.SortStableFunc(all, func(a, b series) int { return cmp.Compare(a.inner(), b.inner()) })
		for _, s := range all {
			if f.engine != Unknown {
				r.Facts.Engine = f.engine
			}
			f.read(&r, s)
		}
	}
	return r, nil
}

// relevant keeps the lines about known metrics. Everything else, histograms above all, is most of a body.
func relevant(body []byte) []byte {
	names := make(map[string]bool)
	for _, f := range known() {
		names[f.name] = true
	}
	var out []byte
	for line := range bytes.Lines(body) {
		name := bytes.TrimLeft(line, " \t")
		if rest, ok := bytes.CutPrefix(name, []byte("# TYPE ")); ok {
			name = rest
		}
		if end := bytes.IndexAny(name, "{ \t\r\n"); end >= 0 {
			name = name[:end]
		}
		if names[string(name)] {
			out = append(out, line...)
		}
	}
	if n := len(out); n > 0 && out[n-1] != '\n' {
		out = append(out, '\n') // the parser wants every line ended
	}
	return out
}

// valueOf is the number of a gauge, a counter or an untyped metric.
func valueOf(m *dto.Metric) (float64, bool) {
	switch {
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue(), true
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue(), true
	case m.GetUntyped() != nil:
		return m.GetUntyped().GetValue(), true
	}
	return 0, false
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := make(map[string]string, len(m.GetLabel()))
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

// inner is 0 for the first tensor- and pipeline-parallel rank, which speaks for its data-parallel rank.
func (s series) inner() int {
	sum := 0
	for _, name := range []string{"tp_rank", "pp_rank", "moe_ep_rank"} {
		if n := number(s.labels[name]); n > 0 {
			sum += n
		}
	}
	return sum
}

// rank is the data-parallel rank by the label that has it; 0 without one, -1 if it is no number.
func (s series) rank(label string) int {
	text, ok := s.labels[label]
	if !ok || text == "" {
		return 0
	}
	if n, err := strconv.Atoi(text); err == nil {
		return n
	}
	return -1
}

// number reads a label that holds a count; 0 for anything else ("None" before an engine has measured its memory).
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxCount {
		return 0
	}
	return n
}

// setFact sets a fact that no earlier series has set.
func setFact(to *int, v int) {
	if *to == 0 && v > 0 {
		*to = v
	}
}

// setModel adds the model's name that a series carries.
func (r *Reading) setModel(name string) {
	if name != "" && len(name) <= maxName && !slices.Contains(r.Facts.Models, name) && len(r.Facts.Models) < maxModels {
		r.Facts.Models = append(r.Facts.Models, name)
	}
}

const (
	maxName   = 256 // the oracle's limit for a model's name
	maxModels = 64
)
