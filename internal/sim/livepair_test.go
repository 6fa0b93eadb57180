package sim

import "testing"

// TestPairsBeatTwoPicks: on a fleet of which half prefills, a pair chosen together serves requests sooner, from arrival to
// the last token, than a prefill and a decode worker chosen one by one; and where those that decode may prefill too, the
// first token comes sooner still.
func TestPairsBeatTwoPicks(t *testing.T) {
	tr := mustSample(t)
	tr.Requests = tr.Requests[:400]
	o := RunOptions{Options: Options{Engines: 8, BlockSize: 512, Keyspace: LiveKeyspace(512)}, Speed: 1.3, Warmup: 0.2, Keep: true}
	whole, ttft := map[string]float64{}, map[string]float64{}
	for name, p := range map[string]PairOptions{
		"two picks": {Prefill: 4, Rack: 4, Apart: true}, "pair": {Prefill: 4, Rack: 4}, "pair or one": {Prefill: 4, Rack: 4, Whole: true},
	} {
		r, err := RunPairs(tr, NewLivePairs(p), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range r.Requests {
			whole[name] += (q.Finished - q.Arrived) / float64(len(r.Requests))
		}
		ttft[name] = r.TTFT.Mean
		t.Logf("%s: %.3f s in all, first token after %.3f s, %.1f ms a token", name, whole[name], r.TTFT.Mean, r.TPOT.Mean*1e3)
	}
	if whole["pair"] >= whole["two picks"] {
		t.Errorf("in all: %.3f s as a pair, %.3f s as two picks", whole["pair"], whole["two picks"])
	}
	if ttft["pair or one"] >= ttft["pair"] {
		t.Errorf("first token: %.3f s where one may do both, %.3f s where none may", ttft["pair or one"], ttft["pair"])
	}
}

func TestPairsSayWhatIsRefused(t *testing.T) {
	tr := mustSample(t)
	o := liveOptions()
	o.Engines = 2
	if _, err := RunPairs(tr, NewLivePairs(PairOptions{Prefill: 0}), o); err == nil {
		t.Error("a fleet in which nobody prefills served a request")
	}
}
