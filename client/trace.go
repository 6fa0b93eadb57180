package client

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/metadata"
)

// carrier lets a propagator write into outgoing metadata.
type carrier metadata.MD

func (c carrier) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}

// withTrace puts the context's trace into the outgoing metadata, with whatever propagator the program has set; without
// one it does nothing. Instrumentation of the connection overwrites it with its own span, which is a child of ours.
func withTrace(ctx context.Context) context.Context {
	p := otel.GetTextMapPropagator()
	if len(p.Fields()) == 0 {
		return ctx
	}
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = metadata.MD{}
	}
	p.Inject(ctx, carrier(md))
	return metadata.NewOutgoingContext(ctx, md)
}

// traceparent is the context's trace for messages that have no metadata of their own; empty without one.
func traceparent(ctx context.Context) string {
	p := otel.GetTextMapPropagator()
	if len(p.Fields()) == 0 {
		return ""
	}
	c := propagation.MapCarrier{}
	p.Inject(ctx, c)
	return c.Get("traceparent")
}
