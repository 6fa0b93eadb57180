package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/script"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestEveryRefusalIsCountedAndNamed walks the closed set of reasons: each one is reached from the wire, named in the ack,
// and counted by a metric of its own.
func TestEveryRefusalIsCountedAndNamed(t *testing.T) {
	const blocks = "kvoracle.blocks.refusals"
	long := strings.Repeat("B", 5000)
	for _, r := range oracle.RefusalReasons() {
		tt, ok := map[oracle.RefusalReason]struct {
			lines  []string // the last one is refused
			metric string   // blocks, with the reason
			with   string
		}{
			oracle.RefusalMalformed:        {[]string{"RB w1 e1 s1 ?parent"}, blocks, ""},
			oracle.RefusalPartialBlock:     {[]string{"RB w1 e1 s1 +(A 2)"}, blocks, ""},
			oracle.RefusalParentConflict:   {[]string{"RB w1 e1 s1 +id[X:X]"}, blocks, ""},
			oracle.RefusalOrphansFull:      {[]string{"RB w1 e1 s1 +{A>" + long + "}"}, blocks, ""},
			oracle.RefusalCapacity:         {[]string{"RB w1 e1 s1 +{" + long + long + "}"}, blocks, ""},
			oracle.RefusalGroup:            {[]string{"RB w1 e1 s1 +[A] group=3"}, blocks, ""},
			oracle.RefusalTier:             {[]string{"RB w1 e1 s1 +[A] tier=moon"}, blocks, ""},
			oracle.RefusalDuplicateBatch:   {[]string{"RB w1 e1 s1 +[A]", "RB w1 s1 +[A]"}, "kvoracle.blocks.batches", "outcome=duplicate"},
			oracle.RefusalAwaitingSnapshot: {[]string{"RB w1 e1 s7 +[A]"}, "kvoracle.blocks.batches", "outcome=ignored"},
			oracle.RefusalSnapshot:         {[]string{"RB w1 e1 s1 +[A]", "RB w1 end"}, blocks, ""},
			oracle.RefusalHashConflict:     {[]string{"worker w1 hashes=numbers", "RB w1 e1 s1 +h[7=A]", "RB w1 s2 +h[7=X]"}, blocks, ""},
			oracle.RefusalEngineHashesFull: {[]string{"worker w1 hashes=numbers", "RB w1 e1 s1 +{" + long + long + "}"}, blocks, ""},
		}[r]
		if !ok {
			if r != oracle.RefusalUnservedField { // every field of this version is served
				t.Errorf("nothing here is refused as %v", r)
			}
			continue
		}
		t.Run(r.String(), func(t *testing.T) {
			s := up(t, Config{MaxBlocks: 8000, MaxEngineHashes: 7000})
			run := script.New(s.conn)
			defer run.Close()
			var answer string
			for _, line := range tt.lines {
				var err error
				if answer, err = run.Step(t.Context(), line); err != nil {
					t.Fatal(err)
				}
			}
			if !strings.Contains(answer, "refused op 0: "+r.String()+"\n") {
				t.Errorf("the ack does not name it: %s", answer)
			}
			with := "reason=" + r.String()
			if tt.with != "" {
				with = tt.with
			}
			if n := s.counted(tt.metric, with); n != 1 {
				t.Errorf("%s{%s} is %d, want 1", tt.metric, with, n)
			}
		})
	}
}

// knownApart are four workers of which as many different things are known.
var knownApart = [][2]string{
	{"RB fresh e1 s1 +[A AB]", "ack s1 fresh held=2 stored=2"},
	{"RB warming e1 s7 +[A]", "ack s6 warming held=0 ignored=1\nrefused op 0: awaiting_snapshot"},
	{"RB stale e1 s1 +[A]", "ack s1 fresh held=1 stored=1"},
	{"RB stale s3 +[X]", "ack s1 stale held=1 gaps=1\nresync gap expected=2 received=3"},
	{"register silent", "ok"},
	{"RL fresh run=1", "applied=1 ignored=0 in_flight=1 booked=0"},
	{"RL silent run=0", "applied=1 ignored=0 in_flight=0 booked=0"},
}

