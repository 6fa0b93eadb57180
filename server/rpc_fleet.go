package server

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/replica"
	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// fleetService is the operator's view.
type fleetService struct {
	kvoraclev1.UnimplementedFleetServiceServer

	s *Server
}

func newFleetService(s *Server) *fleetService { return &fleetService{s: s} }

func (f *fleetService) show(name string) (*kvoraclev1.Worker, error) {
	w, err := f.s.oracle.Worker(name, time.Now())
	if err != nil {
		return nil, toStatus(err)
	}
	return wire.EncodeWorker(&w), nil
}

// RegisterWorker implements FleetService.
func (f *fleetService) RegisterWorker(ctx context.Context, m *kvoraclev1.RegisterWorkerRequest) (*kvoraclev1.RegisterWorkerResponse, error) {
	spec, err := wire.DecodeSpec(m.GetSpec(), "spec")
	if err != nil {
		return nil, toStatus(err)
	}
	if err := f.s.warm.wait(ctx); err != nil {
		return nil, toStatus(err)
	}
	if err := f.s.oracle.MayRegister(&spec); err != nil { // before other replicas are told
		return nil, toStatus(err)
	}
	f.s.replica.Do(replica.Register, spec.Worker, m.GetSpec(), func() { _, err = f.s.oracle.Register(spec, time.Now()) })
	if err != nil {
		return nil, toStatus(err)
	}
	f.s.warm.changed()
	w, err := f.show(spec.Worker)
	return &kvoraclev1.RegisterWorkerResponse{Worker: w}, err
}

// UpdateWorker implements FleetService.
func (f *fleetService) UpdateWorker(context.Context, *kvoraclev1.UpdateWorkerRequest) (*kvoraclev1.UpdateWorkerResponse, error) {
	return nil, unservedRPC("FleetService.UpdateWorker")
}

// VerifyWorker implements FleetService. The view is copied first and sent afterwards, so that a slow reader holds up
// nobody's reports.
func (f *fleetService) VerifyWorker(m *kvoraclev1.VerifyWorkerRequest, stream kvoraclev1.FleetService_VerifyWorkerServer) error {
	t := m.GetTarget()
	if err := wire.WorkerName(t.GetWorkerId()); err != nil {
		return toStatus(err)
	}
	v, err := f.s.oracle.Verify(t.GetWorkerId(), int(t.GetDpRank()), time.Now())
	if err != nil {
		return toStatus(err)
	}
	for _, part := range wire.EncodeView(&v) {
		if err := stream.Send(part); err != nil {
			return err
		}
	}
	return nil
}

// RecordRequests implements FleetService. Requests are sent as they end, those that ended meanwhile together.
func (f *fleetService) RecordRequests(m *kvoraclev1.RecordRequestsRequest, stream kvoraclev1.FleetService_RecordRequestsServer) error {
	if err := wire.ModelName(m.GetModel()); err != nil {
		return toStatus(err)
	}
	rec, err := f.s.oracle.StartRecording(m.GetModel())
	if err != nil {
		return toStatus(err)
	}
	defer rec.Stop()
	out := &kvoraclev1.RecordRequestsResponse{}
	for {
		out.Lost = rec.Lost()
		if err := stream.Send(out); err != nil {
			return err
		}
		out = &kvoraclev1.RecordRequestsResponse{} // gRPC may still be reading the former
		select {
		case r := <-rec.Records():
			out.Requests = append(out.Requests, wire.EncodeRecord(&r))
		case <-stream.Context().Done():
			return toStatus(stream.Context().Err())
		case <-f.s.going:
			return toStatus(drained())
		}
		const mostBlocks = 1 << 16                                        // in a message: half a megabyte
		for blocks := 0; blocks < mostBlocks && len(rec.Records()) > 0; { // nobody else reads them
			r := <-rec.Records()
			out.Requests = append(out.Requests, wire.EncodeRecord(&r))
			blocks += len(r.Blocks) + 16
		}
	}
}

func unservedRPC(name string) error {
	return toStatus(oracle.Fault(oracle.Unserved, oracle.ReasonFieldUnserved, name, "", "is not served yet"))
}

// do does what an operator wants of a worker that is known, here by apply and at all other replicas.
func (f *fleetService) do(a replica.Action, worker string, apply func() error) error {
	if _, err := f.s.oracle.Worker(worker, time.Now()); err != nil {
		return err
	}
	var err error
	f.s.replica.Do(a, worker, nil, func() { err = apply() })
	return err
}

// DrainWorker implements FleetService.
func (f *fleetService) DrainWorker(ctx context.Context, m *kvoraclev1.DrainWorkerRequest) (*kvoraclev1.DrainWorkerResponse, error) {
	if err := wire.WorkerName(m.GetWorkerId()); err != nil {
		return nil, toStatus(err)
	}
	if err := f.s.warm.wait(ctx); err != nil {
		return nil, toStatus(err)
	}
	action := replica.Drain
	if m.GetUndo() {
		action = replica.Undrain
	}
	if err := f.do(action, m.GetWorkerId(), func() (err error) {
		_, err = f.s.oracle.Drain(m.GetWorkerId(), !m.GetUndo())
		return err
	}); err != nil {
		return nil, toStatus(err)
	}
	f.s.warm.changed()
	w, err := f.show(m.GetWorkerId())
	return &kvoraclev1.DrainWorkerResponse{Worker: w}, err
}

