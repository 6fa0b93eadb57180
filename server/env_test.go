package server

import (
	"slices"
	"strconv"
	"testing"

	"go.opentelemetry.io/otel/attribute"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
)

// clearEnv makes a test independent of the machine it runs on.
func clearEnv(t testing.TB) {
	t.Helper()
	for _, name := range []string{
		"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_TRACES_SAMPLER",
		"OTEL_TRACES_SAMPLER_ARG", "OTEL_PROPAGATORS", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES",
	} {
		t.Setenv(name, "")
	}
}

// has says whether the attributes include each "key=value".
func has(attrs []attribute.KeyValue, want []string) bool {
	for _, w := range want {
		if !slices.ContainsFunc(attrs, func(kv attribute.KeyValue) bool { return string(kv.Key)+"="+kv.Value.String() == w }) {
			return false
		}
	}
	return true
}

// otlpValue finds an attribute as OTLP sends it, as text.
func otlpValue(attrs []*commonpb.KeyValue, key string) string {
	for _, kv := range attrs {
		if kv.GetKey() != key {
			continue
		}
		switch v := kv.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			return v.StringValue
		case *commonpb.AnyValue_IntValue:
			return strconv.FormatInt(v.IntValue, 10)
		default:
			return kv.GetValue().String()
		}
	}
	return ""
}
