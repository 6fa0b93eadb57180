package replica

import (
	"math"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// encode is an item's notice; marks are those of all items.
func (x *item) encode(marks []uint64) *replicav1.Notice {
	switch {
	case x.isGateway:
		return &replicav1.Notice{What: &replicav1.Notice_Gateway{Gateway: &replicav1.Gateway{
			Gateway: x.gateway, Incarnation: x.life, Closed: x.isClosed,
		}}}
	case x.booked.Decision != 0:
		return &replicav1.Notice{What: &replicav1.Notice_Booked{Booked: encodeBooked(&x.booked, marks[x.from:x.to])}}
	case x.event.Decision != 0:
		return &replicav1.Notice{What: &replicav1.Notice_Stepped{Stepped: encodeStepped(&x.event)}}
	default:
		return &replicav1.Notice{What: &replicav1.Notice_Sampled{Sampled: &replicav1.Sampled{
			Worker: x.sampled.Worker, DpRank: uint32(x.sampled.Rank), Incarnation: x.sampled.Incarnation, Sample: encodeSample(&x.sampled.Sample),
		}}}
	}
}

// size is a bound on the bytes of it.
func (x *item) size() int {
	const fields = 160
	return fields + 8*(x.to-x.from) + len(x.booked.Worker) + len(x.booked.RequestID) + len(x.event.Worker) + len(x.event.Gateway) +
		len(x.sampled.Worker) + len(x.gateway)
}

func encodeBooked(b *oracle.Booked, marks []uint64) *replicav1.Booked {
	return &replicav1.Booked{
		Decision: uint64(b.Decision), Worker: b.Worker, DpRank: uint32(b.Rank), Incarnation: b.Incarnation, RequestId: b.RequestID,
		PromptTokens: count32(b.PromptTokens), UncachedTokens: count32(b.UncachedTokens), SharedTokens: count32(b.SharedTokens),
		ExpectedOutput: count32(b.ExpectedOutput), PrefillSeconds: b.PrefillSeconds, DecodeSeconds: b.DecodeSeconds,
		Decoding: b.Decoding, ReadTokens: b.ReadTokens, TransferSeconds: b.Transfer,
		Marks: marks, MarkTokens: count32(b.MarkTokens), CoveredTokens: count32(b.Covered),
	}
}

// decodeBooked reads one. The oracle brings the numbers into range and looks the names up.
func decodeBooked(m *replicav1.Booked) (b oracle.Booked, ok bool) {
	for _, v := range []float64{m.GetPrefillSeconds(), m.GetDecodeSeconds(), float64(m.GetDecoding()), float64(m.GetReadTokens()), float64(m.GetTransferSeconds())} {
		if !(v >= 0 && v < math.MaxFloat32) {
			return oracle.Booked{}, false
		}
	}
	if m.GetDecision() == 0 || !isName(m.GetWorker()) || m.GetDpRank() >= maxRanks || len(m.GetRequestId()) > maxRequest || len(m.GetMarks()) > maxMarks {
		return oracle.Booked{}, false
	}
	return oracle.Booked{
		Decision: oracle.DecisionID(m.GetDecision()), Worker: m.GetWorker(), Rank: int(m.GetDpRank()), Incarnation: m.GetIncarnation(),
		RequestID: m.GetRequestId(), PromptTokens: int(m.GetPromptTokens()), UncachedTokens: int(m.GetUncachedTokens()),
		SharedTokens: int(m.GetSharedTokens()), ExpectedOutput: int(m.GetExpectedOutput()), PrefillSeconds: m.GetPrefillSeconds(),
		DecodeSeconds: m.GetDecodeSeconds(),
		Decoding:      m.GetDecoding(), ReadTokens: m.GetReadTokens(), Transfer: m.GetTransferSeconds(),
		Marks: m.GetMarks(), MarkTokens: int(m.GetMarkTokens()), Covered: int(m.GetCoveredTokens()),
	}, true
}

// maxRequest is the longest name of a request.
const maxRequest = 1024

func isName(s string) bool { return len(s) >= 1 && len(s) <= maxWorker }

func encodeStepped(e *oracle.Event) *replicav1.Stepped {
	m := &replicav1.Stepped{
		Decision: uint64(e.Decision), Step: replicav1.Step(e.Step) + replicav1.Step_STEP_DISPATCHED, Gateway: e.Gateway,
		Worker: e.Worker, DpRank: uint32(e.Rank), TtftSeconds: e.TTFT, OutputTokens: count32(e.OutputTokens), PromptTokens: count32(e.PromptTokens),
		Inferred: e.IsInferred,
	}
	if e.Cached >= 0 {
		v := count32(e.Cached)
		m.CachedTokens = &v
	}
	return m
}

func decodeStepped(m *replicav1.Stepped) (*oracle.Event, bool) {
	if m.GetDecision() == 0 || m.GetStep() < replicav1.Step_STEP_DISPATCHED || m.GetStep() > replicav1.Step_STEP_FAILED ||
		len(m.GetGateway()) > maxWorker || len(m.GetWorker()) > maxWorker || m.GetDpRank() >= maxRanks ||
		!(m.GetTtftSeconds() >= 0 && m.GetTtftSeconds() < math.MaxFloat32) {
		return nil, false
	}
	e := &oracle.Event{
		Decision: oracle.DecisionID(m.GetDecision()), Step: oracle.Step(m.GetStep() - replicav1.Step_STEP_DISPATCHED), Gateway: m.GetGateway(),
		Worker: m.GetWorker(), Rank: int(m.GetDpRank()), TTFT: m.GetTtftSeconds(), OutputTokens: int(m.GetOutputTokens()),
		Cached: -1, PromptTokens: int(m.GetPromptTokens()), IsInferred: m.GetInferred(),
	}
	if m.CachedTokens != nil {
		e.Cached = int(m.GetCachedTokens())
	}
	return e, true
}

func encodeSample(s *oracle.Sample) *kvoraclev1.LoadSample {
	return &kvoraclev1.LoadSample{
		RunningRequests: gauge(s.Running, count32), WaitingRequests: gauge(s.Waiting, count32),
		WaitingPrefillTokens: gauge(s.WaitingPrefillTokens, count64), UsedBlocks: gauge(s.UsedBlocks, count64), TotalBlocks: gauge(s.TotalBlocks, count64),
		SampledAtUnixNanos: uint64(max(s.SampledAt, 0)),
	}
}

// gauge is what the engine said, in the form that count gives; nil: nothing.
func gauge[V any](g oracle.Gauge, count func(int) V) *V {
	if !g.Known {
		return nil
	}
	v := count(g.Value)
	return &v
}

func decodeSampled(m *replicav1.Sampled) (oracle.Sampled, bool) {
	if !isName(m.GetWorker()) || m.GetDpRank() >= maxRanks || m.GetSample() == nil {
		return oracle.Sampled{}, false
	}
	return oracle.Sampled{
		Worker: m.GetWorker(), Rank: int(m.GetDpRank()), Incarnation: m.GetIncarnation(), Sample: wire.DecodeSample(m.GetSample()),
	}, true
}

func count32(v int) uint32 { return uint32(min(max(v, 0), math.MaxInt32)) }

func count64(v int) uint64 { return uint64(max(v, 0)) }
