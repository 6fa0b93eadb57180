package telemetry

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// TestPrometheusNames: each row's name is the one that the exporter gives it.
func TestPrometheusNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		t.Fatal(err)
	}
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)).Meter("test")
	want := make(map[string]bool)
	for _, row := range Instruments() {
		want[row.Prometheus()] = true
		switch row.Kind {
		case Counter:
			c, err := meter.Int64Counter(row.Name, metric.WithUnit(row.Unit))
			if err != nil {
				t.Fatal(err)
			}
			c.Add(t.Context(), 1)
		case Histogram:
			h, err := meter.Float64Histogram(row.Name, metric.WithUnit(row.Unit))
			if err != nil {
				t.Fatal(err)
			}
			h.Record(t.Context(), 1)
		case Gauge:
			if _, err := meter.Int64ObservableGauge(row.Name, metric.WithUnit(row.Unit), metric.WithInt64Callback(
				func(_ context.Context, o metric.Int64Observer) error { o.Observe(1); return nil })); err != nil {
				t.Fatal(err)
			}
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !want[f.GetName()] {
			t.Errorf("the exporter shows %s, which no row is called", f.GetName())
		}
		delete(want, f.GetName())
	}
	for name := range want {
		t.Errorf("the exporter does not show %s", name)
	}
}
