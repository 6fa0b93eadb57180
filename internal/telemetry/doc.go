// Package telemetry turns what the oracle reports into OpenTelemetry metrics and spans.
//
// It implements oracle.Observer and nothing else calls the oracle back: the flow is one way. Instruments lists every
// metric in one table; attributes.go has every span attribute.
//
// A Telemetry keeps its own tracer provider, meter provider, propagator and Prometheus registry. It reads OpenTelemetry's
// global state never and sets it never, so that a program which embeds the server keeps its own, and two servers in one
// process do not mix.
//
// What goes out:
//   - metrics are always readable as Prometheus text (Telemetry.Metrics), and besides go where OTEL_METRICS_EXPORTER
//     says;
//   - spans go where OTEL_TRACES_EXPORTER says;
//   - both variables default to "none", unless an OTLP endpoint is named (OTEL_EXPORTER_OTLP_ENDPOINT or its
//     signal-specific form): naming one asks for "otlp". The other OTEL_* variables mean what OpenTelemetry says, but
//     for OTEL_TRACES_SAMPLER, which defaults to "follow the parent, and never start a trace here".
//
// Spans. A decision is one span, "kvoracle.route", of kind server. Its parent is the gateway's span: from the metadata
// of a unary Route, from the message's traceparent in RouteStream. There is no RPC span around it and no span for report
// streams. Neither spans nor metrics ever hold tokens, hashes or text of a prompt.
//
// Invariants:
//   - sum(kvoracle.matched.tokens) <= sum(kvoracle.prompt.tokens): both count the same, booked decisions;
//   - every attribute value comes from a closed set, a policy's name or a model's name, so the number of series is
//     bounded by the code and the fleet, never by requests.
//
// Concurrency: all methods may be called concurrently; none blocks and none takes a lock of the oracle, except that
// collecting the gauges calls the function given to Watch.
//
// Cost: attribute sets are made once and then found by a map lookup; what every decision counts is counted here and only
// read by readers (tally.go). A decision's two histograms take about 0.2 us of processor time each for each reader of
// metrics, and nothing is allocated; an unsampled StartDecision takes a few nanoseconds.
package telemetry
