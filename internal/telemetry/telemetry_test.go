package telemetry_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"

	"github.com/kvoracle/kvoracle/internal/telemetry"
)

// scrape reads the metrics as a Prometheus server would.
func scrape(t *testing.T, tel *telemetry.Telemetry, accept string) (contentType, body string) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
	req.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	tel.Metrics().ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Header().Get("Content-Type"), w.Body.String()
}

func TestPrometheusShowsEverything(t *testing.T) {
	clearEnv(t)
	tel := start(t, telemetry.Config{Version: "v1.2.3"})
	everything(tel)
	_, body := scrape(t, tel, "text/plain")
	for _, want := range []string{
		`kvoracle_decisions_total{blocks="fresh",booked="true",load="reported",policy="least_time",reason="least_cost"} 1`,
		`kvoracle_decision_duration_seconds_bucket{le="1e-05"} 0`,
		`kvoracle_decision_duration_seconds_bucket{le="0.00015"} 1`,
		`kvoracle_requests_refused_total{reason="MODEL_UNKNOWN",rpc="kvoracle.v1.RouteService/Route"} 1`,
		`kvoracle_matched_tokens_total{tier="device"} 500`,
		`service_name="kvoracle"`, `service_version="v1.2.3"`,
		"go_goroutines ", "process_resident_memory_bytes ",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(body, "otel_scope") {
		t.Error("every series carries otel_scope labels")
	}
}

func TestOpenMetricsForThoseWhoAsk(t *testing.T) {
	clearEnv(t)
	tel := start(t, telemetry.Config{})
	everything(tel)
	contentType, body := scrape(t, tel, "application/openmetrics-text; version=1.0.0")
	if !strings.HasPrefix(contentType, "application/openmetrics-text") || !strings.HasSuffix(body, "# EOF\n") {
		t.Errorf("content type %q, end %q", contentType, body[max(0, len(body)-20):])
	}
}

func TestTwoInOneProcessDoNotMix(t *testing.T) {
	clearEnv(t)
	tracers, meters := otel.GetTracerProvider(), otel.GetMeterProvider()
	a, b := start(t, telemetry.Config{}), start(t, telemetry.Config{})
	everything(a)
	if _, body := scrape(t, b, ""); strings.Contains(body, "kvoracle_decisions_total") {
		t.Error("one server's decisions are in another's metrics")
	}
	if otel.GetTracerProvider() != tracers || otel.GetMeterProvider() != meters {
		t.Error("a global provider was set")
	}
}

func TestEnvironmentThatCannotBeFollowedIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ key, value, want string }{
		"traces exporter":     {"OTEL_TRACES_EXPORTER", "fax", "OTEL_TRACES_EXPORTER"},
		"metrics exporter":    {"OTEL_METRICS_EXPORTER", "fax", "OTEL_METRICS_EXPORTER"},
		"sampler":             {"OTEL_TRACES_SAMPLER", "allways_on", "parentbased_traceidratio"},
		"resource attributes": {"OTEL_RESOURCE_ATTRIBUTES", "novalue", "OTEL_RESOURCE_ATTRIBUTES"},
	} {
		t.Run(name, func(t *testing.T) {
			clearEnv(t)
			t.Setenv(c.key, c.value)
			_, err := telemetry.New(t.Context(), telemetry.Config{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want it to name %s", err, c.want)
			}
		})
	}
	t.Run("ratio", func(t *testing.T) {
		clearEnv(t)
		t.Setenv("OTEL_TRACES_SAMPLER", "traceidratio")
		for _, arg := range []string{"2", "-1", "x", "NaN"} {
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", arg)
			if _, err := telemetry.New(t.Context(), telemetry.Config{}); err == nil || !strings.Contains(err.Error(), arg) {
				t.Errorf("%s: error %v", arg, err)
			}
		}
	})
}

// TestNothingIsExportedUnlessAsked: a fresh server must not call a collector that nobody started.
func TestNothingIsExportedUnlessAsked(t *testing.T) {
	for name, c := range map[string]struct {
		env     map[string]string
		tracing bool
	}{
		"nothing set":       {nil, false},
		"none":              {map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, false},
		"endpoint":          {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, true},
		"traces endpoint":   {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, true},
		"metrics endpoint":  {map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, false},
		"exporter by name":  {map[string]string{"OTEL_TRACES_EXPORTER": "console"}, true},
		"metrics only, too": {map[string]string{"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": " "}, false},
	} {
		t.Run(name, func(t *testing.T) {
			clearEnv(t)
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			tel, err := telemetry.New(t.Context(), telemetry.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if got := tel.TracerProvider() != nil; got != c.tracing {
				t.Errorf("tracing is %v, want %v", got, c.tracing)
			}
			_ = tel.Shutdown(t.Context()) // an unreachable collector is an error here, and not what this test is about
		})
	}
}
