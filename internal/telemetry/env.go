package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// Environment variables that are read here. All others are read by OpenTelemetry itself.
const (
	envTraces          = "OTEL_TRACES_EXPORTER"
	envMetrics         = "OTEL_METRICS_EXPORTER"
	envEndpoint        = "OTEL_EXPORTER_OTLP_ENDPOINT"
	envTracesEndpoint  = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	envMetricsEndpoint = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
	envSampler         = "OTEL_TRACES_SAMPLER"
	envSamplerArg      = "OTEL_TRACES_SAMPLER_ARG"
)

// wanted says whether a signal is exported: when its exporter is named and not "none", or when none is named and an
// OTLP endpoint is. Without this rule a fresh server would call an OTLP collector on this machine that nobody started.
func wanted(exporter, endpoint string) bool {
	if v := strings.TrimSpace(os.Getenv(exporter)); v != "" {
		return v != "none"
	}
	return cmp.Or(os.Getenv(endpoint), os.Getenv(envEndpoint)) != ""
}

// spanExporter makes the exporter that the environment names, or nil.
func spanExporter(ctx context.Context) (trace.SpanExporter, error) {
	if !wanted(envTraces, envTracesEndpoint) {
		return nil, nil
	}
	e, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("telemetry: traces exporter (%s and OTEL_EXPORTER_OTLP_*): %w", envTraces, err)
	}
	return e, nil
}

// metricReader makes the reader that the environment names, or nil.
func metricReader(ctx context.Context) (metric.Reader, error) {
	if !wanted(envMetrics, envMetricsEndpoint) {
		return nil, nil
	}
	r, err := autoexport.NewMetricReader(ctx)
	if err != nil {
		return nil, fmt.Errorf("telemetry: metrics exporter (%s and OTEL_EXPORTER_OTLP_*): %w", envMetrics, err)
	}
	return r, nil
}

// sampler is nil when the environment names one: the SDK then reads it. A name it would not understand is refused
// here, because the SDK would sample everything instead.
func sampler() (trace.Sampler, error) {
	name := strings.ToLower(strings.TrimSpace(os.Getenv(envSampler)))
	switch name {
	case "":
		return trace.ParentBased(trace.TraceIDRatioBased(0)), nil
	case "always_on", "always_off", "parentbased_always_on", "parentbased_always_off":
		return nil, nil
	case "traceidratio", "parentbased_traceidratio":
		arg := strings.TrimSpace(os.Getenv(envSamplerArg))
		if v, err := strconv.ParseFloat(arg, 64); arg != "" && (err != nil || !(v >= 0 && v <= 1)) {
			return nil, fmt.Errorf("telemetry: %s: got %q, want a ratio from 0 to 1", envSamplerArg, arg)
		}
		return nil, nil
	default:
		return nil, fmt.Errorf("telemetry: %s: got %q, want one of always_on, always_off, traceidratio, "+
			"parentbased_always_on, parentbased_always_off, parentbased_traceidratio", envSampler, name)
	}
}

// describeService is the resource all signals carry. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over ours.
func describeService(ctx context.Context, version string) (*resource.Resource, error) {
	r, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName("kvoracle"), semconv.ServiceVersion(version)),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, fmt.Errorf("telemetry: resource (OTEL_RESOURCE_ATTRIBUTES): %w", err)
	}
	return r, nil
}
