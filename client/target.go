package client

import (
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// The closed sets of the protocol, under shorter names. Their zero values mean what the protocol says they mean: the
// device tier, an aggregated worker, any phase.
type (
	// Tier is where a block of KV cache lies.
	Tier = kvoraclev1.Tier
	// Role is what a worker does.
	Role = kvoraclev1.Role
	// Phase is the part of the work a worker is wanted for.
	Phase = kvoraclev1.Phase
	// Repeats is what a second store of a held block means.
	Repeats = kvoraclev1.RepeatMeaning
	// BlockConfidence is the trust in the picture of a target's KV cache.
	BlockConfidence = kvoraclev1.BlockConfidence
	// LoadConfidence says where the load behind a decision came from.
	LoadConfidence = kvoraclev1.LoadConfidence
)

// The members callers write; those of the confidences are only read and keep their protocol names.
const (
	TierDevice = kvoraclev1.Tier_TIER_DEVICE // accelerator memory
	TierHost   = kvoraclev1.Tier_TIER_HOST   // main memory of the worker
	TierDisk   = kvoraclev1.Tier_TIER_DISK   // its local disk
	TierShared = kvoraclev1.Tier_TIER_SHARED // a store shared by several workers

	RoleAggregated = kvoraclev1.Role_ROLE_AGGREGATED // prefill and decode
	RolePrefill    = kvoraclev1.Role_ROLE_PREFILL    // prompts only
	RoleDecode     = kvoraclev1.Role_ROLE_DECODE     // generation only

	PhaseAny     = kvoraclev1.Phase_PHASE_UNSPECIFIED // prefill and decode on one worker
	PhasePrefill = kvoraclev1.Phase_PHASE_PREFILL     // a prefill worker only
	PhaseDecode  = kvoraclev1.Phase_PHASE_DECODE      // a decode worker only
	PhaseBoth    = kvoraclev1.Phase_PHASE_BOTH        // a prefill and a decode worker together

	RepeatsSet     = kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET     // announced again: no change
	RepeatsCounted = kvoraclev1.RepeatMeaning_REPEAT_MEANING_COUNTED // another physical copy
)

// numTiers is how many tiers there are; tierIndex maps into [0, numTiers).
const numTiers = 4

// tierIndex is the tier's place in an array, nearest first; the unspecified one is the device. False: no such tier.
func tierIndex(t Tier) (int, bool) {
	if t == kvoraclev1.Tier_TIER_UNSPECIFIED {
		return 0, true
	}
	i := int(t) - int(TierDevice)
	return i, i >= 0 && i < numTiers
}

// tierAt is the inverse of tierIndex.
func tierAt(i int) Tier { return TierDevice + Tier(i) }

// Target is one scheduling unit: a data-parallel rank of a worker.
type Target struct {
	Worker  string // unique name
	Rank    uint32 // data-parallel rank; 0 without ranks
	Address string // where the worker serves, as it said; may be empty
}

// LoRA names an adapter by what it is. The zero value is the base model.
type LoRA struct {
	Name     string // empty: no adapter
	Revision string // version of the weights; only with a name
}

// Matched counts leading prompt tokens by the tier they were found in.
type Matched struct {
	Device, Host, Disk, Shared uint64
}

// Total is the sum over all tiers.
func (m Matched) Total() uint64 { return m.Device + m.Host + m.Disk + m.Shared }

// Alternative is a runner-up, for a retry without asking again. It is not booked.
type Alternative struct {
	Target

	Matched       Matched
	PredictedTTFT time.Duration // from the time of the decision; 0 in a fallback
	// Blocks and Load say how far the picture of it can be trusted; unspecified in a fallback, and by an oracle that is too old
	// to say so.
	Blocks BlockConfidence
	Load   LoadConfidence
	// Prefill is where to prefill for it with PhaseBoth; nil: it does all it was asked for.
	Prefill *Target
	// PrefillBlocks and PrefillLoad say the same of Prefill; unspecified without one.
	PrefillBlocks BlockConfidence
	PrefillLoad   LoadConfidence
}

func targetOf(t *kvoraclev1.Target) Target {
	return Target{Worker: t.GetWorkerId(), Rank: t.GetDpRank(), Address: t.GetAddress()}
}

func matchedOf(m *kvoraclev1.TokensByTier) Matched {
	return Matched{Device: m.GetDevice(), Host: m.GetHost(), Disk: m.GetDisk(), Shared: m.GetShared()}
}

// seconds turns what the oracle predicts into a duration. Nonsense becomes 0, and anything above an hour an hour: a
// duration must not overflow because a prediction did.
func seconds(s float64) time.Duration {
	if !(s > 0) {
		return 0
	}
	return time.Duration(min(s, 3600) * float64(time.Second))
}
