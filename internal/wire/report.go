package wire

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// DecodeLoadHello checks the first message of a load stream.
func DecodeLoadHello(m *kvoraclev1.LoadHello) (worker string, rank int, incarnation uint64, err error) {
	t := m.GetTarget()
	if err := name("hello.target.worker_id", t.GetWorkerId(), maxName, true); err != nil {
		return "", 0, 0, err
	}
	return t.GetWorkerId(), int(t.GetDpRank()), m.GetIncarnation(), nil
}

// DecodeSample turns gauges into the oracle's form: absent is not zero, absurd is cut.
func DecodeSample(m *kvoraclev1.LoadSample) oracle.Sample {
	return oracle.Sample{
		SampledAt:            int64(min(m.GetSampledAtUnixNanos(), math.MaxInt64)),
		Running:              gauge32(m.RunningRequests),
		Waiting:              gauge32(m.WaitingRequests),
		WaitingPrefillTokens: gauge64(m.WaitingPrefillTokens),
		UsedBlocks:           gauge64(m.UsedBlocks),
		TotalBlocks:          gauge64(m.TotalBlocks),
	}
}

func gauge32(v *uint32) oracle.Gauge {
	if v == nil {
		return oracle.Gauge{}
	}
	return oracle.Known(int(*v))
}

func gauge64(v *uint64) oracle.Gauge {
	if v == nil {
		return oracle.Gauge{}
	}
	return oracle.Known(int(min(*v, math.MaxInt32)))
}

// EncodeBelief tells a reporter what is believed now.
func EncodeBelief(b oracle.Belief, applied, ignored uint64) *kvoraclev1.ReportLoadResponse {
	return &kvoraclev1.ReportLoadResponse{
		AppliedSamples:                applied,
		IgnoredSamples:                ignored,
		BelievedInFlight:              uint32(b.InFlight),
		BookedRequests:                uint32(b.Booked),
		BelievedPendingPrefillSeconds: b.PendingPrefillSeconds,
	}
}

// DecodeProgressHello checks the first message of a progress stream.
func DecodeProgressHello(m *kvoraclev1.ProgressHello) (gateway string, incarnation uint64, err error) {
	if err := name("hello.gateway_id", m.GetGatewayId(), maxName, true); err != nil {
		return "", 0, err
	}
	return m.GetGatewayId(), m.GetIncarnation(), nil
}

// CheckRecordProgress bounds a call's events.
func CheckRecordProgress(m *kvoraclev1.RecordProgressRequest) error {
	if n := len(m.GetEvents()); n < 1 || n > maxEvents {
		return invalid("events", strconv.Itoa(n)+" events", "want 1 to "+strconv.Itoa(maxEvents))
	}
	return nil
}

// DecodeEvent checks one step of a request. prefix is the path of the event's field.
func DecodeEvent(m *kvoraclev1.ProgressEvent, gateway, prefix string) (*oracle.Event, error) {
	if m.GetDecisionId() == "" {
		return nil, missing(prefix + ".decision_id")
	}
	// A name that no decision can have is an unknown decision like any other: zero is never given out.
	id, _ := ParseDecisionID(m.GetDecisionId())
	e := &oracle.Event{Decision: id, Gateway: gateway, Cached: -1}
	switch s := m.GetStep().(type) {
	case *kvoraclev1.ProgressEvent_Dispatched:
		e.Step = oracle.Dispatched
		if t := s.Dispatched.GetTarget(); t != nil {
			if err := name(prefix+".dispatched.target.worker_id", t.GetWorkerId(), maxName, true); err != nil {
				return nil, err
			}
			e.Worker, e.Rank = t.GetWorkerId(), int(t.GetDpRank())
		}
	case *kvoraclev1.ProgressEvent_FirstToken:
		v := s.FirstToken.GetTtftSeconds()
		if !(v >= 0 && v <= maxSeconds) {
			return nil, invalid(prefix+".first_token.ttft_seconds", fmt.Sprint(v), fmt.Sprintf("want 0 to %d", maxSeconds))
		}
		e.Step, e.TTFT = oracle.FirstToken, v
	case *kvoraclev1.ProgressEvent_Generating:
		e.Step, e.OutputTokens = oracle.Generating, int(s.Generating.GetOutputTokens())
	case *kvoraclev1.ProgressEvent_Finished:
		e.Step, e.OutputTokens = oracle.Finished, int(s.Finished.GetOutputTokens())
		if c := s.Finished.CachedTokens; c != nil {
			e.Cached = int(min(*c, math.MaxInt32))
		}
		e.PromptTokens = int(min(s.Finished.GetPromptTokens(), math.MaxInt32))
	case *kvoraclev1.ProgressEvent_Cancelled:
		e.Step = oracle.Cancelled
	case *kvoraclev1.ProgressEvent_Failed:
		e.Step = oracle.Failed
		if err := name(prefix+".failed.reason", s.Failed.GetReason(), maxDetail, false); err != nil {
			return nil, err
		}
	default:
		return nil, missing(prefix + ".step")
	}
	return e, nil
}

