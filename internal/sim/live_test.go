package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

func liveOptions() RunOptions {
	return RunOptions{
		Options: Options{Engines: 8, BlockSize: 512, Keyspace: LiveKeyspace(512)}, Speed: 2.3, Warmup: 0.2,
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
