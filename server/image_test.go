package server

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestImagesAreOneToAllDoors: token ids with an image under them, as vLLM's clients send them through a proxy, are the same prompt
// over gRPC, where reporters name images by the same words of the engine's; with another image they are another.
func TestImagesAreOneToAllDoors(t *testing.T) {
	r := up(t, Config{})
	r.pool()
	const cat = "4b1e0c2f9a7d4c63" // as an engine calls it
	body := `{"model":"demo","token_ids":[1,2,3` + strings.Repeat(",7", 45) + `],"features":{"mm_hashes":{"image":["` + cat + `"]},` +
		`"mm_placeholders":{"image":[{"offset":3,"length":45}]}}}`
	ids := []uint32{1, 2, 3}
	for range 45 {
		ids = append(ids, 7)
	}
	g := r.gateway()
	to := endpoints(t, g.ask(&gieAsk{method: "POST", path: "/inference/v1/generate", body: body}))
	for range body {
		g.recv()
	}
	g.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
		Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte("200")}}}, EndOfStream: true,
	}}})
	g.recv()
	for image, want := range map[string]uint64{cat: 48, "another one of these": 0} {
		a, err := r.route.Route(t.Context(), &kvoraclev1.RouteRequest{
			Model: "demo", DryRun: true, Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: ids}},
			Multimodal: []*kvoraclev1.MultimodalItem{{FirstToken: 3, TokenCount: 45, Digest: []byte(image)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := a.GetMatched().GetDevice(); got != want || want > 0 && a.GetTarget().GetAddress() != to[0] {
			t.Errorf("of an image %s %d tokens are matched, at %s; want %d, at %s", image, got, a.GetTarget().GetAddress(), want, to[0])
		}
	}
}
