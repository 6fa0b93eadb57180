package sim

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sticky sends prompts that begin with the same 1,024 tokens to the same engine.
type sticky struct{}

func (sticky) Choose(_ float64, r *Request, f *Fleet) int {
	c := r.Chain(testKeyspace, 64)
	if len(c) < 16 {
		return r.Index % f.Engines()
	}
	return int(uint64(c[15]) % uint64(f.Engines()))
}

func eight() RunOptions {
	return RunOptions{Options: Options{Engines: 8, BlockSize: 64, Keyspace: testKeyspace}, Warmup: 0.2}
}

func mustRun(t testing.TB, tr *Trace, c Chooser, o RunOptions) Result {
	t.Helper()
	r, err := Run(tr, c, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustSample(t testing.TB) *Trace {
	t.Helper()
	tr, err := Sample()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestSample(t *testing.T) {
	tr := mustSample(t)
	if n := len(tr.Requests); n != SampleRequests {
		t.Fatalf("%d requests, want %d", n, SampleRequests)
	}
	tokens, last := 0, tr.Requests[SampleRequests-1].Arrival
	arrivals := map[float64]bool{}
	for _, r := range tr.Requests {
		tokens += r.Input
		arrivals[r.Arrival] = true
		if r.hashes[0] != 0 {
			t.Errorf("request %d does not begin like the others", r.Index)
		}
	}
	if mean := tokens / SampleRequests; mean < 13_700 || mean > 13_800 {
		t.Errorf("%d tokens a prompt", mean)
	}
	if last < 795 || last > 798 {
		t.Errorf("last arrival at %v", last)
	}
	if len(arrivals) != SampleRequests {
		t.Errorf("%d different arrivals", len(arrivals))
	}
}

func TestSampleIsTheFileDescribed(t *testing.T) {
	readme, err := os.ReadFile("sample/README.md")
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(sampleFile))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, z); err != nil {
		t.Fatal(err)
	}
	if want := hex.EncodeToString(sum.Sum(nil)); !strings.Contains(string(readme), want) {
		t.Errorf("sample/README.md does not name SHA-256 %s", want)
	}
}

func TestRunIsDeterministic(t *testing.T) {
	tr, again := mustSample(t), mustSample(t)
	tr.Requests, again.Requests = tr.Requests[:500], again.Requests[:500]
	for name, c := range map[string]func() Chooser{
		"round robin": RoundRobin, "least loaded": LeastLoaded, "random": func() Chooser { return Random(5) },
	} {
		a, b := mustRun(t, tr, c(), eight()), mustRun(t, again, c(), eight())
		if d := cmp.Diff(a, b); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
	if cmp.Equal(mustRun(t, tr, Random(5), eight()), mustRun(t, tr, Random(6), eight())) {
		t.Error("the seed changes nothing")
	}
}

func TestRunRefuses(t *testing.T) {
	tr := readLines(t, ReadOptions{}, row(0, 1, 1, 0))
	for name, change := range map[string]func(*RunOptions){
		"speed":    func(o *RunOptions) { o.Speed = -1 },
		"speed 2":  func(o *RunOptions) { o.Speed = math.NaN() },
		"warm-up":  func(o *RunOptions) { o.Warmup = 1 },
		"warm-up2": func(o *RunOptions) { o.Warmup = math.NaN() },
		"engines":  func(o *RunOptions) { o.Engines = 0 },
	} {
		o := eight()
		change(&o)
		if _, err := Run(tr, RoundRobin(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Run(tr, fixed(8), eight()); err == nil || !strings.Contains(err.Error(), "request 0") {
		t.Errorf("a choice that is no engine: %v", err)
	}
}

type fixed int

func (c fixed) Choose(float64, *Request, *Fleet) int { return int(c) }

func TestRunLeavesOutWhatIsTooLong(t *testing.T) {
	m := dyadic()
	m.KVTokens = 16
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 17, 1, 0, 1, 2, 3, 4), row(0, 1, 1, 0), row(0, 16, 1, 0, 1, 2, 3))
	for _, tt := range []struct {
		warmup     float64
		n, refused int
	}{{0, 1, 2}, {0.4, 1, 1}, {0.7, 0, 1}} {
		asked := &counter{}
		r := mustRun(t, tr, asked, RunOptions{Options: Options{Engines: 1, Model: m, BlockSize: 4}, Warmup: tt.warmup})
		if r.N != tt.n || r.Refused != tt.refused || asked.n != 1 {
			t.Errorf("warm-up %v: %d measured, %d refused, chooser asked %d times, want %d, %d, 1",
				tt.warmup, r.N, r.Refused, asked.n, tt.n, tt.refused)
		}
	}
}

type counter struct{ n int }

func (c *counter) Choose(float64, *Request, *Fleet) int { c.n++; return 0 }

func TestChoosers(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 4, 1, 0))
	f := newTestFleet(t, Options{Engines: 3, Model: dyadic(), BlockSize: 4})
	r := tr.Requests[0]
	choose := func(c Chooser, n int) (got []int) {
		for range n {
			got = append(got, c.Choose(0, r, f))
		}
		return got
	}
	if d := cmp.Diff([]int{0, 1, 2, 0, 1}, choose(RoundRobin(), 5)); d != "" {
		t.Errorf("round robin:\n%s", d)
	}
	counts := map[int]int{}
	for _, e := range choose(Random(1), 3000) {
		counts[e]++
	}
	for e := range 3 {
		if counts[e] < 900 || counts[e] > 1100 {
			t.Errorf("random: engine %d chosen %d times of 3000", e, counts[e])
		}
	}
	least := LeastLoaded()
	if d := cmp.Diff([]int{0, 1, 2, 0}, choose(least, 4)); d != "" {
		t.Errorf("least loaded, all idle:\n%s", d)
	}
	submit(t, f, 1, r, 0)
	if d := cmp.Diff([]int{2, 0, 2}, choose(least, 3)); d != "" {
		t.Errorf("least loaded, one busy:\n%s", d)
	}
	submit(t, f, 0, r, 0)
	submit(t, f, 2, r, 0)
	submit(t, f, 2, r, 0)
	submit(t, f, 0, r, 0)
	if d := cmp.Diff([]int{1, 1}, choose(least, 2)); d != "" {
		t.Errorf("least loaded, one less busy:\n%s", d)
	}
}

func TestResultByHand(t *testing.T) {
	// Two engines, one request each before the measurement and three after it: engine 0 gets the longer half.
	tr := readLines(t, ReadOptions{BlockSize: 4},
		row(0, 4, 1, 0), row(8000, 8, 3, 0, 1), row(8000, 4, 1, 2), row(16000, 8, 1, 0, 1))
	f := newTestFleet(t, Options{Engines: 2, Model: dyadic(), BlockSize: 4, Keyspace: testKeyspace})
	if d := cmp.Diff(Result{}, f.Result()); d != "" {
		t.Errorf("before anything:\n%s", d)
	}
	submit(t, f, 0, tr.Requests[0], 0)
	f.Advance(1)
	if u := f.Result().Utilisation; u != 0.5 {
		t.Errorf("one of two engines is busy, utilisation %v", u)
	}
	f.Measure() // in the middle of request 0, which will not count
	f.Advance(2)
	if u := f.Result().Utilisation; u != 0.5 {
		t.Errorf("one of two engines is still busy, utilisation %v", u)
	}
	submit(t, f, 0, tr.Requests[1], 8)
	submit(t, f, 1, tr.Requests[2], 8)
	submit(t, f, 0, tr.Requests[3], 16)
	drain(t, f)
	f.Advance(21)
	// Request 1: 4 cached, 4 computed: 2 + 4*6/1024 = 2.0234375; two tokens more: 2*2 + (9+10)/64 = 4.296875.
	// Request 2: 2.0078125. Request 3: as the first part of request 1.
	// Compute: 4/4 + 24/1024 twice on engine 0, and request 0's 4/4 + 8/1024, whose iteration ended after 1;
	// 4/4 + 8/1024 on engine 1.
	busy := (2.0078125 - 1) + 2.0234375 + 4.296875 + 2.0234375 + 2.0078125
	work0, work1 := 2*(1+24.0/1024)+1+8.0/1024, 1+8.0/1024
	want := Result{
		N: 3, Span: 20,
		TTFT:         Summary{Mean: (2*2.0234375 + 2.0078125) / 3, P50: 2.0234375, P90: 2.0234375, P99: 2.0234375},
		TPOT:         Summary{Mean: 4.296875 / 2, P50: 4.296875 / 2, P90: 4.296875 / 2, P99: 4.296875 / 2},
		PromptTokens: 20, CachedTokens: 8, CachedShare: 0.4,
		Imbalance: work0 / ((work0 + work1) / 2), Utilisation: busy / 40,
	}
	if d := cmp.Diff(want, f.Result()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if b, err := json.Marshal(want); err != nil || !strings.Contains(string(b), `"cached_share":0.4`) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestMeasureCountsWhatIsSubmittedAfterIt(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 4, 1, 0))
	f := newTestFleet(t, Options{Engines: 1, Model: dyadic(), BlockSize: 4})
	f.Advance(5)
	submit(t, f, 0, tr.Requests[0], 5)
	f.Measure()
	submit(t, f, 0, tr.Requests[0], 4) // has arrived before, and comes now
	drain(t, f)
	if r := f.Result(); r.N != 1 || r.TTFT.Mean != 2*2.0078125+1 {
		t.Errorf("got %+v, want the second request only", r)
	}
	f.Measure()
	if d := cmp.Diff(Result{}, f.Result()); d != "" {
		t.Errorf("begun anew:\n%s", d)
	}
}

// The classes do what their comments say.
func TestModelClasses(t *testing.T) {
	for _, tt := range []struct {
		model   Model
		prefill float64 // tokens a second at short context
		decode  float64 // seconds a token, alone
	}{
		{Model8B(), 45e3, 7.5e-3},
		{Model70B(), 14.7e3, 18e-3},
	} {
		m := tt.model
		if err := m.check(64); err != nil {
			t.Error(err)
		}
		if got := 1 / m.PrefillPerToken; math.Abs(got/tt.prefill-1) > 0.02 {
			t.Errorf("%s: %v tokens a second", m.Name, got)
		}
		if got := m.linear(1); got != tt.decode {
			t.Errorf("%s: %v s a token", m.Name, got)
		}
	}
}

func TestSummary(t *testing.T) {
	for n := range 300 {
		sample := make([]float64, n)
		for i := range sample {
			sample[i] = float64(i + 1)
		}
		rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, j int) { sample[i], sample[j] = sample[j], sample[i] })
		want := Summary{} // of 1 to n, the value of rank k is k
		if n > 0 {
			rank := func(percent int) float64 { return float64(ceilDiv(percent*n, 100)) }
			want = Summary{Mean: float64(n+1) / 2, P50: rank(50), P90: rank(90), P99: rank(99)}
		}
		if got := summarize(sample); got != want {
			t.Fatalf("1 to %d: %+v, want %+v", n, got, want)
		}
	}
}

func BenchmarkRunSample(b *testing.B) {
	tr := mustSample(b)
	for b.Loop() {
		mustRun(b, tr, RoundRobin(), eight())
	}
}

func BenchmarkReadAndHashSample(b *testing.B) {
	for b.Loop() {
		for _, r := range mustSample(b).Requests {
			r.Chain(testKeyspace, 64)
		}
	}
}
