package wire

import (
	"fmt"
	"strconv"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

const defaultAlternatives = 2

// DecodeRoute checks a question and turns it into the oracle's form.
func DecodeRoute(m *kvoraclev1.RouteRequest, l Limits) (*oracle.RouteRequest, error) {
	r := &oracle.RouteRequest{}
	if err := decodeRoute(m, packedPrompt{}, l, r); err != nil {
		return nil, err
	}
	return r, nil
}

// decodeRoute fills r. The prompt's array may have been left where it was received.
func decodeRoute(m *kvoraclev1.RouteRequest, packed packedPrompt, l Limits, r *oracle.RouteRequest) error {
	if m == nil {
		return missing("request")
	}
	*r = oracle.RouteRequest{
		RequestID:       m.GetRequestId(),
		Model:           m.GetModel(),
		LoRAName:        m.GetLora().GetName(),
		LoRARevision:    m.GetLora().GetRevision(),
		CacheSalt:       m.GetCacheSalt(),
		ExpectedOutput:  int(m.GetExpectedOutputTokens()),
		Session:         m.GetSessionId(),
		Allowed:         m.GetAllowedWorkers(),
		Denied:          m.GetDeniedWorkers(),
		Labels:          m.GetRequiredLabels(),
		Explain:         m.GetExplain(),
		DryRun:          m.GetDryRun(),
		MaxAlternatives: int(m.GetMaxAlternatives()),
		Preferred:       m.GetPreferredLabels(),
		Priority:        m.GetPriority(),
		Tenant:          m.GetTenantId(),
		Goals:           oracle.Goals{TTFT: m.GetTtftTargetSeconds(), TPOT: m.GetTpotTargetSeconds()},
	}
	if r.MaxAlternatives == 0 {
		r.MaxAlternatives = defaultAlternatives
	}
	if err := checkRoute(m, r); err != nil {
		return err
	}
	r.MaxWait = time.Duration(m.GetMaxQueueSeconds() * float64(time.Second))
	switch m.GetPhase() {
	case kvoraclev1.Phase_PHASE_UNSPECIFIED:
		r.Role = fleet.Aggregated
	case kvoraclev1.Phase_PHASE_PREFILL:
		r.Role = fleet.Prefill
	case kvoraclev1.Phase_PHASE_DECODE:
		r.Role = fleet.Decode
	case kvoraclev1.Phase_PHASE_BOTH:
		r.Role, r.IsPair = fleet.Decode, true
	default:
		return invalid("phase", fmt.Sprint(int32(m.GetPhase())), "want a known Phase")
	}
	prompt, err := decodePrompt(m, packed, l.WithDefaults())
	if err != nil {
		return err
	}
	r.Prompt = prompt
	return nil
}

func checkRoute(m *kvoraclev1.RouteRequest, r *oracle.RouteRequest) error {
	for _, c := range []struct {
		field, v string
		most     int
		required bool
	}{
		{"model", r.Model, maxName, true},
		{"request_id", r.RequestID, maxRequestID, false},
		{"lora.name", r.LoRAName, maxName, false},
		{"lora.revision", r.LoRARevision, maxName, false},
		{"cache_salt", r.CacheSalt, maxName, false},
		{"session_id", r.Session, maxRequestID, false},
		{"tenant_id", r.Tenant, maxRequestID, false},
	} {
		if err := name(c.field, c.v, c.most, c.required); err != nil {
			return err
		}
	}
	if r.LoRAName == "" && r.LoRARevision != "" {
		return invalid("lora.revision", strconv.Quote(r.LoRARevision), "want lora.name with it")
	}
	if m.GetExpectedOutputTokens() > maxExpected {
		return invalid("expected_output_tokens", fmt.Sprint(m.GetExpectedOutputTokens()), fmt.Sprintf("want at most %d", maxExpected))
	}
	if m.GetMaxAlternatives() > maxAlternatives {
		return invalid("max_alternatives", fmt.Sprint(m.GetMaxAlternatives()), fmt.Sprintf("want at most %d", maxAlternatives))
	}
	for _, g := range []struct {
		field string
		v     float64
	}{{"ttft_target_seconds", r.Goals.TTFT}, {"tpot_target_seconds", r.Goals.TPOT}} {
		if !(g.v >= 0 && g.v <= maxTarget) {
			return invalid(g.field, fmt.Sprint(g.v), fmt.Sprintf("want 0 to %d", maxTarget))
		}
	}
	if v := m.GetMaxQueueSeconds(); !(v >= 0 && v <= maxQueue) {
		return invalid("max_queue_seconds", fmt.Sprint(v), fmt.Sprintf("want 0 to %d", maxQueue))
	}
	if err := workerList("allowed_workers", r.Allowed); err != nil {
		return err
	}
	if err := workerList("denied_workers", r.Denied); err != nil {
		return err
	}
	if err := labels("preferred_labels", r.Preferred); err != nil {
		return err
	}
	return labels("required_labels", r.Labels)
}

func workerList(field string, ws []string) error {
	if len(ws) > maxWorkerList {
		return invalid(field, strconv.Itoa(len(ws))+" workers", "want at most "+strconv.Itoa(maxWorkerList))
	}
	for i, w := range ws {
		if err := name(field+"["+strconv.Itoa(i)+"]", w, maxName, true); err != nil {
			return err
		}
	}
	return nil
}

func decodePrompt(m *kvoraclev1.RouteRequest, packed packedPrompt, l Limits) (oracle.Prompt, error) {
	if packed.form == tokenIDs {
		n := block.PackedLen(packed.pieces) / 4
		return oracle.Prompt{PackedTokens: packed.pieces, Length: n}, checkTokens(n, l)
	}
	switch p := m.GetPrompt().(type) {
	case *kvoraclev1.RouteRequest_Tokens:
		ids := p.Tokens.GetTokenIds()
		items, err := decodeItems(m.GetMultimodal(), len(ids))
		if bad := checkTokens(len(ids), l); bad != nil {
			err = bad
		}
		return oracle.Prompt{Tokens: ids, Length: len(ids), Items: items}, err
	case *kvoraclev1.RouteRequest_BlockHashes:
		if n := len(m.GetMultimodal()); n > 0 {
			return oracle.Prompt{}, invalid("multimodal", strconv.Itoa(n)+" items", "want them only with tokens; hashes have them in already")
		}
		return decodeHashes(p.BlockHashes, packed, l)
	case *kvoraclev1.RouteRequest_Text:
		if n := len(m.GetMultimodal()); n > 0 {
			return oracle.Prompt{}, invalid("multimodal", strconv.Itoa(n)+" items", "want them only with tokens; in text they have no place")
		}
		return decodeText(p.Text, l)
	default:
		return oracle.Prompt{}, oracle.Fault(oracle.InvalidArgument, oracle.ReasonPromptEmpty, "prompt", "", "want one of tokens, block_hashes, text")
	}
}

// bytesPerToken is how much text counts as a token, as in internal/oracle.
const bytesPerToken = 4

func decodeText(s string, l Limits) (oracle.Prompt, error) {
	most := bytesPerToken * l.MaxPromptTokens
	switch {
	case s == "":
		return oracle.Prompt{}, oracle.Fault(oracle.InvalidArgument, oracle.ReasonPromptEmpty, "text", "0 bytes", "want at least 1")
	case len(s) > most:
		return oracle.Prompt{}, oracle.Fault(oracle.InvalidArgument, oracle.ReasonPromptTooLong, "text",
			strconv.Itoa(len(s))+" bytes", "want at most "+strconv.Itoa(most))
	}
	return oracle.TextPrompt([][]byte{[]byte(s)}), nil
}

func checkTokens(n int, l Limits) error {
	switch {
	case n == 0:
		return empty("tokens.token_ids")
	case n > l.MaxPromptTokens:
		return tooLong("tokens.token_ids", n, l)
	}
	return nil
}

func empty(field string) error {
	return oracle.Fault(oracle.InvalidArgument, oracle.ReasonPromptEmpty, field, "0 tokens", "want at least 1")
}

func tooLong(field string, n int, l Limits) error {
	return oracle.Fault(oracle.InvalidArgument, oracle.ReasonPromptTooLong, field, strconv.Itoa(n)+" tokens",
		"want at most "+strconv.Itoa(l.MaxPromptTokens))
}

func decodeHashes(p *kvoraclev1.BlockHashPrompt, packed packedPrompt, l Limits) (oracle.Prompt, error) {
	if err := scheme("block_hashes.hash_scheme", p.GetHashScheme()); err != nil {
		return oracle.Prompt{}, err
	}
	if err := blockSize("block_hashes.block_size", p.GetBlockSize()); err != nil {
		return oracle.Prompt{}, err
	}
	n, size, tokens := len(p.GetLocalHashes()), int(p.GetBlockSize()), int(p.GetTokenCount())
	if packed.form == localHashes {
		n = block.PackedLen(packed.pieces) / 8
	}
	switch {
	case tokens == 0:
		return oracle.Prompt{}, empty("block_hashes.token_count")
	case tokens > l.MaxPromptTokens:
		return oracle.Prompt{}, tooLong("block_hashes.token_count", tokens, l)
	case n > l.MaxPromptTokens/size:
		return oracle.Prompt{}, invalid("block_hashes.local_hashes", strconv.Itoa(n)+" hashes",
			fmt.Sprintf("want at most %d: prompts have at most %d tokens", l.MaxPromptTokens/size, l.MaxPromptTokens))
	case tokens < n*size || tokens >= (n+1)*size:
		return oracle.Prompt{}, invalid("block_hashes.token_count", strconv.Itoa(tokens),
			fmt.Sprintf("want %d to %d with %d hashes of %d tokens", n*size, n*size+size-1, n, size))
	}
	if packed.form == localHashes {
		return oracle.Prompt{PackedLocals: packed.pieces, LocalsSize: size, Length: tokens}, nil
	}
	return oracle.Prompt{Locals: asLocals(p.GetLocalHashes()), LocalsSize: size, Length: tokens}, nil
}

// EncodeAnswer turns a decision into its message. Candidate rows only when the caller asked for them.
func EncodeAnswer(a *oracle.Answer, explain bool) *kvoraclev1.RouteResponse {
	m := &kvoraclev1.RouteResponse{
		DecisionId:           DecisionID(a.Decision),
		Target:               target(a.Target),
		Matched:              tiers(a.Matched),
		PromptTokens:         uint64(a.PromptTokens),
		PredictedTtftSeconds: a.TTFT,
		Confidence:           confidence(a.Blocks, a.Load),
		Policy:               a.Policy,
		Reason:               choiceReason(a.Reason),
		LeaseSeconds:         a.Lease.Seconds(),
		RepeatedDecision:     a.Repeated,
		Session:              sessionOutcome(a.Session),
		PredictedTpotSeconds: a.TPOT,
		TtftTargetMissed:     a.MissesTTFT,
		TpotTargetMissed:     a.MissesTPOT,
		QueuedSeconds:        a.Waited.Seconds(),
		QueuePosition:        uint32(a.Position),
	}
	if a.Prefill != nil {
		m.PrefillTarget, m.PrefillMatched = target(*a.Prefill), tiers(a.PrefillMatched)
		m.PrefillConfidence = confidence(a.PrefillBlocks, a.PrefillLoad)
	}
	for i := range a.Alternatives {
		alt := &a.Alternatives[i]
		x := &kvoraclev1.Alternative{
			Target: target(alt.Target), Matched: tiers(alt.Matched), PredictedTtftSeconds: alt.TTFT, Confidence: confidence(alt.Blocks, alt.Load),
		}
		if alt.Prefill != nil {
			x.PrefillTarget, x.PrefillConfidence = target(*alt.Prefill), confidence(alt.PrefillBlocks, alt.PrefillLoad)
		}
		m.Alternatives = append(m.Alternatives, x)
	}
	if explain {
		for i := range a.Rows {
			m.Candidates = append(m.Candidates, encodeRow(&a.Rows[i]))
		}
	}
	return m
}

func encodeRow(r *oracle.Row) *kvoraclev1.CandidateExplanation {
	m := &kvoraclev1.CandidateExplanation{
		Target:         target(r.Target),
		Excluded:       kvoraclev1.ExclusionReason(r.Excluded),
		Matched:        tiers(r.Matched),
		Reusable:       tiers(r.Usable),
		ExpectedTokens: uint64(r.Expected),
		InFlight:       uint32(r.InFlight),
		Confidence:     confidence(r.Blocks, r.Load),
	}
	if r.Excluded != oracle.NotExcluded {
		return m
	}
	if r.Prefill != nil {
		m.PrefillTarget, m.PrefillConfidence = target(*r.Prefill), confidence(r.PrefillBlocks, r.PrefillLoad)
	}
	m.UncachedTokens = uint64(r.Score.Uncached)
	m.TotalCostSeconds = r.Score.Cost
	m.PredictedTtftSeconds = r.Score.TTFT
	for _, x := range r.Score.Terms.Named() {
		m.Terms = append(m.Terms, &kvoraclev1.CostTerm{Name: x.Name, Seconds: x.Seconds})
	}
	return m
}

func target(t oracle.TargetRef) *kvoraclev1.Target {
	return &kvoraclev1.Target{WorkerId: t.Worker, DpRank: uint32(t.Rank), Address: t.Address}
}

func tiers(t oracle.TierTokens) *kvoraclev1.TokensByTier {
	return &kvoraclev1.TokensByTier{
		Device: uint64(t[fleet.Device]), Host: uint64(t[fleet.Host]), Disk: uint64(t[fleet.Disk]), Shared: uint64(t[fleet.Shared]),
	}
}

func confidence(b oracle.BlockConfidence, l oracle.LoadConfidence) *kvoraclev1.Confidence {
	return &kvoraclev1.Confidence{Blocks: BlockConfidence(b), Load: loadConfidence(l)}
}

// BlockConfidence names a confidence on the wire.
func BlockConfidence(c oracle.BlockConfidence) kvoraclev1.BlockConfidence {
	switch c {
	case oracle.Fresh:
		return kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH
	case oracle.Warming:
		return kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_WARMING
	case oracle.Stale:
		return kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_STALE
	case oracle.Silent:
		return kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_SILENT
	case oracle.Partial:
		return kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_PARTIAL
	case oracle.Approximate:
		return kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_APPROXIMATE
	default:
		return kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_UNSPECIFIED
	}
}

func loadConfidence(c oracle.LoadConfidence) kvoraclev1.LoadConfidence {
	switch c {
	case oracle.Reported:
		return kvoraclev1.LoadConfidence_LOAD_CONFIDENCE_REPORTED
	case oracle.BookedOnly:
		return kvoraclev1.LoadConfidence_LOAD_CONFIDENCE_BOOKED_ONLY
	case oracle.Imputed:
		return kvoraclev1.LoadConfidence_LOAD_CONFIDENCE_IMPUTED
	default:
		return kvoraclev1.LoadConfidence_LOAD_CONFIDENCE_UNSPECIFIED
	}
}

func choiceReason(r oracle.ChoiceReason) kvoraclev1.ChoiceReason {
	switch r {
	case oracle.OnlyCandidate:
		return kvoraclev1.ChoiceReason_CHOICE_REASON_ONLY_CANDIDATE
	case oracle.LeastCost:
		return kvoraclev1.ChoiceReason_CHOICE_REASON_LEAST_COST
	case oracle.TieDeeperMatch:
		return kvoraclev1.ChoiceReason_CHOICE_REASON_TIE_DEEPER_MATCH
	case oracle.TieSession:
		return kvoraclev1.ChoiceReason_CHOICE_REASON_TIE_SESSION
	case oracle.TieFewestInFlight:
		return kvoraclev1.ChoiceReason_CHOICE_REASON_TIE_FEWEST_IN_FLIGHT
	case oracle.ReachesGoals:
		return kvoraclev1.ChoiceReason_CHOICE_REASON_REACHES_TARGETS
	case oracle.TieLeastRecent:
		return kvoraclev1.ChoiceReason_CHOICE_REASON_TIE_LEAST_RECENT
	case oracle.TiePreferred:
		return kvoraclev1.ChoiceReason_CHOICE_REASON_TIE_PREFERRED_LABELS
	case oracle.PolicyOrder:
		return kvoraclev1.ChoiceReason_CHOICE_REASON_POLICY_ORDER
	default:
		return kvoraclev1.ChoiceReason_CHOICE_REASON_UNSPECIFIED
	}
}

func sessionOutcome(s oracle.SessionOutcome) kvoraclev1.SessionOutcome {
	switch s {
	case oracle.SessionStayed:
		return kvoraclev1.SessionOutcome_SESSION_OUTCOME_STAYED
	case oracle.SessionMoved:
		return kvoraclev1.SessionOutcome_SESSION_OUTCOME_MOVED
	case oracle.SessionWorkerGone:
		return kvoraclev1.SessionOutcome_SESSION_OUTCOME_WORKER_GONE
	case oracle.SessionNone:
		return kvoraclev1.SessionOutcome_SESSION_OUTCOME_UNSPECIFIED
	default:
		return kvoraclev1.SessionOutcome_SESSION_OUTCOME_UNSPECIFIED
	}
}

// DecisionID writes a decision's name: 16 hex digits, empty for none.
func DecisionID(id oracle.DecisionID) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", uint64(id))
}

// ParseDecisionID reads it back. A name that no decision can have is reported as ok == false.
func ParseDecisionID(s string) (id oracle.DecisionID, ok bool) {
	if len(s) != 16 {
		return 0, false
	}
	v, err := strconv.ParseUint(s, 16, 64)
	return oracle.DecisionID(v), err == nil && v != 0
}

func asLocals(hs []uint64) []block.Local {
	out := make([]block.Local, len(hs))
	for i, h := range hs {
		out[i] = block.Local(h)
	}
	return out
}

func asIDs(hs []uint64) []block.ID {
	out := make([]block.ID, len(hs))
	for i, h := range hs {
		out[i] = block.ID(h)
	}
	return out
}
