package client

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// RouterStats is a look at a Router, for the caller's own metrics. Counters count from the router's birth.
type RouterStats struct {
	Oracle    uint64            // decisions of the oracle
	Fallbacks map[Reason]uint64 // decisions of the fallback, by reason
	Errors    uint64            // Routes that returned an error, other than invalid and cancelled ones

	BreakerOpen   bool   // the oracle is not asked right now, or by one call only
	BreakerOpened uint64 // times it opened

	InFlight int           // requests of this router believed in flight
	FleetAge time.Duration // since the fleet list was right; 0 while it is watched, negative if there never was one

	ProgressQueued  int    // events that wait to be sent or acknowledged
	ProgressDropped uint64 // events lost to a full queue, or to an oracle that takes none
	ProgressUnknown uint64 // events the oracle had no booking for
	ProgressLate    uint64 // events behind what it knew
	ProgressRefused uint64 // events it found malformed
	LateAnswers     uint64 // answers on a stream that came after their Route had given up; their bookings were cancelled
}

// routerCounters are the counters behind RouterStats.
type routerCounters struct {
	oracle, errors, late, unknown, behind, refused atomic.Uint64

	mu        sync.Mutex
	fallbacks map[Reason]uint64
}

func (c *routerCounters) fallback(r Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fallbacks == nil {
		c.fallbacks = make(map[Reason]uint64)
	}
	c.fallbacks[r]++
}

// progress adds what a stream's totals have grown by.
func (c *routerCounters) progress(before, after *kvoraclev1.ReportProgressResponse) {
	c.unknown.Add(after.GetUnknownDecisions() - before.GetUnknownDecisions())
	c.behind.Add(after.GetLateEvents() - before.GetLateEvents())
	c.refused.Add(after.GetRefusedEvents() - before.GetRefusedEvents())
}

// Stats looks at the router. Counters are read one by one, so their sums may be off by calls under way.
func (r *Router) Stats() RouterStats {
	s := RouterStats{
		Oracle:          r.stats.oracle.Load(),
		Errors:          r.stats.errors.Load(),
		InFlight:        r.bookings.inFlight(),
		FleetAge:        r.fleet.age(time.Now()),
		ProgressUnknown: r.stats.unknown.Load(),
		ProgressLate:    r.stats.behind.Load(),
		ProgressRefused: r.stats.refused.Load(),
		LateAnswers:     r.stats.late.Load(),
		Fallbacks:       make(map[Reason]uint64),
	}
	s.BreakerOpen, s.BreakerOpened = r.breaker.isOpen()
	s.ProgressQueued, s.ProgressDropped = r.progress.size()
	r.stats.mu.Lock()
	defer r.stats.mu.Unlock()
	maps.Copy(s.Fallbacks, r.stats.fallbacks)
	return s
}

// ReporterStats is a look at a Reporter, for the caller's own metrics. Counters count from the reporter's birth.
type ReporterStats struct {
	Connected    bool            // a block stream is open and accepted
	Confidence   BlockConfidence // what the oracle last said of our contents
	Held         map[Tier]uint64 // blocks in the mirror, by tier
	HeldByOracle uint64          // blocks the oracle last said we hold, all tiers together

	NextSequence   uint64 // of the next batch or snapshot
	Acknowledged   uint64 // highest batch the oracle has said it applied
	UnackedBatches int    // sealed, sent or to be sent again
	OutboxBytes    int    // of them and of the changes not sealed yet
	SnapshotNeeded bool   // the outbox was given up; the mirror will be stated whole

	Batches         uint64 // sealed
	Snapshots       uint64 // begun
	Resyncs         uint64 // asked for by the oracle
	Overflows       uint64 // times the outbox was full
	Disconnects     uint64 // accepted streams that have ended
	UnknownRemovals uint64 // blocks removed that were not there

	// Oracle is what the oracle counted on the current stream; nil before its first ack. Not to be changed.
	Oracle *kvoraclev1.BlockCounters
	// Load is what it made of the load samples.
	Load LoadBelief
}

// Stats looks at the reporter.
func (r *Reporter) Stats() ReporterStats {
	r.load.mu.Lock()
	belief := r.load.belief
	r.load.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Load = belief
	s.Held = make(map[Tier]uint64, numTiers)
	for t, d := range r.mirror.digests {
		if d.count > 0 {
			s.Held[tierAt(t)] = d.count
		}
	}
	s.NextSequence = r.out.next
	s.UnackedBatches = r.out.sealed.len()
	s.OutboxBytes = r.out.bytes
	s.SnapshotNeeded = r.out.needSnapshot
	s.Overflows = r.out.overflows
	return s
}
