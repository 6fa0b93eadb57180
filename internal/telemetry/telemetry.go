package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/propagators/autoprop"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// scope names this package to OpenTelemetry.
const scope = "github.com/kvoracle/kvoracle/internal/telemetry"

// Config is what the environment does not say. The zero value runs.
type Config struct {
	// Version of the service, shown as service.version.
	Version string
	// Readers collect metrics besides Prometheus and the exporter of the environment.
	Readers []sdkmetric.Reader
	// SpanProcessors get spans besides the exporter of the environment. With any of them there is tracing.
	SpanProcessors []sdktrace.SpanProcessor
}

// Telemetry is the metrics and spans of one server. All methods may be called concurrently.
type Telemetry struct {
	meters      *sdkmetric.MeterProvider
	meter       metric.Meter
	tracers     *sdktrace.TracerProvider // nil: no tracing
	tracer      trace.Tracer             // nil: no tracing
	propagator  propagation.TextMapPropagator
	registry    *prometheus.Registry
	observer    *observer
	gauges      gauges
	replication replication
	noSpan      trace.Span
	described   sync.Pool // of *[]attribute.KeyValue
	// onlySampled says that without a sampled parent no span can come out, so that asking the sampler can be skipped.
	onlySampled bool
}

// New reads the environment and builds the pipelines. A variable that it cannot follow is an error: a server that
// silently exports nothing, or everything, is worse than one that does not start. End it with Shutdown.
func New(ctx context.Context, cfg Config) (*Telemetry, error) {
	t := &Telemetry{
		propagator: autoprop.NewTextMapPropagator(),
		registry:   prometheus.NewRegistry(),
		noSpan:     noop.Span{},
	}
	if err := t.build(ctx, &cfg); err != nil {
		return nil, errors.Join(err, t.Shutdown(ctx))
	}
	return t, nil
}

func (t *Telemetry) build(ctx context.Context, cfg *Config) error {
	res, err := describeService(ctx, cfg.Version)
	if err != nil {
		return err
	}
	if err := t.registry.Register(collectors.NewGoCollector()); err != nil {
		return err
	}
	if err := t.registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})); err != nil {
		return err
	}
	prom, err := otelprom.New(otelprom.WithRegisterer(t.registry), otelprom.WithoutScopeInfo())
	if err != nil {
		return fmt.Errorf("telemetry: prometheus exporter: %w", err)
	}
	opts := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithReader(prom)}
	for _, r := range cfg.Readers {
		opts = append(opts, sdkmetric.WithReader(r))
	}
	r, err := metricReader(ctx)
	if err != nil {
		return err
	}
	if r != nil {
		opts = append(opts, sdkmetric.WithReader(r))
	}
	t.meters = sdkmetric.NewMeterProvider(opts...)
	t.meter = t.meters.Meter(scope, metric.WithInstrumentationVersion(cfg.Version))
	b := newBuilder(t.meter)
	t.observer = newObserver(newInstruments(b))
	t.gauges = newGauges(b)
	t.replication = newReplication(b)
	if err := b.done(); err != nil {
		return err
	}
	in := &t.observer.in
	if _, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		t.observer.observe(o)
		return nil
	}, in.decisions, in.promptTokens, in.matchedTokens, in.progress); err != nil {
		return err
	}
	return t.buildTracing(ctx, cfg, sdktrace.WithResource(res))
}

func (t *Telemetry) buildTracing(ctx context.Context, cfg *Config, opts ...sdktrace.TracerProviderOption) error {
	s, err := sampler()
	if err != nil {
		return err
	}
	if s != nil {
		opts = append(opts, sdktrace.WithSampler(s))
	}
	e, err := spanExporter(ctx)
	if err != nil {
		return err
	}
	if e != nil {
		opts = append(opts, sdktrace.WithBatcher(e))
	}
	if e == nil && len(cfg.SpanProcessors) == 0 {
		return nil
	}
	for _, p := range cfg.SpanProcessors {
		opts = append(opts, sdktrace.WithSpanProcessor(p))
	}
	t.onlySampled = s != nil
	t.tracers = sdktrace.NewTracerProvider(opts...)
	t.tracer = t.tracers.Tracer(scope, trace.WithInstrumentationVersion(cfg.Version))
	return nil
}

// Observer is what the oracle reports to.
func (t *Telemetry) Observer() oracle.Observer { return t.observer }

// Refused counts one call or stream message that was answered with an error. rpc is the full method name; reason is the
// ErrorInfo's reason, or the status code's name where there is no ErrorInfo. Both come from closed sets.
func (t *Telemetry) Refused(rpc, reason string) {
	t.observer.in.refused.Add(t.observer.bg, 1, t.observer.refused.of(refusedKey{rpc, reason}).add...)
}

// Panicked counts one handler that panicked. rpc is the full method name.
func (t *Telemetry) Panicked(rpc string) {
	t.observer.count(t.observer.in.panics, t.observer.rpc, rpc, 1)
}

// Picked counts one HTTP request that a proxy asked about. outcome comes from a closed set.
func (t *Telemetry) Picked(outcome string) {
	t.observer.count(t.observer.in.picked, t.observer.outcome, outcome, 1)
}

// Prompted counts one prompt that was decided for a proxy. source comes from a closed set.
func (t *Telemetry) Prompted(source string) {
	t.observer.count(t.observer.in.prompted, t.observer.source, source, 1)
}

// Unobserved counts one response that a proxy showed in vain.
func (t *Telemetry) Unobserved() { t.observer.in.unobserved.Add(t.observer.bg, 1) }

// Logged counts one entry of a proxy's access log. outcome comes from a closed set.
func (t *Telemetry) Logged(outcome string) {
	t.observer.count(t.observer.in.logged, t.observer.outcome, outcome, 1)
}

// Tokenized counts one text whose tokens an engine was asked for. outcome comes from a closed set.
func (t *Telemetry) Tokenized(outcome string) {
	t.observer.count(t.observer.in.tokenized, t.observer.outcome, outcome, 1)
}

// TracerProvider makes spans that go where the decision spans go; nil when there is no tracing.
func (t *Telemetry) TracerProvider() trace.TracerProvider {
	if t.tracers == nil {
		return nil
	}
	return t.tracers
}

// Propagator reads a parent out of headers, in the forms that OTEL_PROPAGATORS names (default: W3C).
func (t *Telemetry) Propagator() propagation.TextMapPropagator { return t.propagator }

// Metrics serves all metrics as Prometheus text, or as OpenMetrics to those who ask for it.
func (t *Telemetry) Metrics() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{
		Registry:            t.registry,
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	})
}

// Shutdown sends what is still held and ends the pipelines, as far as ctx allows. Nothing may be reported afterwards
// (it would do no harm, and be lost).
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var errs []error
	if t.tracers != nil {
		errs = append(errs, t.tracers.Shutdown(ctx))
	}
	if t.meters != nil {
		errs = append(errs, t.meters.Shutdown(ctx))
	}
	return errors.Join(errs...)
}
