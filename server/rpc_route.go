package server

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// routeService is what gateways and workers call. Each method decodes, calls the oracle and encodes; nothing else.
type routeService struct {
	kvoraclev1.UnimplementedRouteServiceServer

	s *Server
}

func newRouteService(s *Server) *routeService { return &routeService{s: s} }

// Route implements RouteService.
func (r *routeService) Route(ctx context.Context, m *kvoraclev1.RouteRequest) (*kvoraclev1.RouteResponse, error) {
	a, err := r.decide(ctx, m)
	if err != nil {
		return nil, toStatus(err)
	}
	return wire.EncodeAnswer(a, m.GetExplain()), nil
}

// decide is one decision with its span.
func (r *routeService) decide(ctx context.Context, m *kvoraclev1.RouteRequest) (*oracle.Answer, error) {
	ctx, span := r.s.tel.StartDecision(ctx)
	req, err := wire.DecodeRoute(m, r.s.limits)
	var a *oracle.Answer
	if err == nil {
		a, err = r.s.oracle.Route(ctx, req, time.Now())
	}
	r.s.tel.EndDecision(span, a, err)
	return a, err
}

// RouteStream implements RouteService. Questions are answered in the order they came; a refused one is answered with
// its status and the stream goes on.
func (r *routeService) RouteStream(stream kvoraclev1.RouteService_RouteStreamServer) error {
	ctx := stream.Context()
	in := receive(ctx, stream.Recv)
	leave := r.s.leaving()
	defer leave.stop()
	for {
		select {
		case m := <-in:
			if m.isEnd() {
				return ended(m.err)
			}
			if err := stream.Send(r.answer(ctx, m.value, m.at)); err != nil {
				return err
			}
		case <-leave.going:
			if err := stream.Send(&kvoraclev1.RouteStreamResponse{
				Result: &kvoraclev1.RouteStreamResponse_GoAway{GoAway: leave.notice()},
			}); err != nil {
				return err
			}
		case <-leave.over:
			return nil
		}
	}
}

func (r *routeService) answer(ctx context.Context, m *kvoraclev1.RouteStreamRequest, at time.Time) *kvoraclev1.RouteStreamResponse {
	out := &kvoraclev1.RouteStreamResponse{Tag: m.GetTag()}
	ctx = r.s.tel.ContextFromTraceparent(ctx, m.GetTraceparent())
	var a *oracle.Answer
	var err error
	if limit := time.Duration(m.GetTimeoutMs()) * time.Millisecond; limit > 0 && time.Since(at) > limit {
		err = oracle.Fault(oracle.Expired, oracle.ReasonDeadline, "timeout_ms", "", "the question waited too long")
	} else {
		a, err = r.decide(ctx, m.GetRequest())
	}
	if err != nil {
		err = toStatus(err)
		r.s.watch.failed(ctx, kvoraclev1.RouteService_RouteStream_FullMethodName, err, time.Since(at))
		st := status.Convert(err).Proto()
		out.Result = &kvoraclev1.RouteStreamResponse_Status{Status: &kvoraclev1.ErrorStatus{
			Code: st.GetCode(), Message: st.GetMessage(), Details: st.GetDetails(),
		}}
		return out
	}
	out.Result = &kvoraclev1.RouteStreamResponse_Response{Response: wire.EncodeAnswer(a, m.GetRequest().GetExplain())}
	return out
}

// ended turns the end of a peer's messages into the end of the stream: a half-close is a normal one, and a peer that is
// gone (nil) hears nothing anyway.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
