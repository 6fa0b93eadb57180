package server

import (
	"time"

	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// ReportLoad implements RouteService: hello, then samples, each answered with what is believed now.
func (r *routeService) ReportLoad(stream kvoraclev1.RouteService_ReportLoadServer) error {
	first, err := stream.Recv()
	if err != nil {
		return ended(err)
	}
	hello, ok := first.GetMessage().(*kvoraclev1.ReportLoadRequest_Hello)
	if !ok {
		return toStatus(wire.Unexpected("message", "want hello first"))
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
	var applied, ignored uint64 // guarded by the inbox
	in := readEach(stream.Context(), r.s, stream.Recv, func(m *kvoraclev1.ReportLoadRequest) error {
		sample, ok := m.GetMessage().(*kvoraclev1.ReportLoadRequest_Sample)
		if !ok {
			return toStatus(wire.Unexpected("message", "want sample"))
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
		return stream.Send(wire.EncodeBelief(belief, applied, ignored))
	})
	defer in.close()
	leave := r.s.leaving()
	defer leave.stop()
	for {
		select {
		case err := <-in.over:
			return err
		case <-leave.going:
			bye := leave.notice()
			if err := in.send(func() error {
				return stream.Send(&kvoraclev1.ReportLoadResponse{AppliedSamples: applied, IgnoredSamples: ignored, GoAway: bye})
			}); err != nil {
				return err
			}
		case <-leave.over:
			return nil
		}
	}
}
