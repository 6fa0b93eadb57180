package client

import (
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Source says who decided.
type Source uint8

// The sources.
const (
	// SourceOracle: the oracle did.
	SourceOracle Source = iota
	// SourceFallback: this router did, because the oracle could not. Reason says why.
	SourceFallback
)

// String gives the lower-case name.
func (s Source) String() string {
	if s == SourceFallback {
		return "fallback"
	}
	return "oracle"
}

// Reason is one stable word, fit for a metric label: what decided, or why the oracle did not.
type Reason string

// The reasons of the oracle.
const (
	ReasonOnlyCandidate  Reason = "only_candidate"       // no other target was eligible
	ReasonLeastCost      Reason = "least_cost"           // least predicted cost
	ReasonDeeperMatch    Reason = "tie_deeper_match"     // equal cost; holds the deeper prefix
	ReasonSession        Reason = "tie_session"          // equal cost; served the session last
	ReasonFewestInFlight Reason = "tie_fewest_in_flight" // equal cost and match; least in flight
	ReasonLeastRecent    Reason = "tie_least_recent"     // all equal; chosen least recently
	ReasonReachesTargets Reason = "reaches_targets"      // the cheapest that is predicted to be soon enough
	ReasonPreferred      Reason = "tie_preferred_labels" // equal cost and match; has more of the preferred labels
	ReasonPolicyOrder    Reason = "policy_order"         // the policy compares no costs
	ReasonOther          Reason = "other"                // none given, or one newer than this client
)

// The reasons of a fallback.
const (
	// ReasonOracleLate: no answer within the timeout.
	ReasonOracleLate Reason = "oracle_late"
	// ReasonOracleGone: it could not be reached.
	ReasonOracleGone Reason = "oracle_gone"
	// ReasonOracleShed: it refused the work, being too busy.
	ReasonOracleShed Reason = "oracle_shed"
	// ReasonOracleFault: it failed, or would not talk to us.
	ReasonOracleFault Reason = "oracle_fault"
	// ReasonOracleAmnesia: it does not know the model, but the last fleet list does: it has just restarted and its
	// workers are on their way back.
	ReasonOracleAmnesia Reason = "oracle_amnesia"
	// ReasonBreakerOpen: it failed so often that it was not asked.
	ReasonBreakerOpen Reason = "breaker_open"
)

// Decision is the answer to one Request. It is a value: copies name the same booking. The zero Decision names none, and
// progress about it is ignored.
type Decision struct {
	// Target is where to send the request.
	Target

	// Prefill is where to prefill with PhaseBoth, and Target where to decode; nil: Target does all it was asked for.
	Prefill *Target
	// ID names the decision at the oracle; empty for a dry run and in a fallback.
	ID string
	// Matched are the leading prompt tokens the target holds; zero in a fallback, where nothing is known.
	Matched Matched
	// PromptTokens is the prompt's length.
	PromptTokens int
	// PredictedTTFT is the predicted time to first token from the time of the decision; zero in a fallback.
	PredictedTTFT time.Duration
	// Alternatives are the next best targets in order.
	Alternatives []Alternative
	// Blocks and Load say how far the picture can be trusted; unspecified in a fallback.
	Blocks BlockConfidence
	Load   LoadConfidence
	// PrefillBlocks and PrefillLoad say the same of Prefill; unspecified without one.
	PrefillBlocks BlockConfidence
	PrefillLoad   LoadConfidence
	// Source says who decided, and Reason what decided or, in a fallback, why the oracle did not.
	Source Source
	Reason Reason
	// Repeated is true when Request.ID named a living booking and this is its decision again.
	Repeated bool

	raw     *kvoraclev1.RouteResponse
	cause   error
	booking *booking
}

// Raw is the oracle's whole answer, with what has no field here (policy, lease, candidates); nil in a fallback. It must
// not be changed.
func (d Decision) Raw() *kvoraclev1.RouteResponse { return d.raw }

// Cause is the oracle's failure behind a fallback, usually an *Error; nil for a decision of the oracle, and while the
// breaker is open, when nothing was asked.
func (d Decision) Cause() error { return d.cause }

// decisionOf reads the oracle's answer.
func decisionOf(m *kvoraclev1.RouteResponse) Decision {
	d := Decision{
		Target:        targetOf(m.GetTarget()),
		ID:            m.GetDecisionId(),
		Matched:       matchedOf(m.GetMatched()),
		PromptTokens:  int(m.GetPromptTokens()),
		PredictedTTFT: seconds(m.GetPredictedTtftSeconds()),
		Blocks:        m.GetConfidence().GetBlocks(),
		Load:          m.GetConfidence().GetLoad(),
		PrefillBlocks: m.GetPrefillConfidence().GetBlocks(),
		PrefillLoad:   m.GetPrefillConfidence().GetLoad(),
		Source:        SourceOracle,
		Reason:        reasonOf(m.GetReason()),
		Repeated:      m.GetRepeatedDecision(),
		raw:           m,
	}
	d.Prefill = prefillOf(m.GetPrefillTarget())
	if alts := m.GetAlternatives(); len(alts) > 0 {
		d.Alternatives = make([]Alternative, len(alts))
		for i, a := range alts {
			d.Alternatives[i] = Alternative{
				Target:        targetOf(a.GetTarget()),
				Matched:       matchedOf(a.GetMatched()),
				PredictedTTFT: seconds(a.GetPredictedTtftSeconds()),
				Blocks:        a.GetConfidence().GetBlocks(),
				Load:          a.GetConfidence().GetLoad(),
				Prefill:       prefillOf(a.GetPrefillTarget()),
				PrefillBlocks: a.GetPrefillConfidence().GetBlocks(),
				PrefillLoad:   a.GetPrefillConfidence().GetLoad(),
			}
		}
	}
	return d
}

func prefillOf(m *kvoraclev1.Target) *Target {
	if m == nil {
		return nil
	}
	t := targetOf(m)
	return &t
}

func reasonOf(r kvoraclev1.ChoiceReason) Reason {
	switch r {
	case kvoraclev1.ChoiceReason_CHOICE_REASON_ONLY_CANDIDATE:
		return ReasonOnlyCandidate
	case kvoraclev1.ChoiceReason_CHOICE_REASON_LEAST_COST:
		return ReasonLeastCost
	case kvoraclev1.ChoiceReason_CHOICE_REASON_TIE_DEEPER_MATCH:
		return ReasonDeeperMatch
	case kvoraclev1.ChoiceReason_CHOICE_REASON_TIE_SESSION:
		return ReasonSession
	case kvoraclev1.ChoiceReason_CHOICE_REASON_TIE_FEWEST_IN_FLIGHT:
		return ReasonFewestInFlight
	case kvoraclev1.ChoiceReason_CHOICE_REASON_TIE_LEAST_RECENT:
		return ReasonLeastRecent
	case kvoraclev1.ChoiceReason_CHOICE_REASON_POLICY_ORDER:
		return ReasonPolicyOrder
	case kvoraclev1.ChoiceReason_CHOICE_REASON_REACHES_TARGETS:
		return ReasonReachesTargets
	case kvoraclev1.ChoiceReason_CHOICE_REASON_TIE_PREFERRED_LABELS:
		return ReasonPreferred
	case kvoraclev1.ChoiceReason_CHOICE_REASON_UNSPECIFIED:
		return ReasonOther
	default:
		return ReasonOther
	}
}
