package server_test

import (
	"testing"

	"github.com/kvoracle/kvoracle/client/clienttest"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestHotPromptSpreads is case B96: one worker holds a system prompt that a hundred requests begin with, none of which ends.
// They do not all go there.
func TestHotPromptSpreads(t *testing.T) {
	o := clienttest.Start(t)
	play(t, o, "RB w1 e1 s1 +{SSSSSSSSSS}", "RB w2 e1 s1 clear", "RB w3 e1 s1 clear", "RB w4 e1 s1 clear")
	route := kvoraclev1.NewRouteServiceClient(o.Conn())
	chosen := map[string]int{}
	const requests = 100
	for i := range uint32(requests) {
		ids := make([]uint32, 44)
		for j := range uint32(40) {
			ids[j] = 'S'<<8 | j%4 // as a script spells it
		}
		for j := range uint32(4) {
			ids[40+j] = 1_000_000 + 4*i + j
		}
		m, err := route.Route(t.Context(), &kvoraclev1.RouteRequest{
			Model: "m", Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: ids}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 && m.GetMatched().GetDevice() != 40 {
			t.Fatalf("the first matches %d tokens on %s, want 40", m.GetMatched().GetDevice(), m.GetTarget().GetWorkerId())
		}
		chosen[m.GetTarget().GetWorkerId()]++
	}
	for w, n := range chosen {
		if n > requests/4*3/2 {
			t.Errorf("%s has %d of %d requests: %v", w, n, requests, chosen)
		}
	}
}
