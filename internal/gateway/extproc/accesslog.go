package extproc

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// LogName is the name of the access log's service.
const LogName = "envoy.service.accesslog.v3.AccessLogService"

// A picker's calls carry this in their gRPC metadata (grpc_service.initial_metadata) where Envoy's access log comes here too,
// and tells the end of each request.
const (
	keyEndsBy = "x-kvoracle-ends-by"
	byLog     = "access-log"
)

func endsByLog(ctx context.Context) bool {
	v := metadata.ValueFromIncomingContext(ctx, keyEndsBy)
	return len(v) > 0 && v[0] == byLog
}

// Entry is what became of an entry of an access log. Each has one.
type Entry uint8

// What becomes of entries.
const (
	EntryEnded   Entry = iota // it has ended a booking
	EntryAlive                // of a request under way: its booking lives on
	EntryUnknown              // its decision is not known: over already, or another replica's where those are not told of each other
	EntryForeign              // of a request for which nothing was booked
	EntryLost                 // none: a booking was given up since none came for it

	numEntries
)

// Entries lists all of them.
func Entries() []Entry {
	out := make([]Entry, numEntries)
	for i := range out {
		out[i] = Entry(i)
	}
	return out
}

// String gives the name in metrics.
func (e Entry) String() string {
	switch e {
	case EntryEnded:
		return "ended"
	case EntryAlive:
		return "alive"
	case EntryUnknown:
		return "unknown"
	case EntryForeign:
		return "foreign"
	case EntryLost:
		return "lost"
	default:
		return "invalid"
	}
}

// logs is the access log's service.
type logs struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	s *Service
}

// StreamAccessLogs implements the service: Envoy keeps one stream open and never ends it, so it is left when its context ends.
func (l logs) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	ended := make(chan error, 1)
	go func() { ended <- l.s.cfg.Guard(stream.Context(), func() error { return l.s.readLog(stream) }) }()
	select {
	case err := <-ended:
		return err
	case <-stream.Context().Done():
		return nil // what waits for a message is ended by our return
	}
}

func (s *Service) readLog(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&accesslogv3.StreamAccessLogsResponse{})
		}
		if err != nil {
			return err
		}
		now := time.Now()
		for _, e := range m.GetHttpLogs().GetLogEntry() {
			s.cfg.Observer.Logged(s.entry(e, now))
		}
	}
}

// entry takes one entry.
func (s *Service) entry(e *accesslogdatav3.HTTPAccessLogEntry, now time.Time) Entry {
	c := e.GetCommonProperties()
	name := decisionIn(c.GetMetadata())
	l := s.find(name)
	if name == "" { // nothing was decided, or it has not heard what: then whoever has served it is not whom we chose
		if l = s.findRequest(e.GetRequest().GetRequestId()); l == nil {
			return EntryForeign
		}
	}
	isEnd := c.GetAccessLogType() == accesslogdatav3.AccessLogType_NotSet || c.GetAccessLogType() == accesslogdatav3.AccessLogType_DownstreamEnd
	if l == nil {
		return s.passOn(name, e, isEnd, now)
	}
	served := hostPort(c.GetUpstreamRemoteAddress())
	switch { // all other types come while it goes on
	case isEnd && l.logged(served, ending(e), s.firstByte(e), now):
		return EntryEnded
	case !isEnd && l.goesOn(served, now):
		return EntryAlive
	default:
		return EntryUnknown
	}
}

// passOn tells the oracle, and it the other replicas, of a decision that was not made by this one. Who has served it is not told: its
// targets are not known here.
func (s *Service) passOn(name string, e *accesslogdatav3.HTTPAccessLogEntry, isEnd bool, now time.Time) Entry {
	id, err := strconv.ParseUint(name, 16, 64)
	if err != nil || !s.cfg.HasReplicas {
		return EntryUnknown
	}
	step, as := oracle.Generating, EntryAlive
	if isEnd {
		step, as = ending(e), EntryEnded
		if ttft := s.firstByte(e); ttft > 0 {
			_, _ = s.cfg.Oracle.Progress(&oracle.Event{Decision: oracle.DecisionID(id), Step: oracle.FirstToken, TTFT: ttft.Seconds(), Cached: -1}, now)
		}
	}
	if out, err := s.cfg.Oracle.Progress(&oracle.Event{Decision: oracle.DecisionID(id), Step: step, Cached: -1}, now); err != nil || out != oracle.Applied {
		return EntryUnknown
	}
	return as
}

// ending says how a request has ended.
func ending(e *accesslogdatav3.HTTPAccessLogEntry) oracle.Step {
	code := e.GetResponse().GetResponseCode().GetValue()
	f := e.GetCommonProperties().GetResponseFlags()
	switch {
	case f.GetDownstreamConnectionTermination(), f.GetDownstreamRemoteReset(), f.GetDownstreamProtocolError():
		return oracle.Cancelled // its client has left, or has never sent all of it
	case code >= 500,
		// An answer that had begun well and was cut.
		f.GetUpstreamRemoteReset(), f.GetUpstreamConnectionTermination(), f.GetUpstreamConnectionFailure(),
		f.GetUpstreamRequestTimeout(), f.GetUpstreamProtocolError(), f.GetUpstreamMaxStreamDurationReached(),
		f.GetStreamIdleTimeout(), f.GetDurationTimeout(), f.GetLocalReset(), f.GetOverloadManager():
		return oracle.Failed
	case code >= 300, code == 0: // refused: nothing was computed
		return oracle.Cancelled
	default:
		return oracle.Finished
	}
}

// firstByte is how long the engine took to its first byte, or 0 where that is not known to be a token.
func (s *Service) firstByte(e *accesslogdatav3.HTTPAccessLogEntry) time.Duration {
	if !s.cfg.FirstByteIsToken || !isEventStream(e.GetResponse().GetResponseHeaders()["content-type"]) {
		return 0
	}
	c := e.GetCommonProperties()
	rx, tx := c.GetTimeToFirstUpstreamRxByte(), c.GetTimeToFirstUpstreamTxByte()
	if rx == nil || rx.CheckValid() != nil || tx.CheckValid() != nil {
		return 0
	}
	return max(rx.AsDuration()-tx.AsDuration(), 0)
}

func isEventStream(contentType string) bool {
	return strings.HasPrefix(contentType, "text/event-stream")
}

// hostPort is an address as the load balancer writes it; empty: not known.
func hostPort(a *corev3.Address) string {
	s := a.GetSocketAddress()
	if s.GetAddress() == "" {
		return ""
	}
	return net.JoinHostPort(s.GetAddress(), strconv.FormatUint(uint64(s.GetPortValue()), 10))
}
