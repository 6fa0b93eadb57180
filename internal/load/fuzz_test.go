package load

import (
	"math"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// FuzzNumbers: whatever a gateway or an engine says, every number of the state is finite and in range, and nothing is
// left when the booking ends.
func FuzzNumbers(f *testing.F) {
	inf, nan := math.Inf(1), math.NaN()
	f.Add(100, 60, 10, 0.5, 200, 3, 2, 500, 10, 20, 1e-5, int64(5), int64(time.Second))
	f.Add(0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, int64(0), int64(0))
	f.Add(-1, -1, -1, -1.0, -1, -1, -1, -1, -1, -1, -1.0, int64(-1), int64(-1))
	f.Add(math.MaxInt, math.MaxInt, math.MaxInt, inf, math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt,
		math.MaxInt, inf, int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add(math.MinInt, math.MinInt, math.MinInt, nan, math.MinInt, math.MinInt, math.MinInt, math.MinInt, math.MinInt,
		math.MinInt, nan, int64(math.MinInt64), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, prompt, uncached, shared int, prefill float64, output, running, waiting, tokens, used, total int,
		rate float64, stamp, nanos int64,
	) {
		tr := New(Config{PrefillSecondsPerToken: rate, MaxExpectedOutput: total})
		tr.Add(0, "m")
		tr.Add(1, "m")
		ids := []fleet.TargetID{0, 1}
		now := after(time.Duration(nanos))
		check := func(when string) {
			t.Helper()
			for _, s := range tr.States(ids, now, nil) {
				for _, v := range []float64{
					s.PendingPrefillSeconds, s.PendingPrefillTokens, s.ActiveTokens, s.HeldTokens, s.OutputToCome, s.UnreportedTokens + 1e12,
					float64(s.InFlight), float64(s.Booked), float64(s.Prefilling), float64(s.Decoding),
				} {
					if !(v >= 0 && v < 1e15) {
						t.Fatalf("%s: %+v", when, s)
					}
				}
				if !(s.KVUsed == -1 || (s.KVUsed >= 0 && s.KVUsed <= 1)) || s.ReportAge < -1 || s.HeldTokens > s.ActiveTokens ||
					s.UnreportedTokens > s.HeldTokens || s.InFlight != s.Prefilling+s.Decoding {
					t.Fatalf("%s: %+v", when, s)
				}
			}
			if m := tr.MeanOutput("m"); !(m >= 0 && m < 1e15) {
				t.Fatalf("%s: mean output %v", when, m)
			}
		}
		check("new")
		b := Booking{PromptTokens: prompt, UncachedTokens: uncached, SharedTokens: shared, PrefillSeconds: prefill, ExpectedOutput: output}
		for id := range DecisionID(3) {
			b.ID, b.Target = id, fleet.TargetID(id%2)
			if err := tr.Book(b, after(0)); err != nil {
				t.Fatal(err)
			}
		}
		check("booked")
		s := Sample{
			SampledAt: stamp, Running: Known(running), Waiting: Known(waiting), WaitingPrefillTokens: Known(tokens),
			UsedBlocks: Known(used), TotalBlocks: Known(total), SecondsPerToken: rate,
		}
		if b, err := tr.Report(0, s, now); err != nil || !(b.PendingPrefillSeconds >= 0 && b.PendingPrefillSeconds < 1e15) || b.InFlight < b.Booked {
			t.Fatalf("belief %+v, %v", b, err)
		}
		check("reported")
		s.WaitingPrefillTokens = Gauge{}
		_, _ = tr.Report(1, s, now)
		tr.Generating(0, output, now)
		check("generating")
		for id := range DecisionID(3) {
			tr.Finish(id, running, now)
		}
		check("finished")
		for _, s := range tr.States(ids, now, nil) {
			if s.Booked != 0 || s.ActiveTokens != 0 || s.HeldTokens != 0 || s.UnreportedTokens > 0 || s.OutputToCome != 0 {
				t.Fatalf("something is left: %+v", s)
			}
		}
	})
}
