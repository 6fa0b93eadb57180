package oracle

import (
	"math"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/index"
)

// approx is the picture of a target that does not report blocks: the prompts it was sent and has computed, as an LRU of as
// many blocks as its device holds. It lives in an index of its own and is forgotten the moment the target opens a block
// stream. The feed's mu guards it.
//
// What engines say of requests that have ended corrects it. One that found less than was guessed shows that the blocks
// from there on were gone, and what follows them with them, and that fewer fit than was thought: prompts under way, other
// gateways, and outputs take room, too. The share of what was guessed that was found is the share that is counted from
// then on; so a guess is worth what guesses of this target have been worth.
type approx struct {
	ledger   *index.Ledger
	capacity int     // blocks that the device holds, as stated
	limit    int     // of those, how many are believed to be there for prompts that have ended
	credit   float64 // the share of what is guessed that counts, above 0 to 1
	trust    trust
}

const (
	// approxTokens is the device memory of a target that says nothing of it: about what an accelerator with 80 GB has left
	// beside a model of 8 G parameters.
	approxTokens = 1 << 19
	// approxCredit is the credit before the first outcome, and approxWeight the weight of each: eight of them weigh as much
	// as all before.
	approxCredit = 0.75
	approxWeight = 1.0 / 8
	// approxLeast is the least credit: with none at all no prompt would be sent where it can find out.
	approxLeast = 0.05
	// approxShrink is what a shortfall leaves of the limit, approxGrow the share that a hit gives back, approxFloor the
	// least limit as a share of the capacity.
	approxShrink = 7.0 / 8
	approxGrow   = 1.0 / 128
	approxFloor  = 1.0 / 8
)

// learn notes that a target has a prompt in its cache. A target that reports is left alone, but for text.
func (f *feed) learn(chain []block.ID, as form, now time.Time) {
	if len(chain) == 0 {
		return
	}
	w := f.o.fleet.View().Target(f.target)
	f.mu.Lock()
	defer f.mu.Unlock()
	if w == nil || f.gone || as == asTokens && f.incarnation != 0 {
		return
	}
	a, x := f.approx[as], f.o.approx[as]
	if a == nil {
		a = &approx{ledger: x.NewLedger(f.target, false), capacity: f.capacity(w), credit: approxCredit}
		a.limit = a.capacity
		x.Publish(a.ledger)
		f.o.approximated[as].Add(1)
		f.approx[as] = a
		f.sayCredit(as)
	}
	// 16 ms: requests that end together are of one age, and the clock goes round after two years.
	x.SetClock(uint32(now.UnixMilli() >> 4))
	a.ledger.Store(index.Parent{IsRoot: true}, chain, fleet.Device)
	a.ledger.Touch(chain[len(chain)-1])
	a.ledger.Shrink(a.limit)
}

// capacity is how many blocks a target's device holds: as the worker says, else as its load samples do, else a guess.
func (f *feed) capacity(w *fleet.Worker) int {
	n := w.Capacity[fleet.Device]
	if n == 0 {
		n = f.kvBlocks.Load()
	}
	if n == 0 {
		n = uint64(max(1, approxTokens/w.BlockSize))
	}
	return int(min(n, math.MaxInt32))
}

// correct holds an outcome against what was guessed, both in tokens of a prompt, of which chain is what the target still
// has: it has computed it just now. cached is at least 0; size is the block size.
func (f *feed) correct(chain []block.ID, as form, guessed, cached, size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.approx[as]
	if a == nil || guessed <= 0 {
		return
	}
	share := min(1, float64(cached)/float64(guessed))
	a.credit = max(approxLeast, a.credit+approxWeight*(share-a.credit))
	f.sayCredit(as)
	switch {
	case cached+size <= guessed:
		if n := cached / size; n < len(chain) {
			a.ledger.Prune(chain[n])
		}
		a.limit = max(int(approxShrink*float64(a.limit)), int(approxFloor*float64(a.capacity)), 1)
	default:
		a.limit = min(a.capacity, a.limit+max(1, int(approxGrow*float64(a.capacity))))
	}
	if a.trust.judge(guessed, cached) {
		// Nothing of it is true: an engine that was restarted, most likely.
		a.ledger.ClearAll()
	}
}

// forgetApprox drops what was guessed. The feed is locked.
func (f *feed) forgetApprox(as form) {
	if f.approx[as] != nil {
		f.approx[as] = nil
		f.o.approx[as].Drop(f.target)
		f.o.approximated[as].Add(-1)
		f.credited[as].Store(0)
	}
}

// sayCredit tells decisions, which take no lock of a feed. The feed is locked.
func (f *feed) sayCredit(as form) { f.credited[as].Store(math.Float64bits(f.approx[as].credit)) }

// credit is the share of a target's overlap that counts.
func (f *feed) credit(c BlockConfidence, as form) float64 {
	switch c {
	case Stale:
		return f.o.cfg.StaleCredit
	case Approximate:
		return math.Float64frombits(f.credited[as].Load())
	case Silent, Warming, Fresh, Partial:
	}
	return 1
}