// WorkerName checks a worker's name in a request about it.
func WorkerName(v string) error { return name("worker_id", v, maxName, true) }

// ModelName checks an optional model filter.
func ModelName(v string) error { return name("model", v, maxName, false) }

// EncodeWorker shows one worker with its ranks.
func EncodeWorker(w *oracle.WorkerStatus) *kvoraclev1.Worker {
	m := &kvoraclev1.Worker{
		Spec:         encodeSpec(&w.Spec),
		State:        workerState(w.State()),
		Incarnation:  w.Incarnation,
		RegisteredAt: timestamp(w.RegisteredAt),
	}
	for i := range w.Ranks {
		r := &w.Ranks[i]
		age := -1.0
		if r.BlocksAge >= 0 {
			age = r.BlocksAge.Seconds()
		}
		loadAge := -1.0
		if r.Load.ReportAge >= 0 {
			loadAge = r.Load.ReportAge.Seconds()
		}
		m.Ranks = append(m.Ranks, &kvoraclev1.RankStatus{
			DpRank:                uint32(i),
			Confidence:            confidence(r.Blocks, r.Load.Confidence),
			DeviceBlocks:          uint64(r.Held[fleet.Device]),
			HostBlocks:            uint64(r.Held[fleet.Host]),
			DiskBlocks:            uint64(r.Held[fleet.Disk]),
			SharedBlocks:          uint64(r.Held[fleet.Shared]),
			AppliedSequence:       r.Applied,
			InFlight:              uint32(r.Load.InFlight),
			BookedRequests:        uint32(r.Load.Booked),
			PendingPrefillSeconds: r.Load.PendingPrefillSeconds,
			BlocksAgeSeconds:      age,
			LoadAgeSeconds:        loadAge,
			Decisions:             r.Decisions,
			Costs: &kvoraclev1.Costs{
				PrefillSecondsPerToken:        r.Cost.PrefillPerToken,
				PrefillSecondsPerTokenContext: r.Cost.PrefillPerTokenContext,
				IterationFixedSeconds:         r.Cost.IterationFixed,
				IterationLeastSeconds:         r.Cost.IterationBase,
				DecodeSecondsPerKvToken:       r.Cost.DecodePerKVToken,
				Samples:                       r.Learned,
				Error:                         r.CostError,
			},
			Unmatched:     r.Unmatched,
			MatchedTokens: r.Matched,
			CachedTokens:  r.Cached,
		})
	}
	return m
}

// EncodeView cuts a rank's contents into messages of a few hundred kB.
func EncodeView(v *oracle.View) []*kvoraclev1.VerifyWorkerResponse {
	const most = 32_768
	var parts []*kvoraclev1.VerifyWorkerResponse
	for t, ids := range v.IDs {
		for chunk := range slices.Chunk(ids, most) {
			part := &kvoraclev1.VerifyWorkerResponse{Tier: kvoraclev1.Tier(t + 1), BlockIds: make([]uint64, len(chunk))}
			for i, id := range chunk {
				part.BlockIds[i] = uint64(id)
			}
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		parts = append(parts, &kvoraclev1.VerifyWorkerResponse{Tier: kvoraclev1.Tier_TIER_DEVICE})
	}
	for _, part := range parts {
		part.AppliedSequence, part.Confidence = v.Applied, BlockConfidence(v.Confidence)
	}
	return parts
}

func encodeSpec(s *fleet.Spec) *kvoraclev1.WorkerSpec {
	m := &kvoraclev1.WorkerSpec{
		WorkerId: s.Worker, Address: s.Address, Model: s.Model, BlockSize: uint32(s.BlockSize), DpSize: uint32(s.DPSize),
		Labels: s.Labels, MaxRunningRequests: uint32(s.MaxRunning), MaxRequests: uint32(s.MaxRequests), PerformanceClass: s.Class,
	}
	for _, r := range []struct {
		in  fleet.Roles
		out kvoraclev1.Role
	}{
		{fleet.Aggregated, kvoraclev1.Role_ROLE_AGGREGATED},
		{fleet.Prefill, kvoraclev1.Role_ROLE_PREFILL},
		{fleet.Decode, kvoraclev1.Role_ROLE_DECODE},
	} {
		if s.Roles&r.in != 0 {
			m.Roles = append(m.Roles, r.out)
		}
	}
	for t, blocks := range s.Capacity {
		if blocks > 0 {
			m.Capacities = append(m.Capacities, &kvoraclev1.TierCapacity{Tier: kvoraclev1.Tier(t + 1), Blocks: blocks})
		}
	}
	return m
}

func workerState(s fleet.State) kvoraclev1.WorkerState {
	switch s {
	case fleet.Ready:
		return kvoraclev1.WorkerState_WORKER_STATE_READY
	case fleet.Draining:
		return kvoraclev1.WorkerState_WORKER_STATE_DRAINING
	case fleet.Lost:
		return kvoraclev1.WorkerState_WORKER_STATE_LOST
	default:
		return kvoraclev1.WorkerState_WORKER_STATE_UNSPECIFIED
	}
}
