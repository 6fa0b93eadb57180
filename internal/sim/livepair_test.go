package sim

import "testing"

func TestPairsSayWhatIsRefused(t *testing.T) {
	tr := mustSample(t)
	o := liveOptions()
	o.Engines = 2
	if _, err := RunPairs(tr, NewLivePairs(PairOptions{Prefill: 0}), o); err == nil {
		t.Error("a fleet in which nobody prefills served a request")
	}
}
