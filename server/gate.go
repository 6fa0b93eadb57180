package server

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/internal/access"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// entered lets a call go on that the tap let in. Where everybody has to say who they are, one that the tap knew no rule for
// is nobody's.
func (g *guard) entered(v *visit, method string) error {
	switch {
	case v != nil && v.refusal != nil:
		return v.refusal
	case g.table.Load() == nil || v != nil && v.caller != nil:
		return nil
	}
	if r, known := g.rules[method]; known && r.roles == access.Nobody {
		return nil
	}
	return g.no.none
}

// unary is the guard's part of a unary call.
func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	v := visitOf(ctx)
	v.isHere()
	if err := g.entered(v, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// stream is its part of a stream.
func (g *guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx := stream.Context()
	v := visitOf(ctx)
	defer v.isHere()
	if err := g.entered(v, info.FullMethod); err != nil {
		return err
	}
	var c *caller
	if v != nil {
		c = v.caller
	}
	if m := g.meterOf(linkOf(ctx), c, time.Now()); m != nil {
		if !m.Open() {
			return g.no.many
		}
		defer m.Close()
	}
	if v == nil || v.end == nil {
		return handler(srv, stream)
	}
	if c != nil && !g.enter(v) {
		return g.no.unknown
	}
	err := handler(srv, &guarded{ServerStream: stream, visit: v})
	if c != nil {
		g.leave(v)
	}
	if v.isRevoked.Load() {
		return g.no.unknown
	}
	return err
}

// enter keeps a long stream in mind until leave. It may not be kept when the table has changed since the tap.
func (g *guard) enter(v *visit) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := g.table.Load(); t != v.caller.table {
		if id := v.caller.find(t); id == nil || !id.Equal(v.caller.id) {
			return false
		}
	}
	g.open[v] = struct{}{}
	return true
}

func (g *guard) leave(v *visit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, v)
}

// guarded is a stream that notices its first message.
type guarded struct {
	grpc.ServerStream

	visit *visit
	isOn  bool // it has come; RecvMsg is called by one goroutine at a time
}

// RecvMsg implements grpc.ServerStream.
func (s *guarded) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if !s.isOn {
		s.isOn = true
		s.visit.isHere()
	}
	return err
}

// mayReport says whether a call's identity may report for a worker.
func (g *guard) mayReport(ctx context.Context, worker string) error {
	if g.table.Load() == nil {
		return nil
	}
	v := visitOf(ctx)
	if v == nil || v.caller == nil {
		return g.no.none
	}
	if id := v.caller.id; !id.MayReport(worker) {
		return toStatus(oracle.Fault(oracle.Denied, oracle.ReasonNotYourWorker, "worker_id", strconv.Quote(worker),
			"want one of those that "+strconv.Quote(id.Name)+" may report for: "+id.Workers()))
	}
	return nil
}

// mayExplain says whether a call's identity may see why a decision was made: what every candidate holds of a prompt, and
// how busy it is.
func (g *guard) mayExplain(ctx context.Context) error {
	if g.table.Load() == nil {
		return nil
	}
	v := visitOf(ctx)
	if v == nil || v.caller == nil {
		return g.no.none
	}
	if id := v.caller.id; !id.Has(access.Operator) {
		return toStatus(oracle.Fault(oracle.Denied, oracle.ReasonRoleMissing, "explain", "true", "want the role "+access.Operator.String()))
	}
	return nil
}

// mayAskMore takes one question of a long stream from its caller's rate.
func (g *guard) mayAskMore(ctx context.Context, now time.Time) error {
	if !g.meters.HasRate() {
		return nil
	}
	var c *caller
	if v := visitOf(ctx); v != nil {
		c = v.caller
	}
	if !g.mayAsk(linkOf(ctx), c, now) {
		return g.no.rate
	}
	return nil
}
