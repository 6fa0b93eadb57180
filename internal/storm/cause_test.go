package storm

import (
	"slices"
	"testing"
)

// TestOneCauseOneSnapshot lets one thing happen to a calm world and counts the snapshots asked for.
func TestOneCauseOneSnapshot(t *testing.T) {
	all := func(w *world) int { return len(w.ranks) }
	none := func(*world) int { return 0 }
	one := func(*world) int { return 1 }
	ofOne := func(w *world) int { return len(w.workers[0].ranks) }
	ofOneAndOne := func(w *world) int { return ofOne(w) + 1 }
	seeds := 25
	if isRace {
		seeds = 3
	}
	for _, tt := range []struct {
		fault       fault
		least, most func(w *world) int
	}{
		{crash, none, none},      // a new life begins empty
		{renumber, ofOne, ofOne}, // each rank's numbering begins again
		{relay, none, one},       // unless the engine told nothing until it was told again in full
		{newOracle, all, all},
		{cutStream, none, none}, // what was not acknowledged is sent again
		{duplicate, none, one},  // behind a snapshot a repeat cannot be told from another numbering
		{reorder, none, one},    // a batch may change places with the snapshot that shows it
		{loseOp, none, one},     // it may have changed nothing
		{loseBatch, one, one},
		{loseDigest, none, none},
		{losePart, ofOneAndOne, ofOneAndOne}, // of the snapshot that an operator has asked for
		{stall, none, none},
		{remove, ofOne, ofOne},
		{invalidate, ofOne, ofOne},
		{pastGrace, none, none}, // the streams are open
		{pastLease, none, none},
		{pastForget, none, none},
	} {
		t.Run(tt.fault.String(), func(t *testing.T) {
			for seed := range uint64(seeds) {
				w := newWorld(seed, nil)
				w.weather = [numFaults]bool{}
				w.workers = w.workers[:1]
				w.ranks = w.workers[0].ranks
				w.storm(100)
				if tt.fault == losePart {
					w.calm()
					w.invalidate(w.workers[0])
				}
				for ; ; w.storm(1) {
					if !needsTraffic(tt.fault) {
						w.calm()
					}
					if w.strike(tt.fault); w.err != nil || w.count.faults[tt.fault] > 0 {
						break
					}
				}
				w.storm(60)
				w.calm()
				asked := 0
				for _, r := range w.ranks {
					asked += r.asked
				}
				if w.err != nil {
					t.Fatalf("seed %d: %v", seed, w.err)
				}
				if asked < tt.least(w) || asked > tt.most(w) {
					t.Errorf("seed %d: asked for %d snapshots, want %d to %d", seed, asked, tt.least(w), tt.most(w))
				}
			}
		})
	}
}

// needsTraffic reports whether a fault can only strike something that is on its way.
func needsTraffic(f fault) bool {
	return slices.Contains([]fault{duplicate, reorder, loseOp, loseBatch, loseDigest, losePart, cutStream, stall}, f)
}