// TestConfidenceIsSaidEverywhere: what is known of a target's blocks and load is in the answer, in every candidate's row, in
// the list of workers and in the metrics, and all four agree.
func TestConfidenceIsSaidEverywhere(t *testing.T) {
	s := up(t, Config{})
	run := script.New(s.conn)
	defer run.Close()
	says(t, run, knownApart)
	says(t, run, [][2]string{
		{"ov AB", "fresh=2 silent=0:silent stale=1:stale warming=0:warming"},
		{
			"list", "fresh e1 ready r0:fresh,s1,held=2,in_flight=1\nsilent e0 ready r0:silent,s0,held=0,in_flight=0\n" +
				"stale e1 ready r0:stale,s1,held=1,in_flight=1\nwarming e1 ready r0:warming,s6,held=0,in_flight=1",
		},
		{"RT ABC allow=fresh as=r1", "-> fresh(2) only_candidate"},
		{"RT ABC allow=silent as=r2", "-> silent(0) only_candidate silent"},
		{"RT ABC allow=stale as=r3", "-> stale(1) only_candidate stale load_imputed"},
		{"RT ABC allow=warming as=r4", "-> warming(0) only_candidate warming load_imputed"},
	})
	for _, c := range []string{"fresh", "warming", "stale", "silent"} {
		if n := s.counted("kvoracle.targets", "confidence="+c); n != 1 {
			t.Errorf("%d targets are %s in the metrics, want 1", n, c)
		}
		if n := s.counted("kvoracle.decisions", "booked=true", "blocks="+c); n != 1 {
			t.Errorf("%d decisions are on a %s target in the metrics, want 1", n, c)
		}
	}
	for load, want := range map[string]int64{"reported": 2, "imputed": 2} {
		if n := s.counted("kvoracle.decisions", "booked=true", "load="+load); n != want {
			t.Errorf("%d decisions are on %s load in the metrics, want %d", n, load, want)
		}
	}
}

// TestPartialAndApproximateAreSaidEverywhere is the same of what only comes about when the index is full, or when prompts
// were computed where nothing is reported. Neither is a worry on the status page; only the first is fresh to the health of
// the fleet.
func TestPartialAndApproximateAreSaidEverywhere(t *testing.T) {
	s := up(t, Config{MaxBlocks: 3, ExpectedWorkers: 2})
	run := script.New(s.conn)
	defer run.Close()
	says(t, run, [][2]string{
		{"register guessed", "ok"},
		{"RT ABC as=r1", "-> guessed(0) only_candidate silent"},
		{"first r1", "applied"},
		{"free r1", "applied"},
		{"RB full e1 s1 +[A AB ABC ABCD]", "ack s1 partial held=3 stored=3 refused=1 evicted=1\nrefused op 3: capacity"},
		{"RB full s1 digest", "ack s1 partial held=3 digests_matched=1"},
		{"RL full run=0", "applied=1 ignored=0 in_flight=0 booked=0"},
		{"ov ABCD", "full=3:partial guessed=3:approximate"},
		{"list", "full e1 ready r0:partial,s1,held=3,in_flight=0\nguessed e0 ready r0:approximate,s0,held=3,in_flight=0"},
		{"RT ABCD allow=full as=r2", "-> full(3) only_candidate partial"},
		{"RT ABCD allow=guessed as=r3", "-> guessed(3) only_candidate approximate load_imputed"},
	})
	for _, c := range []string{"partial", "approximate"} {
		if n := s.counted("kvoracle.targets", "confidence="+c); n != 1 {
			t.Errorf("%d targets are %s in the metrics, want 1", n, c)
		}
		if n := s.counted("kvoracle.decisions", "booked=true", "blocks="+c); n != 1 {
			t.Errorf("%d decisions are on a %s target in the metrics, want 1", n, c)
		}
	}
	for _, fresh := range []string{"true", "false"} { // what a partial target is credited with counts in full
		if n := s.counted("kvoracle.model.targets", "fresh="+fresh); n != 1 {
			t.Errorf("%d targets of the model with fresh=%s in the metrics, want 1", n, fresh)
		}
	}
	view, err := s.fleet.VerifyWorker(t.Context(), &kvoraclev1.VerifyWorkerRequest{Target: &kvoraclev1.Target{WorkerId: "full"}})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := view.Recv(); err != nil || m.GetConfidence() != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_PARTIAL {
		t.Errorf("verified: %v, %v", m.GetConfidence(), err)
	}
	s.s.countFresh(time.Now()) // as the janitor does now and then
	if code, text := s.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "fleet: not serving (1 of 2 expected workers fresh)") {
		t.Errorf("readyz: %d, %q", code, text)
	}
	page, _ := s.statusOf()
	seen := 0
	for n := range page.Descendants() {
		if n.Type == html.TextNode && (n.Data == "partial" || n.Data == "approximate") {
			if seen++; len(n.Parent.Attr) > 0 {
				t.Errorf("the status page worries about %s: %v", n.Data, n.Parent.Attr)
			}
		}
	}
	if seen != 2 {
		t.Errorf("the status page says %d of the two", seen)
	}
}

