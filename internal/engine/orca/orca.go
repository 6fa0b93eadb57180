// Package orca reads load reports that an engine, or a sidecar of it, streams out of band by ORCA (gRFC A51): the service
// xds.service.orca.v3.OpenRcaService.
//
// # What it promises
//
//   - Each report is handed on as names and values, for metrics.ORCASample. The report's own fields that have a meaning for
//     load come under the names mem_utilization and application_utilization if they are above zero: there, zero and absent
//     look alike.
//   - A stream that ends is opened again, with a pause between 0.5 and 1 times a second that doubles up to 30 s and falls back
//     after a report. A server without the service is asked every 30 s.
//
// # Ownership
//
// Run owns no goroutine but the caller's. The connection is the caller's.
package orca

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"time"

	v3 "github.com/cncf/xds/go/xds/data/orca/v3"
	service "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// maxNames is more than any engine reports. A report with more is passed over.
const maxNames = 256

const (
	leastPause = time.Second
	mostPause  = 30 * time.Second
)

// Reader reads the reports of one server. Not for concurrent use.
type Reader struct {
	// Conn leads there.
	Conn grpc.ClientConnInterface
	// Interval between reports that is asked for. Servers have a least interval of their own, often 30 s.
	Interval time.Duration
	// Take is handed each report; it keeps the map.
	Take func(map[string]float64)
	// Fail is told why a stream has ended; nil: nobody is.
	Fail func(error)
}

// Run reads until ctx is done.
func (r *Reader) Run(ctx context.Context) {
	pause := leastPause
	for ctx.Err() == nil {
		heard, err := r.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		if r.Fail != nil {
			r.Fail(err)
		}
		switch {
		case status.Code(err) == codes.Unimplemented:
			pause = mostPause
		case heard:
			pause = leastPause
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, mostPause)
	}
}

// errOversized is a report with more names than anybody needs.
var errOversized = errors.New("orca: a report with too many names")

// stream reads one stream to its end.
func (r *Reader) stream(ctx context.Context) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := service.NewOpenRcaServiceClient(r.Conn).StreamCoreMetrics(ctx,
		&service.OrcaLoadReportRequest{ReportInterval: durationpb.New(r.Interval)}, grpc.MaxCallRecvMsgSize(1<<20))
	if err != nil {
		return false, err
	}
	for {
		m, err := s.Recv()
		if err != nil {
			return heard, err
		}
		values := Values(m)
		if values == nil {
			return heard, errOversized
		}
		heard = true
		r.Take(values)
	}
}

// Values is a report as names and values, named metrics winning over utilizations of the same name; nil if it has more
// than maxNames.
func Values(m *v3.OrcaLoadReport) map[string]float64 {
	if len(m.GetUtilization())+len(m.GetNamedMetrics()) > maxNames {
		return nil
	}
	out := make(map[string]float64, len(m.GetUtilization())+len(m.GetNamedMetrics())+2)
	maps.Copy(out, m.GetUtilization())
	maps.Copy(out, m.GetNamedMetrics())
	for name, v := range map[string]float64{
		"mem_utilization": m.GetMemUtilization(), "application_utilization": m.GetApplicationUtilization(),
	} {
		if v > 0 {
			out[name] = v
		}
	}
	return out
}
