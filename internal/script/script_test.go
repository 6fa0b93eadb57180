package script

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

const sample = `# a comment
worker w1 block=8

RB w1 e1 s1 +[A AB]
----
ack s1 fresh held=2

# another
ov AB
----
w1=2
two lines
`

func TestParse(t *testing.T) {
	steps, err := Parse(strings.NewReader(sample))
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{2, "worker w1 block=8", ""},
		{4, "RB w1 e1 s1 +[A AB]", "ack s1 fresh held=2\n"},
		{9, "ov AB", "w1=2\ntwo lines\n"},
	}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, bad := range []string{"----\nx\n", "ov A\n----\nx\n----\n"} {
		if _, err := Parse(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestRewriteChangesOnlyAnswers(t *testing.T) {
	steps, err := Parse(strings.NewReader(sample))
	if err != nil {
		t.Fatal(err)
	}
	answers := make([]string, len(steps))
	for i, s := range steps {
		answers[i] = s.Want
	}
	var out bytes.Buffer
	if err := Rewrite(strings.NewReader(sample), &out, answers); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample, out.String()); diff != "" {
		t.Errorf("the same answers changed the text (-want +got)\n%s", diff)
	}
	answers[1] = "ack s1 stale held=0\n"
	out.Reset()
	if err := Rewrite(strings.NewReader(sample), &out, answers); err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(sample, "ack s1 fresh held=2", "ack s1 stale held=0", 1); out.String() != want {
		t.Errorf("got\n%s", out.String())
	}
}

func TestSplit(t *testing.T) {
	c, err := split("RB w1/r2 e1 s3 +[A AB] -[X Y] lora=x@1 +{A>BC}")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"RB", "w1/r2", "e1", "s3", "+[A AB]", "-[X Y]", "+{A>BC}"}, c.words); diff != "" {
		t.Errorf("words (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"lora": "x@1"}, c.options); diff != "" {
		t.Errorf("options (-want +got)\n%s", diff)
	}
	for _, bad := range []string{"", "  ", "RB +[A", "RB A]"} {
		if _, err := split(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestTokensOf(t *testing.T) {
	a, err := tokensOf("AB+2")
	if err != nil || len(a) != 10 {
		t.Fatalf("AB+2: %d tokens, %v", len(a), err)
	}
	b, _ := tokensOf("AC")
	if !cmp.Equal(a[:4], b[:4]) || cmp.Equal(a[4:8], b[4:8]) {
		t.Error("equal letters must give equal tokens, different ones different")
	}
	if c, err := tokensOf("^A^+2"); err != nil || len(c) != 8 || !cmp.Equal(c[1:5], a[:4]) || c[0] != c[5] {
		t.Errorf("^A^+2: %v, %v; want one token, A, the same one, two more", c, err)
	}
	for _, bad := range []string{"A+x", "A+-1", "+99999999"} {
		if _, err := tokensOf(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestBlockNames(t *testing.T) {
	w := New(nil).worker("w")
	if got := w.parentOf("ABC"); got != "AB" {
		t.Errorf("parent of ABC is %q", got)
	}
	if got := w.parentOf("A"); got != "" {
		t.Errorf("parent of A is %q", got)
	}
	ab, err := w.id("AB", nil)
	if err != nil {
		t.Fatal(err)
	}
	cb, _ := w.id("CB", nil)
	salted, _ := w.id("AB", map[string]string{"salt": "s"})
	if ab == cb || ab == salted {
		t.Error("a block's id must depend on what is before it, and on the salt")
	}
	w.size = 8
	if got := w.parentOf("ABCD"); got != "AB" {
		t.Errorf("with blocks of 8 the parent of ABCD is %q", got)
	}
	if _, err := w.id("ABC", nil); err == nil {
		t.Error("half a block has an id")
	}
}

func TestMalformedOperations(t *testing.T) {
	w := New(nil).worker("w")
	ms, err := w.messages(1, []string{"?op", "?parent", "?content"}, nil, nil)
	if err != nil || len(ms) != 1 || len(ms[0].GetBatch().GetOps()) != 3 {
		t.Fatalf("got %v, %v", ms, err)
	}
	ops := ms[0].GetBatch().GetOps()
	if ops[0].GetOp() != nil {
		t.Errorf("?op: %v", ops[0])
	}
	if s := ops[1].GetStore(); s == nil || s.GetParent() != nil || s.GetContent() == nil {
		t.Errorf("?parent: %v", ops[1])
	}
	if s := ops[2].GetStore(); s == nil || s.GetParent() == nil || s.GetContent() != nil {
		t.Errorf("?content: %v", ops[2])
	}
	if _, err := w.messages(1, []string{"?what"}, nil, nil); err == nil {
		t.Error("?what was read")
	}
}

func TestAnswersAsText(t *testing.T) {
	r := New(nil)
	m := &kvoraclev1.RouteResponse{
		Target: &kvoraclev1.Target{WorkerId: "w"}, Matched: &kvoraclev1.TokensByTier{Device: 8},
		Reason: kvoraclev1.ChoiceReason_CHOICE_REASON_LEAST_COST, RepeatedDecision: true,
		Confidence: &kvoraclev1.Confidence{
			Blocks: kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_STALE, Load: kvoraclev1.LoadConfidence_LOAD_CONFIDENCE_IMPUTED,
		},
	}
	m.Candidates = []*kvoraclev1.CandidateExplanation{{
		Target: m.GetTarget(), Matched: m.GetMatched(), ExpectedTokens: 4, Confidence: m.GetConfidence(),
	}}
	busy := &kvoraclev1.RankStatus{
		InFlight: 3, BookedRequests: 2, PendingPrefillSeconds: 0.00126,
		Confidence: &kvoraclev1.Confidence{Load: kvoraclev1.LoadConfidence_LOAD_CONFIDENCE_REPORTED},
	}
	for _, c := range []struct{ got, want string }{
		{r.printChoice(m), "-> w(2) least_cost stale load_imputed repeated\n"},
		{r.printOverlap(m, false), "w=2:stale\n"},
		{r.printOverlap(m, true), "w=2+1:stale\n"},
		{printLoad(busy, false), "in_flight=3 booked=2 reported\n"},
		{printLoad(busy, true), "in_flight=3 booked=2 prefill=pending reported\n"},
		{printLoad(&kvoraclev1.RankStatus{}, true), "in_flight=0 booked=0 prefill=none unspecified\n"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// TestFirstReportSaysItsLife: a stream without an incarnation is a mistake of the script; one of 0 is for the oracle to
// judge.
func TestFirstReportSaysItsLife(t *testing.T) {
	r := New(refusingConn{})
	if _, err := r.Step(t.Context(), "RB w s1 +[A]"); err == nil || errors.Is(err, errNoConn) {
		t.Errorf("without eN: %v", err)
	}
	if _, err := r.Step(t.Context(), "RB w e0 s1 +[A]"); !errors.Is(err, errNoConn) {
		t.Errorf("with e0: %v", err)
	}
}

// TestWaitsAndGateways: what cannot be read is a mistake of the script, and asks nobody.
func TestWaitsAndGateways(t *testing.T) {
	r := New(refusingConn{})
	for _, bad := range []string{"wait", "wait x", "wait -1", "wait NaN", "wait 3601", "gateway g", "gateway g 1", "first r gw=g"} {
		if _, err := r.Step(t.Context(), bad); err == nil || errors.Is(err, errNoConn) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if answer, err := r.Step(t.Context(), "wait 0.001"); answer != "" || err != nil {
		t.Errorf("wait: %q, %v", answer, err)
	}
	if _, err := r.Step(t.Context(), "gateway g e1"); !errors.Is(err, errNoConn) {
		t.Errorf("gateway: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Step(ctx, "wait 3600"); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that nobody wants any more: %v", err)
	}
}

var errNoConn = errors.New("no connection")

type refusingConn struct{}

func (refusingConn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return errNoConn
}

func (refusingConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errNoConn
}

// FuzzParse: a transcript that can be read comes out of Rewrite with the same steps.
func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add("ov A\n----\n\n\nRT A\n")
	f.Fuzz(func(t *testing.T, text string) {
		steps, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		answers := make([]string, len(steps))
		for i, s := range steps {
			answers[i] = s.Want
			_, _ = split(s.Command) // must not panic
		}
		var out bytes.Buffer
		if err := Rewrite(strings.NewReader(text), &out, answers); err != nil {
			t.Fatal(err)
		}
		again, err := Parse(&out)
		if err != nil {
			t.Fatalf("rewritten text cannot be read: %v\n%q", err, out.String())
		}
		if len(again) != len(steps) {
			t.Fatalf("%d steps became %d", len(steps), len(again))
		}
		for i := range steps {
			if steps[i].Command != again[i].Command || steps[i].Want != again[i].Want {
				t.Fatalf("step %d: %+v became %+v", i, steps[i], again[i])
			}
		}
	})
}
