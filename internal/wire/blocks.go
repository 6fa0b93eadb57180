package wire

import (
	"fmt"
	"math"
	"strconv"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// DecodeSpec checks what a worker says about itself. prefix is the path of the field, e.g. "hello.worker".
func DecodeSpec(m *kvoraclev1.WorkerSpec, prefix string) (fleet.Spec, error) {
	if m == nil {
		return fleet.Spec{}, precondition(prefix)
	}
	p := prefix + "."
	switch {
	case m.GetWorkerId() == "":
		return fleet.Spec{}, precondition(p + "worker_id")
	case m.GetModel() == "":
		return fleet.Spec{}, precondition(p + "model")
	}
	for _, c := range []struct {
		field, v string
		most     int
	}{
		{"worker_id", m.GetWorkerId(), maxName},
		{"model", m.GetModel(), maxName},
		{"address", m.GetAddress(), maxAddress},
		{"performance_class", m.GetPerformanceClass(), maxName},
	} {
		if err := name(p+c.field, c.v, c.most, false); err != nil {
			return fleet.Spec{}, err
		}
	}
	if err := blockSize(p+"block_size", m.GetBlockSize()); err != nil {
		return fleet.Spec{}, err
	}
	if m.GetDpSize() > maxRanks {
		return fleet.Spec{}, invalid(p+"dp_size", fmt.Sprint(m.GetDpSize()), fmt.Sprintf("want at most %d", maxRanks))
	}
	if err := labels(p+"labels", m.GetLabels()); err != nil {
		return fleet.Spec{}, err
	}
	for field, v := range map[string]uint32{"max_running_requests": m.GetMaxRunningRequests(), "max_requests": m.GetMaxRequests()} {
		if v > maxRequestsCap {
			return fleet.Spec{}, invalid(p+field, fmt.Sprint(v), fmt.Sprintf("want at most %d", maxRequestsCap))
		}
	}
	s := fleet.Spec{
		Worker: m.GetWorkerId(), Address: m.GetAddress(), Model: m.GetModel(),
		BlockSize: int(m.GetBlockSize()), DPSize: max(1, int(m.GetDpSize())), Labels: m.GetLabels(),
		MaxRunning: int(m.GetMaxRunningRequests()), MaxRequests: int(m.GetMaxRequests()), Class: m.GetPerformanceClass(),
	}
	for _, r := range m.GetRoles() {
		switch r {
		case kvoraclev1.Role_ROLE_UNSPECIFIED, kvoraclev1.Role_ROLE_AGGREGATED:
			s.Roles |= fleet.Aggregated
		case kvoraclev1.Role_ROLE_PREFILL:
			s.Roles |= fleet.Prefill
		case kvoraclev1.Role_ROLE_DECODE:
			s.Roles |= fleet.Decode
		default:
			return fleet.Spec{}, invalid(p+"roles", fmt.Sprint(int32(r)), "want known Roles")
		}
	}
	var seen [fleet.NumTiers]bool
	for _, c := range m.GetCapacities() {
		t, ok := tier(c.GetTier())
		if !ok || seen[t] {
			return fleet.Spec{}, invalid(p+"capacities", c.GetTier().String(), "want each known tier at most once")
		}
		seen[t] = true
		s.Capacity[t] = c.GetBlocks()
	}
	return s, nil
}

func precondition(field string) error {
	return oracle.Fault(oracle.FailedPrecondition, oracle.ReasonFieldMissing, field, "", "is required")
}

// DecodeHello checks the first message of a block stream.
func DecodeHello(m *kvoraclev1.BlocksHello) (*oracle.Hello, error) {
	spec, err := DecodeSpec(m.GetWorker(), "hello.worker")
	if err != nil {
		return nil, err
	}
	h := &oracle.Hello{
		Spec: spec, Rank: int(m.GetDpRank()), Incarnation: m.GetIncarnation(), NextSequence: m.GetNextSequence(),
		EngineHashes: m.GetEngineHashes(),
	}
	switch {
	case h.Rank >= spec.DPSize:
		return nil, oracle.Fault(oracle.FailedPrecondition, oracle.ReasonFieldInvalid, "hello.dp_rank", strconv.Itoa(h.Rank),
			"want a rank below hello.worker.dp_size, "+strconv.Itoa(spec.DPSize))
	case h.Incarnation == 0:
		return nil, precondition("hello.incarnation")
	case h.NextSequence == 0:
		return nil, precondition("hello.next_sequence")
	}
	if h.Roots, err = decodeRoots(m); err != nil {
		return nil, err
	}
	if err := decodeGroups(m, h); err != nil {
		return nil, err
	}
	if err := scheme("hello.hash_scheme", m.GetHashScheme()); err != nil {
		return nil, err
	}
	switch m.GetRepeats() {
	case kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET:
	case kvoraclev1.RepeatMeaning_REPEAT_MEANING_COUNTED:
		h.Counted = true
	case kvoraclev1.RepeatMeaning_REPEAT_MEANING_UNSPECIFIED:
		return nil, precondition("hello.repeats")
	default:
		return nil, invalid("hello.repeats", fmt.Sprint(int32(m.GetRepeats())), "want SET or COUNTED")
	}
	return h, nil
}

// EncodeAccepted answers a hello.
func EncodeAccepted(a oracle.Accepted, l Limits) *kvoraclev1.ReportBlocksResponse {
	return &kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_Accepted{Accepted: &kvoraclev1.BlocksAccepted{
		ResumeFrom:       a.ResumeFrom,
		SnapshotRequired: a.SnapshotRequired,
		Confidence:       BlockConfidence(a.Confidence),
		MaxMessageBytes:  uint32(min(l.WithDefaults().MaxMessageBytes, math.MaxInt32)),
	}}}
}

// EncodeResync asks for a snapshot.
func EncodeResync(r *oracle.Resync) *kvoraclev1.ReportBlocksResponse {
	return &kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_Resync{Resync: &kvoraclev1.ResyncRequest{
		Reason: kvoraclev1.ResyncReason(r.Reason), ExpectedSequence: r.Expected, ReceivedSequence: r.Received,
	}}}
}
