package load

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// benchTracker has n targets with ten bookings each; every k-th did not report (0: all did).
func benchTracker(b testing.TB, n, k int) (*Tracker, []fleet.TargetID) {
	b.Helper()
	tr := New(Config{})
	ids := make([]fleet.TargetID, n)
	for i := range ids {
		ids[i] = fleet.TargetID(i)
		tr.Add(ids[i], "m")
		for j := range 10 {
			if err := tr.Book(Booking{ID: DecisionID(10*i + j), Target: ids[i], PromptTokens: 4000, UncachedTokens: 1000}, after(0)); err != nil {
				b.Fatal(err)
			}
		}
		if k == 0 || i%k != 0 {
			_, _ = tr.Report(ids[i], Sample{Running: Known(i * 37 % 50), UsedBlocks: Known(i % 9), TotalBlocks: Known(9)}, after(0))
		}
	}
	return tr, ids
}

func BenchmarkStates(b *testing.B) {
	for _, n := range []int{8, 64, 1024} {
		for name, k := range map[string]int{"reported": 0, "imputed": 4} {
			b.Run(fmt.Sprintf("targets=%d/%s", n, name), func(b *testing.B) {
				tr, ids := benchTracker(b, n, k)
				var dst []State
				b.ReportAllocs()
				for b.Loop() {
					dst = tr.States(ids, after(0), dst)
				}
			})
		}
	}
}

// BenchmarkLife is one request from booking to end, beside 100,000 others.
func BenchmarkLife(b *testing.B) {
	tr, _ := benchTracker(b, 10_000, 0)
	id := DecisionID(1 << 40)
	_ = tr.Book(Booking{ID: id, Target: 5, Gateway: "g"}, after(0))
	b.ReportAllocs()
	for b.Loop() {
		id++
		_ = tr.Book(Booking{ID: id, Target: 5, PromptTokens: 4000, UncachedTokens: 100}, after(0))
		tr.Dispatched(id, 0, false, "g", after(0))
		tr.FirstToken(id, after(0))
		tr.Generating(id, 10, after(0))
		tr.Finish(id, 20, after(0))
	}
}

// BenchmarkExpireIdle is the sweep of 100,000 living bookings of which none is overdue.
func BenchmarkExpireIdle(b *testing.B) {
	tr, _ := benchTracker(b, 10_000, 0)
	for b.Loop() {
		tr.Expire(after(time.Second))
	}
}