// TestAlternativesSayWhatIsKnownOfThem: a runner-up's confidence is its own, of whatever kind it is, of a pair's start too, and
// is the same when the answer is asked for again.
func TestAlternativesSayWhatIsKnownOfThem(t *testing.T) {
	s := up(t, Config{MaxBlocks: 5})
	run := script.New(s.conn)
	defer run.Close()
	says(t, run, knownApart)
	says(t, run, [][2]string{
		{"RT AB else=3 id=q", "-> fresh(2) least_cost\nelse stale(1):stale,imputed\nelse silent(0):silent,reported\nelse warming(0):warming,imputed"},
		{"RT AB else=3 id=q as=r1", "-> fresh(2) least_cost repeated\nelse stale(1):stale,imputed\nelse silent(0):silent,reported\nelse warming(0):warming,imputed"},
		{"RT AB else=1 id=q as=r2", "-> fresh(2) least_cost repeated\nelse stale(1):stale,imputed\nelse silent(0):silent,reported\nelse warming(0):warming,imputed"},
		{"cancel r1", "applied"},
		{"RT AB id=p", "-> fresh(2) least_cost"},
		{"RT AB id=p else=2 as=r3", "-> fresh(2) least_cost repeated\nelse stale(1):stale,imputed\nelse silent(0):silent,reported"},
		{"cancel r3", "applied"},

		{"RB full e1 s1 +[A AB ABC ABCD]", "ack s1 partial held=2 stored=2 refused=2 evicted=2\nrefused op 2: capacity\nrefused op 3: capacity"},
		{"RL full run=9", "applied=1 ignored=0 in_flight=9 booked=0"},
		{"RT ABX deny=stale,silent,warming else=1 as=r4", "-> fresh(2) least_cost\nelse full(2):partial,reported"},
		{"cancel r4", "applied"},
		{"RT XYZ allow=silent as=r5", "-> silent(0) only_candidate silent"},
		{"first r5", "applied"},
		{"free r5", "applied"},
		{"RT AB allow=fresh,silent else=1", "-> fresh(2) least_cost\nelse silent(0):approximate,reported"},

		{"worker pre roles=prefill", ""},
		{"worker one roles=decode", ""},
		{"worker two roles=decode", ""},
		{"RB pre e1 s1 clear", "ack s1 fresh held=0"},
		{"RB pre s3 clear", "ack s1 stale held=0 gaps=1\nresync gap expected=2 received=3"},
		{"RL pre run=0", "applied=1 ignored=0 in_flight=0 booked=0"},
		{"RB one e1 s1 clear", "ack s1 fresh held=0"},
		{"RB two e1 s4 clear", "ack s3 warming held=0 ignored=1\nrefused op 0: awaiting_snapshot"},
		{"RT XYZ phase=both allow=pre,one,two else=1 id=b", "-> pre(0):stale > one(0) tie_least_recent load_imputed\nelse pre:stale,reported > two(0):warming,imputed"},
		{"RT XYZ phase=both allow=pre,one,two else=1 id=b", "-> pre(0):stale > one(0) tie_least_recent load_imputed repeated\nelse pre:stale,reported > two(0):warming,imputed"},
	})
}

// TestPredictionErrorIsToldByWorker: what engines count stands beside what was matched, for each worker, in the metrics and in
// the list. A request that went elsewhere than decided says nothing about either.
func TestPredictionErrorIsToldByWorker(t *testing.T) {
	s := up(t, Config{})
	run := script.New(s.conn)
	defer run.Close()
	for _, line := range []string{
		"RB w1 e1 s1 +[A AB ABC]", "RB w2 e1 s1 +[A]",
		"RT ABCD allow=w1 as=r1", "free r1 cached=4", "RT ABCD allow=w1 as=r2", "free r2 cached=12",
		"RT ABCD allow=w2 as=r3", "free r3 cached=0",
		"RT ABCD allow=w1 as=r4", "sent r4 w2", "free r4 cached=0",
		"RT ABCD allow=w1 as=r5", "free r5",
	} {
		if _, err := run.Step(t.Context(), line); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.fleet.ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
	if err != nil || len(list.GetWorkers()) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	for i, want := range [][2]int64{{24, 16}, {4, 0}} {
		w := list.GetWorkers()[i]
		name, k := w.GetSpec().GetWorkerId(), w.GetRanks()[0]
		if k.GetMatchedTokens() != uint64(want[0]) || k.GetCachedTokens() != uint64(want[1]) {
			t.Errorf("%s: %v, want %v tokens matched and counted", name, k, want)
		}
		for j, source := range []string{"matched", "counted"} {
			if n := s.counted("kvoracle.worker.cached.tokens", "worker="+name, "source="+source); n != want[j] {
				t.Errorf("%s: %d tokens %s in the metrics, want %d", name, n, source, want[j])
			}
		}
	}
	for source, want := range map[string]int64{"matched": 28, "counted": 16} {
		if n := s.counted("kvoracle.cached.tokens", "source="+source); n != want {
			t.Errorf("%d tokens %s in all, want %d", n, source, want)
		}
	}
}

// says holds what a transcript's lines are answered.
func says(t *testing.T, run *script.Runner, lines [][2]string) {
	t.Helper()
	for _, x := range lines {
		answer, err := run.Step(t.Context(), x[0])
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSuffix(answer, "\n"); got != x[1] {
			t.Errorf("%s: got\n%s\nwant\n%s", x[0], got, x[1])
		}
	}
}