// RemoveWorker implements FleetService.
func (f *fleetService) RemoveWorker(ctx context.Context, m *kvoraclev1.RemoveWorkerRequest) (*kvoraclev1.RemoveWorkerResponse, error) {
	if err := wire.WorkerName(m.GetWorkerId()); err != nil {
		return nil, toStatus(err)
	}
	if err := f.s.warm.wait(ctx); err != nil {
		return nil, toStatus(err)
	}
	var blocks, bookings int
	if err := f.do(replica.Remove, m.GetWorkerId(), func() (err error) {
		blocks, bookings, err = f.s.oracle.Remove(m.GetWorkerId())
		return err
	}); err != nil {
		return nil, toStatus(err)
	}
	f.s.warm.changed()
	return &kvoraclev1.RemoveWorkerResponse{DroppedBlocks: uint64(blocks), ReleasedBookings: uint32(bookings)}, nil
}

// InvalidateWorker implements FleetService.
func (f *fleetService) InvalidateWorker(ctx context.Context, m *kvoraclev1.InvalidateWorkerRequest) (*kvoraclev1.InvalidateWorkerResponse, error) {
	if err := wire.WorkerName(m.GetWorkerId()); err != nil {
		return nil, toStatus(err)
	}
	if err := f.s.warm.wait(ctx); err != nil {
		return nil, toStatus(err)
	}
	blocks := 0
	if err := f.do(replica.Invalidate, m.GetWorkerId(), func() (err error) {
		blocks, err = f.s.oracle.Invalidate(m.GetWorkerId())
		return err
	}); err != nil {
		return nil, toStatus(err)
	}
	f.s.warm.changed()
	return &kvoraclev1.InvalidateWorkerResponse{DroppedBlocks: uint64(blocks)}, nil
}

// GetWorker implements FleetService.
func (f *fleetService) GetWorker(_ context.Context, m *kvoraclev1.GetWorkerRequest) (*kvoraclev1.GetWorkerResponse, error) {
	if err := wire.WorkerName(m.GetWorkerId()); err != nil {
		return nil, toStatus(err)
	}
	w, err := f.show(m.GetWorkerId())
	return &kvoraclev1.GetWorkerResponse{Worker: w}, err
}

func (f *fleetService) list(model string) ([]*kvoraclev1.Worker, error) {
	if err := wire.ModelName(model); err != nil {
		return nil, toStatus(err)
	}
	ws := f.s.oracle.Workers(model, time.Now())
	out := make([]*kvoraclev1.Worker, len(ws))
	for i := range ws {
		out[i] = wire.EncodeWorker(&ws[i])
	}
	return out, nil
}

// ListWorkers implements FleetService.
func (f *fleetService) ListWorkers(_ context.Context, m *kvoraclev1.ListWorkersRequest) (*kvoraclev1.ListWorkersResponse, error) {
	ws, err := f.list(m.GetModel())
	return &kvoraclev1.ListWorkersResponse{Workers: ws}, err
}

// WatchWorkers implements FleetService. It looks once per interval and stays silent when nothing has changed, so that a
// thousand watchers of a quiet fleet cost little.
func (f *fleetService) WatchWorkers(m *kvoraclev1.WatchWorkersRequest, stream kvoraclev1.FleetService_WatchWorkersServer) error {
	const least, usual = 100, 1000
	interval := m.GetIntervalMs()
	switch {
	case interval == 0:
		interval = usual
	case interval < least:
		return toStatus(oracle.Fault(oracle.InvalidArgument, oracle.ReasonFieldInvalid, "interval_ms",
			strconv.Itoa(int(interval)), "want 0 or at least "+strconv.Itoa(least)))
	}
	tick := time.NewTicker(time.Duration(interval) * time.Millisecond)
	defer tick.Stop()
	var last *kvoraclev1.WatchWorkersResponse
	for {
		ws, err := f.list(m.GetModel())
		if err != nil {
			return err
		}
		now := &kvoraclev1.WatchWorkersResponse{Workers: ws}
		if last == nil || !proto.Equal(ageless(last), ageless(now)) {
			if err := stream.Send(now); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return toStatus(stream.Context().Err())
		case <-f.s.going:
			return toStatus(drained())
		}
	}
}

// ageless is a list without what changes by itself.
func ageless(m *kvoraclev1.WatchWorkersResponse) *kvoraclev1.WatchWorkersResponse {
	c, ok := proto.Clone(m).(*kvoraclev1.WatchWorkersResponse)
	if !ok {
		return m
	}
	for _, w := range c.GetWorkers() {
		for _, r := range w.GetRanks() {
			r.BlocksAgeSeconds, r.LoadAgeSeconds = 0, 0
		}
	}
	return c
}

// ExplainDecision implements FleetService.
func (f *fleetService) ExplainDecision(_ context.Context, m *kvoraclev1.ExplainDecisionRequest) (*kvoraclev1.ExplainDecisionResponse, error) {
	id, ok := wire.ParseDecisionID(m.GetDecisionId())
	a := f.s.oracle.Explain(id)
	if !ok || a == nil {
		return nil, toStatus(oracle.Fault(oracle.NotFound, oracle.ReasonDecisionUnknown, "decision_id",
			strconv.Quote(m.GetDecisionId()), "want a recent decision"))
	}
	return &kvoraclev1.ExplainDecisionResponse{
		Decision: wire.EncodeAnswer(a, true), DecidedAt: wire.Timestamp(a.DecidedAt), Model: a.Model, RequestId: a.RequestID,
	}, nil
}
