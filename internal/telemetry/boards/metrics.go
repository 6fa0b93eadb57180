package boards

import (
	"regexp"
	"strings"

	"github.com/kvoracle/kvoracle/internal/telemetry"
)

// mention is one metric in an expression.
type mention struct {
	instrument string // the Prometheus name of the instrument; empty: it is none's
	series     string // as it is written
	labels     []string
}

// metricsOf finds the metrics of ours in an expression: the words that begin with kvoracle_, with the labels in the braces
// behind them.
func metricsOf(expr string) []mention {
	word := regexp.MustCompile(`\b(kvoracle_\w+)(\{[^}]*\})?`)
	label := regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	names := make(map[string]bool)
	for _, i := range telemetry.Instruments() {
		names[i.Prometheus()] = i.Kind == telemetry.Histogram
	}
	var out []mention
	for _, m := range word.FindAllStringSubmatch(expr, -1) {
		x := mention{series: m[1]}
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			x.labels = append(x.labels, l[1])
		}
		family := m[1]
		for _, end := range []string{"_bucket", "_sum", "_count"} {
			if f, ok := strings.CutSuffix(m[1], end); ok && names[f] {
				family = f
			}
		}
		isHistogram, ok := names[family]
		if ok && isHistogram == (family != m[1]) { // a histogram has no series of its own name
			x.instrument = family
		}
		out = append(out, x)
	}
	return out
}
