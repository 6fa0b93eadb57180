package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// ReportProgress implements RouteService: hello, then steps of requests, acknowledged cumulatively. A malformed step is
// counted and the stream goes on; a gap in the numbering ends it, since steps were lost.
func (r *routeService) ReportProgress(stream kvoraclev1.RouteService_ReportProgressServer) error {
	first, err := stream.Recv()
	if err != nil {
		return ended(err)
	}
	hello, ok := first.GetMessage().(*kvoraclev1.ReportProgressRequest_Hello)
	if !ok {
		return toStatus(wire.Unexpected("message", "want hello first"))
	}
	gateway, incarnation, err := wire.DecodeProgressHello(hello.Hello)
	if err != nil {
		return toStatus(err)
	}
	session, err := r.s.oracle.OpenGateway(gateway, incarnation)
	if err != nil {
		return toStatus(err)
	}
	defer func() { session.Close(time.Now()) }()
	defer r.s.replica.Gateway(gateway, incarnation)()
	ack := &kvoraclev1.ReportProgressResponse{AckedSequence: first.GetSequence()}
	if err := stream.Send(ack); err != nil {
		return err
	}
	in := readEach(stream.Context(), r.s, stream.Recv, func(m *kvoraclev1.ReportProgressRequest) error {
		if want := ack.GetAckedSequence() + 1; m.GetSequence() != want {
			return toStatus(oracle.Fault(oracle.InvalidArgument, oracle.ReasonFieldInvalid, "sequence",
				fmt.Sprint(m.GetSequence()), fmt.Sprintf("want %d", want)))
		}
		r.step(stream.Context(), m, gateway, ack)
		ack.AckedSequence = m.GetSequence()
		return stream.Send(ack)
	})
	defer in.close()
	select {
	case err := <-in.over:
		return err
	case <-r.s.going:
		// The bookings stay; what was not acknowledged is the gateway's to send again.
		return toStatus(drained())
	}
}

// step applies one message and counts what became of it.
func (r *routeService) step(ctx context.Context, m *kvoraclev1.ReportProgressRequest, gateway string, ack *kvoraclev1.ReportProgressResponse) {
	outcome, err := r.event(m.GetEvent(), gateway)
	switch {
	case err != nil:
		ack.RefusedEvents++
		r.s.watch.failed(ctx, kvoraclev1.RouteService_ReportProgress_FullMethodName, toStatus(err), 0)
	case outcome == oracle.Late:
		ack.LateEvents++
	case outcome == oracle.UnknownDecision:
		ack.UnknownDecisions++
	}
}

func (r *routeService) event(m *kvoraclev1.ProgressEvent, gateway string) (oracle.Outcome, error) {
	const field = "event"
	e, err := wire.DecodeEvent(m, gateway, field)
	if err != nil {
		return oracle.UnknownDecision, err
	}
	outcome, err := r.s.oracle.Progress(e, time.Now())
	return outcome, within(field, err)
}

// within says of the oracle's error about an event where in the message that is.
func within(field string, err error) error {
	var e *oracle.Error
	if !errors.As(err, &e) {
		return err
	}
	inner := *e
	inner.Field = field + "." + e.Field
	return &inner
}

// RecordProgress implements RouteService. An event that is refused refuses the call before any is applied.
func (r *routeService) RecordProgress(_ context.Context, m *kvoraclev1.RecordProgressRequest) (*kvoraclev1.RecordProgressResponse, error) {
	if err := wire.CheckRecordProgress(m); err != nil {
		return nil, toStatus(err)
	}
	events := make([]*oracle.Event, len(m.GetEvents()))
	for i, event := range m.GetEvents() {
		field := fmt.Sprintf("events[%d]", i)
		e, err := wire.DecodeEvent(event, "", field)
		if err == nil {
			err = within(field, r.s.oracle.CheckEvent(e))
		}
		if err != nil {
			return nil, toStatus(err)
		}
		events[i] = e
	}
	out := &kvoraclev1.RecordProgressResponse{}
	for i, e := range events {
		outcome, err := r.s.oracle.Progress(e, time.Now())
		if err != nil {
			return nil, toStatus(within(fmt.Sprintf("events[%d]", i), err)) // its worker has gone at this very moment
		}
		switch outcome {
		case oracle.Applied:
			out.Applied++
		case oracle.Late:
			out.LateEvents++
		case oracle.UnknownDecision:
			out.UnknownDecisions++
		}
	}
	return out, nil
}
