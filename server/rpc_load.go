package server

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// ReportLoad implements RouteService: hello, then samples, each answered with what is believed now.
func (r *routeService) ReportLoad(stream kvoraclev1.RouteService_ReportLoadServer) error {
	in := receive(stream.Context(), stream.Recv)
	first := <-in
	if first.isEnd() {
		return ended(first.err)
	}
	hello, ok := first.value.GetMessage().(*kvoraclev1.ReportLoadRequest_Hello)
	if !ok {
		return toStatus(unexpected("message", "want hello first"))
	}
	worker, rank, incarnation, err := wire.DecodeLoadHello(hello.Hello)
	if err != nil {
		return toStatus(err)
	}
	if err := r.s.guard.mayReport(stream.Context(), worker); err != nil {
		return err
	}
	session, err := r.s.oracle.OpenLoad(worker, rank, incarnation)
	if err != nil {
		return toStatus(err)
	}
	leave := r.s.leaving()
	defer leave.stop()
	var applied, ignored uint64
	for {
		select {
		case m := <-in:
			if m.isEnd() {
				return ended(m.err)
			}
			sample, ok := m.value.GetMessage().(*kvoraclev1.ReportLoadRequest_Sample)
			if !ok {
				return toStatus(unexpected("message", "want sample"))
			}
			belief, err := session.Sample(wire.DecodeSample(sample.Sample), time.Now())
			if err != nil {
				return toStatus(err)
			}
			if belief.Ignored {
				ignored++
			} else {
				applied++
			}
			if err := stream.Send(wire.EncodeBelief(belief, applied, ignored)); err != nil {
				return err
			}
		case <-leave.going:
			if err := stream.Send(&kvoraclev1.ReportLoadResponse{
				AppliedSamples: applied, IgnoredSamples: ignored, GoAway: leave.notice(),
			}); err != nil {
				return err
			}
		case <-leave.over:
			return nil
		}
	}
}
