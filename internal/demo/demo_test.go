package demo

import (
	"bytes"
	"strings"
	"testing"
)

// TestRun is the demonstration itself, short and fast: the live path must hold together and the oracle's picture must
// equal the engines' caches.
func TestRun(t *testing.T) {
	told := map[string]int{}
	out, err := Run(t.Context(), Options{
		Policies: []string{"least_time", "round_robin"}, Engines: 3, Requests: 80, Pace: 100,
		Progress: func(policy string, done, all int) {
			if all != 80 || done != told[policy]+1 {
				t.Errorf("%s: progress %d of %d after %d", policy, done, all, told[policy])
			}
			told[policy] = done
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != 2 {
		t.Fatalf("%d outcomes", len(out))
	}
	for _, o := range out {
		if o.Decisions != 80 || told[o.Policy] != 80 || o.Verified != 3 || o.HeldBlocks == 0 || o.N != 64 || o.PerSecond <= 0 || o.DecideP99 < o.DecideP50 {
			t.Errorf("%s: %+v", o.Policy, o)
		}
	}
	if out[0].CachedShare <= 0 {
		t.Errorf("nothing came from the cache: %+v", out[0])
	}
	var table bytes.Buffer
	if err := Print(&table, out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kvoracle", "round robin", "TTFT p99", "3 workers", "times as fast"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
}

func TestRunRefuses(t *testing.T) {
	if _, err := Run(t.Context(), Options{}); err == nil {
		t.Error("no policies were accepted")
	}
	if _, err := Run(t.Context(), Options{Policies: []string{"nonsense"}}); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("an unknown policy: %v", err)
	}
}
