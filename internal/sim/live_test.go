package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/policy"
)

func liveOptions() RunOptions {
	return RunOptions{
		Options: Options{Engines: 8, BlockSize: 512, Keyspace: LiveKeyspace(512)}, Speed: 2.3, Warmup: 0.2,
	}
}

// The product and the books of a Router see the same and come to much the same, with any policy. Least time differs most:
// live it learns what work costs and what it is worth.
func TestLiveAgreesWithRouter(t *testing.T) {
	tr := mustSample(t)
	tr.Requests = tr.Requests[:1200]
	// The rules that count requests tie often, and ties go by what little is not the same.
	for name, within := range map[string]struct{ ttft, cached float64 }{
		"least_time": {0.06, 0.03}, "block_cost": {0.05, 0.02}, "least_loaded": {0.15, 0.02},
	} {
		p, _ := policy.ByName(name)
		live := mustRun(t, tr, NewLive(LiveOptions{Oracle: oracle.Config{Policy: p}}), liveOptions())
		books := mustRun(t, tr, NewRouter(p, RouterOptions{}), liveOptions())
		if math.Abs(live.TTFT.Mean/books.TTFT.Mean-1) > within.ttft || math.Abs(live.CachedShare-books.CachedShare) > within.cached {
			t.Errorf("%s: mean TTFT %v live, %v by books; cached %v and %v",
				name, live.TTFT.Mean, books.TTFT.Mean, live.CachedShare, books.CachedShare)
		}
	}
}

// Less told is less known, and nothing breaks.
func TestLiveKnowsLess(t *testing.T) {
	tr := mustSample(t)
	tr.Requests = tr.Requests[:600]
	all := mustRun(t, tr, NewLive(LiveOptions{}), liveOptions())
	for name, o := range map[string]LiveOptions{
		"load samples": {LoadEvery: 1}, "no events": {NoEvents: true}, "no first tokens": {NoFirstToken: true},
		"nothing": {NoEvents: true, NoFirstToken: true, NoFinish: true},
	} {
		r := mustRun(t, tr, NewLive(o), liveOptions())
		if r.N != all.N || r.TTFT.Mean < 0.5*all.TTFT.Mean {
			t.Errorf("%s: %d requests, mean TTFT %v; with everything %d and %v", name, r.N, r.TTFT.Mean, all.N, all.TTFT.Mean)
		}
	}
}

// An engine whose picture is doubted states its contents again, and nothing is missing then.
func TestLiveRestates(t *testing.T) {
	tr := mustSample(t)
	tr.Requests = tr.Requests[:200]
	live := NewLive(LiveOptions{})
	mustRun(t, tr, live, liveOptions())
	for i, r := range live.reporters {
		name := fmt.Sprintf("engine-%d", i)
		now := moment(live.ticked)
		if _, err := live.oracle.Invalidate(name); err != nil {
			t.Fatal(err)
		}
		r.restate(live.ticked)
		v, err := live.oracle.Verify(name, 0, now)
		if err != nil || live.err != nil {
			t.Fatal(err, live.err)
		}
		got, want := slices.Sorted(slices.Values(v.IDs[fleet.Device])), slices.Sorted(maps.Keys(r.held))
		if len(want) == 0 || !slices.Equal(got, want) || v.Confidence != oracle.Fresh || live.restated != i+1 {
			t.Errorf("%s: %s, %d blocks after %d snapshots, the engine holds %d", name, v.Confidence, len(got), live.restated, len(want))
		}
	}
}

func TestLiveSaysWhatIsRefused(t *testing.T) {
	tr := mustSample(t)
	o := liveOptions()
	o.Keyspace++
	if _, err := Run(tr, NewLive(LiveOptions{}), o); err == nil || !strings.Contains(err.Error(), "keyspace") {
		t.Errorf("another keyspace: %v", err)
	}
	live := NewLive(LiveOptions{Oracle: oracle.Config{MaxWorkers: 3}})
	if _, err := Run(tr, live, liveOptions()); err == nil || !strings.Contains(err.Error(), "limit of 3") {
		t.Errorf("more engines than the oracle takes: %v", err)
	}
}
