package script

import (
	"fmt"
	"sort"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// refusal prints an error of the oracle; one of the transport stays an error.
func refusal(err error) (string, error) {
	st := status.Convert(err)
	var info *errdetails.ErrorInfo
	for _, d := range st.Details() {
		if x, ok := d.(*errdetails.ErrorInfo); ok {
			info = x
		}
	}
	if info == nil {
		return "", err
	}
	out := fmt.Sprintf("error %s %s", strings.ToUpper(snake(st.Code())), info.GetReason())
	if f := info.GetMetadata()["field"]; f != "" {
		out += " " + f
	}
	return out + "\n", nil
}

// snake writes a code as the gRPC documents do: INVALID_ARGUMENT for InvalidArgument.
func snake(c codes.Code) string {
	var b strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return b.String()
}

func word(enum, prefix string) string { return strings.ToLower(strings.TrimPrefix(enum, prefix)) }

// printAck shows how far the stream is and which counters grew.
func printAck(a *kvoraclev1.BlocksAck, before *kvoraclev1.BlockCounters) string {
	var out strings.Builder
	out.WriteString(fmt.Sprintf("ack s%d %s held=%d", a.GetAppliedSequence(), word(a.GetConfidence().String(), "BLOCK_CONFIDENCE_"), a.GetHeldBlocks()))
	c := a.GetCounters()
	for _, x := range []struct {
		name     string
		now, was uint64
	}{
		{"stored", c.GetStored(), before.GetStored()},
		{"repeated", c.GetRepeatedStores(), before.GetRepeatedStores()},
		{"removed", c.GetRemoved(), before.GetRemoved()},
		{"unknown_removals", c.GetUnknownRemovals(), before.GetUnknownRemovals()},
		{"orphans", c.GetOrphans(), before.GetOrphans()},
		{"refused", c.GetRefusedOps(), before.GetRefusedOps()},
		{"duplicates", c.GetDuplicateBatches(), before.GetDuplicateBatches()},
		{"gaps", c.GetGaps(), before.GetGaps()},
		{"ignored", c.GetIgnoredBatches(), before.GetIgnoredBatches()},
		{"digests_matched", c.GetDigestsMatched(), before.GetDigestsMatched()},
		{"digests_mismatched", c.GetDigestsMismatched(), before.GetDigestsMismatched()},
		{"digests_skipped", c.GetDigestsSkipped(), before.GetDigestsSkipped()},
		{"snapshots", c.GetSnapshots(), before.GetSnapshots()},
		{"other_group", c.GetOtherGroupOps(), before.GetOtherGroupOps()},
		{"evicted", c.GetEvicted(), before.GetEvicted()},
	} {
		if x.now != x.was {
			out.WriteString(fmt.Sprintf(" %s=%d", x.name, x.now-x.was))
		}
	}
	for _, r := range a.GetRefusals() {
		out.WriteString(fmt.Sprintf("\nrefused op %d: %s", r.GetOp(), word(r.GetReason().String(), "REFUSAL_REASON_")))
	}
	return out.String() + "\n"
}

func printResync(r *kvoraclev1.ResyncRequest) string {
	return fmt.Sprintf("resync %s expected=%d received=%d\n",
		word(r.GetReason().String(), "RESYNC_REASON_"), r.GetExpectedSequence(), r.GetReceivedSequence())
}

func total(t *kvoraclev1.TokensByTier) uint64 {
	return t.GetDevice() + t.GetHost() + t.GetDisk() + t.GetShared()
}

func (r *Runner) label(t *kvoraclev1.Target) string {
	if r.worker(t.GetWorkerId()).dp > 1 {
		return fmt.Sprintf("%s/r%d", t.GetWorkerId(), t.GetDpRank())
	}
	return t.GetWorkerId()
}

// printChoice shows the target, the blocks it holds and what decided.
func (r *Runner) printChoice(m *kvoraclev1.RouteResponse) string {
	out := "-> "
	if p := m.GetPrefillTarget(); p != nil {
		out += fmt.Sprintf("%s(%d)", r.label(p), total(m.GetPrefillMatched())/uint64(r.worker(p.GetWorkerId()).size))
		if b := m.GetPrefillConfidence().GetBlocks(); b != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH {
			out += ":" + word(b.String(), "BLOCK_CONFIDENCE_")
		}
		out += " > "
	}
	out += fmt.Sprintf("%s(%d) %s", r.label(m.GetTarget()), total(m.GetMatched())/uint64(r.worker(m.GetTarget().GetWorkerId()).size),
		word(m.GetReason().String(), "CHOICE_REASON_"))
	if c := m.GetConfidence().GetBlocks(); c != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH {
		out += " " + word(c.String(), "BLOCK_CONFIDENCE_")
	}
	if m.GetConfidence().GetLoad() == kvoraclev1.LoadConfidence_LOAD_CONFIDENCE_IMPUTED {
		out += " load_imputed"
	}
	switch m.GetSession() {
	case kvoraclev1.SessionOutcome_SESSION_OUTCOME_MOVED:
		out += " session_moved"
	case kvoraclev1.SessionOutcome_SESSION_OUTCOME_WORKER_GONE:
		out += " session_worker_gone"
	case kvoraclev1.SessionOutcome_SESSION_OUTCOME_STAYED, kvoraclev1.SessionOutcome_SESSION_OUTCOME_UNSPECIFIED:
	}
	if m.GetRepeatedDecision() {
		out += " repeated"
	}
	return out + "\n"
}

// printAlternatives shows the runners-up in order, a line each, with what is known of them.
func (r *Runner) printAlternatives(m *kvoraclev1.RouteResponse) string {
	var out strings.Builder
	known := func(c *kvoraclev1.Confidence) string {
		return ":" + word(c.GetBlocks().String(), "BLOCK_CONFIDENCE_") + "," + word(c.GetLoad().String(), "LOAD_CONFIDENCE_")
	}
	for _, a := range m.GetAlternatives() {
		out.WriteString("else ")
		if p := a.GetPrefillTarget(); p != nil {
			out.WriteString(r.label(p) + known(a.GetPrefillConfidence()) + " > ")
		}
		t := a.GetTarget()
		fmt.Fprintf(&out, "%s(%d)%s\n", r.label(t), total(a.GetMatched())/uint64(r.worker(t.GetWorkerId()).size), known(a.GetConfidence()))
	}
	return out.String()
}

// printOverlap shows the blocks each candidate holds, in order of names, and why the others are none; with guesses, also
// those it is expected to hold beyond them.
func (r *Runner) printOverlap(m *kvoraclev1.RouteResponse, guesses bool) string {
	var parts []string
	for _, c := range m.GetCandidates() {
		label := r.label(c.GetTarget())
		if c.GetExcluded() != kvoraclev1.ExclusionReason_EXCLUSION_REASON_UNSPECIFIED {
			parts = append(parts, label+"=excluded:"+word(c.GetExcluded().String(), "EXCLUSION_REASON_"))
			continue
		}
		size := uint64(r.worker(c.GetTarget().GetWorkerId()).size)
		part := fmt.Sprintf("%s=%d", label, total(c.GetMatched())/size)
		h := c.GetMatched()
		if h.GetHost()+h.GetDisk()+h.GetShared() > 0 {
			part += fmt.Sprintf("(device %d, host %d, disk %d, shared %d)", h.GetDevice()/size, h.GetHost()/size, h.GetDisk()/size, h.GetShared()/size)
		}
		if guesses {
			part += fmt.Sprintf("+%d", c.GetExpectedTokens()/size)
		}
		if b := c.GetConfidence().GetBlocks(); b != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH {
			part += ":" + word(b.String(), "BLOCK_CONFIDENCE_")
		}
		parts = append(parts, part)
	}
	sort.Strings(parts)
	return strings.Join(parts, " ") + "\n"
}

// printLoad shows what is believed of a rank's load. How much prefill is pending changes by the clock, so only whether any is.
func printLoad(k *kvoraclev1.RankStatus, prefill bool) string {
	pending := ""
	if prefill {
		pending = " prefill=none"
		if k.GetPendingPrefillSeconds() > 0 {
			pending = " prefill=pending"
		}
	}
	return fmt.Sprintf("in_flight=%d booked=%d%s %s\n", k.GetInFlight(), k.GetBookedRequests(), pending,
		word(k.GetConfidence().GetLoad().String(), "LOAD_CONFIDENCE_"))
}

func printWorkers(ws []*kvoraclev1.Worker) string {
	var b strings.Builder
	for _, w := range ws {
		fmt.Fprintf(&b, "%s e%d %s", w.GetSpec().GetWorkerId(), w.GetIncarnation(), word(w.GetState().String(), "WORKER_STATE_"))
		for _, k := range w.GetRanks() {
			fmt.Fprintf(&b, " r%d:%s,s%d,held=%d,in_flight=%d", k.GetDpRank(),
				word(k.GetConfidence().GetBlocks().String(), "BLOCK_CONFIDENCE_"), k.GetAppliedSequence(),
				k.GetDeviceBlocks()+k.GetHostBlocks()+k.GetDiskBlocks()+k.GetSharedBlocks(), k.GetInFlight())
		}
		b.WriteByte('\n')
	}
	if len(ws) == 0 {
		return "no workers\n"
	}
	return b.String()
}
