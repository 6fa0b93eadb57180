package server

import (
	"fmt"
	"strings"
	"testing"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestTextIsRouted: a prompt that is text is found again where it was sent, over each door, and its tokens are not those of
// anybody's reports.
func TestTextIsRouted(t *testing.T) {
	r := upHTTP(t, Config{})
	for _, name := range []string{"w2", "w3"} {
		r.worker(name)
	}
	talk := strings.Repeat("Once upon a time there was a gateway. ", 40)
	ask := func(text string) *kvoraclev1.RouteRequest {
		return &kvoraclev1.RouteRequest{Model: "demo", Prompt: &kvoraclev1.RouteRequest_Text{Text: text}}
	}
	sent, err := r.route.Route(t.Context(), ask(talk))
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(len(talk)+3) / 4; sent.GetPromptTokens() != want {
		t.Errorf("%d bytes are %d tokens, want %d", len(talk), sent.GetPromptTokens(), want)
	}
	record(t, r, sent.GetDecisionId(), &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_Dispatched{Dispatched: &kvoraclev1.Dispatched{}}})
	record(t, r, sent.GetDecisionId(), &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_FirstToken{FirstToken: &kvoraclev1.FirstToken{}}})
	record(t, r, sent.GetDecisionId(), &kvoraclev1.ProgressEvent{Step: &kvoraclev1.ProgressEvent_Finished{Finished: &kvoraclev1.Finished{}}})

	next := talk + "What did it do?"
	stream, err := r.route.RouteStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&kvoraclev1.RouteStreamRequest{Request: ask(next)}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	unary, err := r.route.Route(t.Context(), ask(next))
	if err != nil {
		t.Fatal(err)
	}
	overHTTP := &kvoraclev1.RouteResponse{}
	r.ok("POST", "/v1/route", fmt.Sprintf(`{"model":"demo","text":%q}`, next), overHTTP)
	for door, d := range map[string]*kvoraclev1.RouteResponse{"RouteStream": answer.GetResponse(), "Route": unary, "HTTP": overHTTP} {
		if d.GetTarget().GetWorkerId() != sent.GetTarget().GetWorkerId() || d.GetMatched().GetDevice() < uint64(len(talk)/4-16) {
			t.Errorf("%s: sent to %s, the next turn to %v with %v", door, sent.GetTarget().GetWorkerId(), d.GetTarget(), d.GetMatched())
		}
		if c := d.GetConfidence().GetBlocks(); c != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_APPROXIMATE {
			t.Errorf("%s: what is known of text is %v", door, c)
		}
	}

	// The bytes of a text as token ids are another prompt.
	ids := make([]uint32, len(talk)/4)
	for i := range ids {
		ids[i] = uint32(talk[4*i]) | uint32(talk[4*i+1])<<8 | uint32(talk[4*i+2])<<16 | uint32(talk[4*i+3])<<24
	}
	d, err := r.route.Route(t.Context(), prompt(ids...))
	if err != nil {
		t.Fatal(err)
	}
	if n := d.GetMatched().GetDevice(); n != 0 {
		t.Errorf("%d tokens were matched with text", n)
	}
}

// record tells one step, which must be applied.
func record(t *testing.T, r *rig, decision string, e *kvoraclev1.ProgressEvent) {
	t.Helper()
	e.DecisionId = decision
	m, err := r.route.RecordProgress(t.Context(), &kvoraclev1.RecordProgressRequest{Events: []*kvoraclev1.ProgressEvent{e}})
	if err != nil || m.GetApplied() != 1 {
		t.Fatalf("%v: %v, %v", e, m, err)
	}
}
