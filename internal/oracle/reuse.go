package oracle

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// reuse learns, for each model apart, how likely a block that nobody has asked for since so long is asked for again: see usage.
// When each block was used last is one table for all of them, of fixed size, that forgets: a block is of one model, and two that
// fall on one place push each other out.
type reuse struct {
	used atomic.Pointer[[usedSlots]atomic.Uint64] // (name | 1 if it has come again)<<32 | 1/16 s; nil until something was used

	isAged atomic.Bool // some target has given up blocks of a known age: what that costs changes with time

	mu     sync.Mutex
	models map[string]*usage // of those that have workers
}

// usage is what is learned of one model's blocks. A full cache gives up what was used least recently, so from how old that is
// on a target follows what it costs to push more out there: see policy.CostModel.Again.
//
// It goes by a sample of the blocks, the one of load.Marks. Of ages, in steps of a factor, it counts how many uses came after
// one; with all uses N, those at an age below a S, and those at a or above L,
//
//	again(a) = L / (N - S)
//
// is the share of the blocks that had grown so old and came back. Counts fade by halving, so that it follows the traffic.
//
// From how many of the blocks that are new come a second time it learns, too, how many requests go on from one. If each is
// the last with the same chance, with the share r of the new that come again, they are r/(1-r): see policy.CostModel.Returns.
// What all share is new once, so it does not count as what each goes on from.
type usage struct {
	of    *reuse
	model string

	returns atomic.Uint64 // how many requests go on from one, the bits of a float64 that all of its targets are priced with

	mu   sync.Mutex
	uses float64
	ages [ageSteps]float64
	came [2]float64 // new, and those of them that came a second time
	step float64    // of the latter's share, as published
}

// model is what is learned of a model, which has workers.
func (u *reuse) model(name string) *usage {
	u.mu.Lock()
	defer u.mu.Unlock()
	m := u.models[name]
	if m == nil {
		if u.models == nil {
			u.models = make(map[string]*usage)
		}
		m = &usage{of: u, model: name}
		u.models[name] = m
	}
	return m
}

// forget gives back the memory of a model that has no workers any more. Its blocks leave the table when others need their places.
func (u *reuse) forget(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.models, name)
}

const (
	usedBits  = 18
	usedSlots = 1 << usedBits
	usedTicks = 16 // a second

	agesPerOctave = 4
	ageSteps      = 64 // from a tick on, some 70 minutes; the last has what is older

	// fadeAfter is how many uses are counted before all count half: those of about a thousand long prompts.
	fadeAfter = 1 << 17
	// agedOver is over how many blocks of the sample the age of what a target gives up is a mean, the newest weighing most:
	// 32,768 tokens. Prompts leave a cache one by one, and a single one says little of the next.
	agedOver = 64
	// againSteps is how finely shares are told apart, so that not each use changes what all targets cost.
	againSteps = 64
)

// at finds the place of a block and its name there, which is even and not 0.
func (u *reuse) at(id uint64) (slot *atomic.Uint64, name uint64) {
	t := u.used.Load()
	if t == nil {
		return nil, 0
	}
	id *= 0x9E3779B97F4A7C15
	return &t[id>>(64-usedBits)], max(id&math.MaxUint32&^1, 2)
}

// use notes that sampled blocks are asked for. Only one may call it at a time, of whichever model.
func (u *usage) use(ids []uint64, now float64) {
	if len(ids) == 0 {
		return
	}
	if u.of.used.Load() == nil {
		u.of.used.Store(new([usedSlots]atomic.Uint64))
	}
	tick := ticks(now)
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range ids {
		slot, name := u.of.at(id)
		was := slot.Load()
		switch was >> 32 {
		case name:
			u.came[1]++
			name++
		case name + 1:
			name++
		default:
			u.came[0]++
		}
		if name&1 != 0 {
			u.ages[ageStep(between(uint32(was), tick))]++
		}
		slot.Store(name<<32 | uint64(tick))
	}
	if u.uses += float64(len(ids)); u.uses > fadeAfter {
		u.uses /= 2
		for i := range u.ages {
			u.ages[i] /= 2
		}
		u.came = [2]float64{u.came[0] / 2, u.came[1] / 2}
	}
}

// age is how long ago sampled blocks were used last, in the mean of the n that are known, in seconds.
func (u *reuse) age(ids []uint64, now float64) (age float64, n int) {
	sum, tick := 0.0, ticks(now)
	for _, id := range ids {
		slot, name := u.at(id)
		if slot == nil {
			break
		}
		if was := slot.Load(); was>>32&^1 == name {
			n++
			sum += between(uint32(was), tick)
		}
	}
	return sum / float64(max(n, 1)), n
}

// again is the share of the blocks that were not used for so many seconds that will be.
func (u *usage) again(age float64) float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	later, sooner, at := 0.0, 0.0, ageStep(age)
	for i := range u.ages {
		if i < at {
			sooner += u.ages[i]
		} else {
			later += u.ages[i]
		}
	}
	if later <= 0 {
		return 0
	}
	return math.Round(min(later/max(u.uses-sooner, later), 1)*againSteps) / againSteps
}

// publish makes the returns of all models what was counted, and says whether one was something else.
func (u *reuse) publish() (isNews bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, m := range u.models {
		isNews = m.publish() || isNews
	}
	return isNews
}

func (u *usage) publish() (isNews bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	steps := u.came[1] / max(u.came[0], 1) * againSteps
	if math.Abs(steps-u.step-0.5) < 1 {
		return false // at the edge of two steps nobody wants to hear of it each time
	}
	u.step = math.Floor(min(steps, againSteps-1))
	bits := math.Float64bits(u.step / (againSteps - u.step))
	return u.returns.Swap(bits) != bits
}

// ticks is a moment on a clock that begins anew each eight years.
func ticks(now float64) uint32 { return uint32(int64(now * usedTicks)) }

// between is the time from one tick to a later one, in seconds.
func between(was, now uint32) float64 { return float64(max(int32(now-was), 0)) / usedTicks }

func ageStep(age float64) int {
	if age*usedTicks <= 1 {
		return 0
	}
	return min(int(agesPerOctave*math.Log2(age*usedTicks)), ageSteps-1)
}

// evicted notes sampled blocks that a target has given up, and when they were used last. Blocks that it keeps in a farther tier
// are not computed again.
func (o *Oracle) evicted(f *feed, ids []uint64, tier fleet.Tier, now float64) {
	if f.ledger == nil {
		return
	}
	for t := tier + 1; t < fleet.NumTiers; t++ {
		if f.ledger.Held(t) > 0 {
			return
		}
	}
	age, n := o.reuse.age(ids, now)
	if n == 0 {
		return
	}
	last := now - age
	if bits := f.eldest.Load(); bits != 0 {
		was := math.Float64frombits(bits)
		last = was + (last-was)*min(float64(n)/agedOver, 1)
	}
	f.eldest.Store(math.Float64bits(last))
	o.reuse.isAged.Store(true)
}

// again is policy.CostModel.Again of a target. While it gives up nothing, what it will give up next gets older.
func (o *Oracle) again(f *feed, now float64) float64 {
	bits := f.eldest.Load()
	if bits == 0 {
		return 0
	}
	return f.usage.again(now - math.Float64frombits(bits))
}
