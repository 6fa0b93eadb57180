package mapping

import (
	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Into is a Sink that reports. The reporter must have client.RepeatsCounted, whatever the engine: two names of one block are
// two copies of it.
func Into(r *client.Reporter) Sink { return reporter{r} }

type reporter struct{ r *client.Reporter }

// Store implements edge.Contents. A block with another parent than before is a collision of ids, and not taken.
func (s reporter) Store(parent block.ID, isRoot bool, ids []block.ID, tier fleet.Tier) int {
	p := client.After(parent)
	if isRoot {
		p = client.Root()
	}
	if s.r.Store(p, ids, tierOf(tier)) != nil {
		return 0
	}
	return len(ids)
}

// Remove implements edge.Contents.
func (s reporter) Remove(ids []block.ID, tier fleet.Tier) {
	_ = s.r.Remove(ids, tierOf(tier)) // it refuses unknown tiers only
}

// Clear implements Sink.
func (s reporter) Clear(tier fleet.Tier) {
	_ = s.r.Clear(tierOf(tier)) // it refuses unknown tiers only
}

// ClearAll implements Sink.
func (s reporter) ClearAll() {
	_ = s.r.Clear() // there is no tier to refuse
}

func tierOf(t fleet.Tier) client.Tier {
	return [fleet.NumTiers]client.Tier{client.TierDevice, client.TierHost, client.TierDisk, client.TierShared}[t]
}
