package oracle

import (
	"github.com/kvoracle/kvoracle/internal/edge"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/policy"
)

// The state rooms' values that callers see. Those further out (wire, server) know them by these names only.
type (
	// Goals are how soon a request's tokens are wanted.
	Goals = policy.Goals
	// DecisionID names a decision and the booking it made.
	DecisionID = load.DecisionID
	// LoadConfidence says where a load came from.
	LoadConfidence = load.Confidence
	// Sample is one look at an engine's gauges.
	Sample = load.Sample
	// Gauge is one of them, which the engine may not have said.
	Gauge = load.Gauge
	// Belief is what is held true of a target after a sample.
	Belief = load.Belief
	// Outcome is what became of a step.
	Outcome = load.Outcome
	// Digest sums up a set of block ids.
	Digest = index.Digest
	// Contents is what a rank holds, copied.
	Contents = index.Contents
	// BlockRun is a piece of a chain of blocks that are held alike.
	BlockRun = index.Run
	// BlockParent is what such a piece follows.
	BlockParent = index.Parent
	// EngineHash is an engine's own name of a block.
	EngineHash = edge.Hash
	// ChoiceReason says what decided.
	ChoiceReason = policy.Reason
	// CostModel is what work costs on a class of engines.
	CostModel = policy.CostModel
	// Terms are the summands of a cost.
	Terms = policy.Terms
)

// Values of the aliases above.
const (
	Reported   = load.Reported
	BookedOnly = load.BookedOnly
	Imputed    = load.Imputed

	Applied         = load.Applied
	Late            = load.Late
	UnknownDecision = load.Unknown

	OnlyCandidate     = policy.OnlyCandidate
	LeastCost         = policy.LeastCost
	TieDeeperMatch    = policy.TieDeeperMatch
	TieSession        = policy.TieSession
	TieFewestInFlight = policy.TieFewestInFlight
	TieLeastRecent    = policy.TieLeastRecent
	ReachesGoals      = policy.ReachesGoals
	TiePreferred      = policy.TiePreferred
	PolicyOrder       = policy.PolicyOrder
)

// EngineHashOf makes a name of an engine hash that is bytes.
func EngineHashOf(b []byte) EngineHash { return edge.HashOf(b) }

// Known makes a gauge that was said.
func Known(v int) Gauge { return load.Known(v) }
