package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// sendProgress keeps the ReportProgress stream open until ctx is done. It returns the oracle's refusal of the hello.
func (r *Router) sendProgress(ctx context.Context) error {
	r.progress.refuse(nil)
	retry := r.cfg.reconnect
	var trouble news
	for {
		began := time.Now()
		heard, err := r.progressOnce(ctx)
		if isOver(ctx) {
			return nil
		}
		e := errorFrom(err)
		switch {
		case !heard && errors.Is(e, ErrUnserved):
			r.cfg.log.Warn("kvoracle: the oracle takes no progress reports; its leases have to do", "error", err)
			r.progress.refuse(e)
			return nil
		case !heard && (errors.Is(e, ErrInvalid) || errors.Is(e, ErrMismatch)):
			return e
		case trouble.is(heard):
			r.cfg.log.Warn("kvoracle: no progress stream; will reconnect", "error", err)
		}
		if !pause(ctx, retry.after(began)) {
			return nil
		}
	}
}

// progressOnce runs one stream to its end and reports whether the oracle ever answered on it.
func (r *Router) progressOnce(ctx context.Context) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := r.rpc.ReportProgress(ctx)
	if err != nil {
		cancel()
		return false, err
	}
	r.progress.rewind()
	reader := hear(func() error { return r.hearProgress(stream, &heard) })
	defer reader.close(cancel)
	hello := &kvoraclev1.ReportProgressRequest{
		Sequence: 1,
		Message: &kvoraclev1.ReportProgressRequest_Hello{Hello: &kvoraclev1.ProgressHello{
			GatewayId: r.cfg.gateway, Incarnation: r.incarnation,
		}},
	}
	if stream.Send(hello) != nil {
		err = reader.lastWord(cancel)
		return heard, err
	}
	for sequence := uint64(2); ; {
		if e := r.progress.next(sequence); e != nil {
			m := &kvoraclev1.ReportProgressRequest{
				Sequence: sequence, Message: &kvoraclev1.ReportProgressRequest_Event{Event: e},
			}
			if stream.Send(m) != nil {
				err = reader.lastWord(cancel)
				return heard, err
			}
			sequence++
			continue
		}
		select {
		case <-reader.done:
			return heard, reader.err
		case <-r.progress.wake:
		}
	}
}

// hearProgress reads acknowledgements to the stream's end.
func (r *Router) hearProgress(stream grpc.BidiStreamingClient[kvoraclev1.ReportProgressRequest, kvoraclev1.ReportProgressResponse],
	heard *bool,
) error {
	var before kvoraclev1.ReportProgressResponse
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		*heard = true
		r.stats.progress(&before, m) // first: who waits in Flush reads it then
		r.progress.acked(m.GetAckedSequence())
		before.UnknownDecisions, before.LateEvents, before.RefusedEvents = m.GetUnknownDecisions(), m.GetLateEvents(), m.GetRefusedEvents()
	}
}

// Flush waits until the oracle has acknowledged every step told so far, or ctx is done. Without a Run it waits for one. The
// error is ErrUnserved where the oracle takes no progress reports, and ctx's otherwise.
func (r *Router) Flush(ctx context.Context) error { return r.progress.flush(ctx) }
