package server

import (
	"context"
	"log/slog"
	"net"
	"path"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// auditor writes a line for each action of an operator: who, what, on whom, from where, with what outcome. The lines have
// the message "audit" and their values in the group "audit", and are warnings when something was refused. Nothing of a
// prompt and no credentials are in them.
//
// Actions are written down without a limit: they are as many as operators make. Calls that were refused by the tap are not
// actions, and are rationed like all refusals.
type auditor struct {
	log   *slog.Logger
	rules func(method string) (rule, bool)
}

func newAuditor(log *slog.Logger, g *guard) *auditor {
	return &auditor{log: log.WithGroup("audit"), rules: func(method string) (rule, bool) { r, ok := g.rules[method]; return r, ok }}
}

// wants says whether a method's calls are written down.
func (a *auditor) wants(method string) bool {
	r, ok := a.rules(method)
	return ok && r.isAudited
}

func (a *auditor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if a.wants(info.FullMethod) {
		a.line(ctx, path.Base(info.FullMethod), targetOf(req), err)
	}
	return resp, err
}

func (a *auditor) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !a.wants(info.FullMethod) {
		return handler(srv, stream)
	}
	s := &audited{ServerStream: stream}
	err := handler(srv, s)
	a.line(stream.Context(), path.Base(info.FullMethod), s.target, err)
	return err
}

// explained writes down that somebody known saw why a decision was made, in the answer itself.
func (a *auditor) explained(ctx context.Context, answer *oracle.Answer, err error) {
	v := visitOf(ctx)
	if v == nil || v.caller == nil {
		return
	}
	target := ""
	if answer != nil && answer.Decision != 0 {
		target = wire.DecisionID(answer.Decision)
	}
	a.line(ctx, "Route", target, err)
}

// line writes down one action.
func (a *auditor) line(ctx context.Context, action, target string, err error) {
	who, from := "", ""
	if v := visitOf(ctx); v != nil && v.caller != nil {
		who = v.caller.id.Name
	}
	if p, ok := peer.FromContext(ctx); ok {
		if from = p.Addr.String(); p.Addr.Network() == "tcp" {
			from, _, _ = net.SplitHostPort(from) // what it is not: an address of TCP without a port
		}
	}
	level := slog.LevelInfo
	if err != nil {
		level = slog.LevelWarn
	}
	a.log.LogAttrs(ctx, level, "audit", slog.String("identity", who), slog.String("action", action), slog.String("target", target),
		slog.String("outcome", codeName(status.Code(err))), slog.String("from", from))
}

// audited is a stream that remembers whom its first message is about.
type audited struct {
	grpc.ServerStream

	target string
	isOn   bool
}

// RecvMsg implements grpc.ServerStream.
func (s *audited) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil && !s.isOn {
		s.isOn, s.target = true, targetOf(m)
	}
	return err
}

// targetOf is whom a message of the control service is about: a worker, a decision, or a model; shortened, for it has not
// been looked at yet.
func targetOf(m any) string {
	const most = 256
	target := ""
	switch m := m.(type) {
	case interface{ GetSpec() *kvoraclev1.WorkerSpec }:
		target = m.GetSpec().GetWorkerId()
	case *kvoraclev1.VerifyWorkerRequest:
		target = m.GetTarget().GetWorkerId()
	case interface{ GetWorkerId() string }:
		target = m.GetWorkerId()
	case interface{ GetDecisionId() string }:
		target = m.GetDecisionId()
	case interface{ GetModel() string }:
		target = m.GetModel()
	}
	return strings.ToValidUTF8(target[:min(len(target), most)], "?")
}
