package telemetry_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kvoracle/kvoracle/internal/telemetry"
)

// clearEnv makes a test independent of the machine it runs on.
func clearEnv(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_TRACES_SAMPLER",
		"OTEL_TRACES_SAMPLER_ARG", "OTEL_PROPAGATORS", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES",
	} {
		t.Setenv(name, "")
	}
}

// start makes a Telemetry that ends with the test.
func start(t testing.TB, cfg telemetry.Config) *telemetry.Telemetry {
	t.Helper()
	tel, err := telemetry.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tel.Shutdown(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return tel
}

// metered makes one whose metrics can be read.
func metered(t testing.TB) (*telemetry.Telemetry, *metric.ManualReader) {
	t.Helper()
	r := metric.NewManualReader()
	return start(t, telemetry.Config{Readers: []metric.Reader{r}}), r
}

// traced makes one whose spans can be read.
func traced(t *testing.T) (*telemetry.Telemetry, *tracetest.SpanRecorder) {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	return start(t, telemetry.Config{SpanProcessors: []trace.SpanProcessor{r}}), r
}

// point is one series: what was added up, or how often something was recorded and the sum of it.
type point struct {
	value float64
	count uint64
}

// collect reads all series as "name{key=value,...}".
func collect(t testing.TB, r *metric.ManualReader) map[string]point {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]point)
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					out[m.Name+braces(p.Attributes)] = point{value: float64(p.Value)}
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					out[m.Name+braces(p.Attributes)] = point{value: float64(p.Value)}
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					out[m.Name+braces(p.Attributes)] = point{value: p.Sum, count: p.Count}
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					out[m.Name+braces(p.Attributes)] = point{value: float64(p.Sum), count: p.Count}
				}
			default:
				t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
	return out
}

// braces writes attributes ordered by key; none is nothing.
func braces(set attribute.Set) string {
	if set.Len() == 0 {
		return ""
	}
	var parts []string
	for _, kv := range set.ToSlice() {
		parts = append(parts, string(kv.Key)+"="+kv.Value.String())
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// values drops the counts.
func values(ps map[string]point) map[string]float64 {
	out := make(map[string]float64, len(ps))
	for name, p := range ps {
		out[name] = p.value
	}
	return out
}

// keysOf are the attribute keys of a series' name, ordered.
func keysOf(series string) []string {
	_, inner, ok := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	if !ok {
		return nil
	}
	keys := make(map[string]bool)
	for part := range strings.SplitSeq(inner, ",") {
		k, _, _ := strings.Cut(part, "=")
		keys[k] = true
	}
	return slices.Sorted(maps.Keys(keys))
}
