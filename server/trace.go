package server

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/kvoracle/kvoracle/internal/telemetry"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Who makes which span:
//
//	Route         the decision span, child of the span in the call's metadata (parents puts it into the context)
//	RouteStream   one decision span a message, child of the message's traceparent; none for the stream
//	Report...     none
//	FleetService  an RPC span by otelgrpc, child of the span in the call's metadata
//
// So one Route is one span here, right under the gateway's own, and a hot call that is not sampled pays for looking
// whether there is a traceparent, nothing more.

// parents reads the parent that a call's metadata names.
type parents struct {
	propagator propagation.TextMapPropagator
	fields     []string
	// onlyW3C: traceparent alone says whether there is a sampled parent, and nobody wants any other.
	onlyW3C bool
}

// newParents is for a traced server only. With a hook that may start spans of its own, every parent is wanted.
func newParents(t *telemetry.Telemetry, hasHook bool) *parents {
	p := &parents{propagator: t.Propagator(), fields: t.Propagator().Fields()}
	p.onlyW3C = t.OnlySampled() && !hasHook
	for _, f := range p.fields {
		switch f {
		case "traceparent", "tracestate", "baggage":
		default:
			p.onlyW3C = false // another format may carry a parent too
		}
	}
	return p
}

// of gives ctx the call's parent. Where a parent that is not sampled leads to no span, it is left out: making a context
// for it would be most of what an unsampled call pays.
func (p *parents) of(ctx context.Context) context.Context {
	if p.onlyW3C {
		if v := metadata.ValueFromIncomingContext(ctx, "traceparent"); len(v) == 0 || !maySample(v[0]) {
			return ctx
		}
	} else if !isTraced(ctx, p.fields) {
		return ctx
	}
	return p.propagator.Extract(ctx, incoming{ctx})
}

// maySample says whether a traceparent's sampled flag is set; version 00 has it in its last digit, and so have all later
// versions at the same place.
func maySample(traceparent string) bool {
	const flags = 54 // version-traceid-parentid-flags: 2+1+32+1+16+1 digits before, the second of two
	if len(traceparent) <= flags {
		return false
	}
	return strings.IndexByte("13579bBdDfF", traceparent[flags]) >= 0
}

// isTraced says whether any of the propagator's headers came with the call. It copies no metadata.
func isTraced(ctx context.Context, fields []string) bool {
	for _, f := range fields {
		if len(metadata.ValueFromIncomingContext(ctx, f)) > 0 {
			return true
		}
	}
	return false
}

// incoming reads a call's metadata as a propagator wants it.
type incoming struct {
	ctx context.Context //nolint:containedctx // lives for one call of Extract
}

// Get implements propagation.TextMapCarrier.
func (c incoming) Get(key string) string {
	if v := metadata.ValueFromIncomingContext(c.ctx, key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier; nothing is ever written.
func (incoming) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (c incoming) Keys() []string {
	md, _ := metadata.FromIncomingContext(c.ctx)
	keys := make([]string, 0, len(md))
	for k := range md {
		keys = append(keys, k)
	}
	return keys
}

// controlSpans makes the RPC spans of FleetService with otelgrpc. Whether a span comes out is the sampler's decision: by
// default only under a sampled parent.
//
// otelgrpc is a stats handler. Given to gRPC as such it would be told of every event of every call, 18 allocations on
// each Route whatever its filter says. Here two interceptors drive it, for the calls that have a span only.
type controlSpans struct {
	otel stats.Handler
}

// newControlSpans is for a traced server only.
func newControlSpans(t *telemetry.Telemetry) *controlSpans {
	return &controlSpans{otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.TracerProvider()),
		otelgrpc.WithPropagators(t.Propagator()),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()), // what is measured is in telemetry.Instruments
	)}
}

func (c *controlSpans) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !isControl(info.FullMethod) {
		return handler(ctx, req)
	}
	ctx, end := c.begin(ctx, info.FullMethod)
	resp, err := handler(ctx, req)
	end(err)
	return resp, err
}

func (c *controlSpans) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !isControl(info.FullMethod) {
		return handler(srv, stream)
	}
	ctx, end := c.begin(stream.Context(), info.FullMethod)
	err := handler(srv, &streamIn{stream, ctx})
	end(err)
	return err
}

// begin starts a call's span; the context knows it.
func (c *controlSpans) begin(ctx context.Context, fullMethod string) (in context.Context, end func(error)) {
	begin := time.Now()
	ctx = c.otel.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: fullMethod})
	c.otel.HandleRPC(ctx, &stats.Begin{BeginTime: begin})
	if p, ok := peer.FromContext(ctx); ok {
		c.otel.HandleRPC(ctx, &stats.InHeader{FullMethod: fullMethod, RemoteAddr: p.Addr, LocalAddr: p.LocalAddr})
	}
	return ctx, func(err error) {
		c.otel.HandleRPC(ctx, &stats.End{BeginTime: begin, EndTime: time.Now(), Error: err})
	}
}

// streamIn is a stream in another context.
type streamIn struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream's own
}

// Context implements grpc.ServerStream.
func (s *streamIn) Context() context.Context { return s.ctx }

// isControl says whether a method is an operator's: rare, and worth a full log line.
func isControl(fullMethod string) bool {
	const fleet = kvoraclev1.FleetService_GetWorker_FullMethodName
	return strings.HasPrefix(fullMethod, fleet[:len(fleet)-len("GetWorker")])
}
