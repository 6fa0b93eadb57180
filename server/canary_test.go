package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// TestPromptsDoNotLeak routes prompts made of numbers that occur nowhere else, in every way that ends well or badly, and
// then looks for them in everything that leaves the server but the answer: log lines, spans, metrics, error details.
func TestPromptsDoNotLeak(t *testing.T) {
	const token, hash = uint32(0xC0FFEE42), uint64(0xDECAFBAD0DDBA115)
	const text = "canary-text-of-a-prompt"
	r := newRig(t, Config{MaxPromptTokens: 64, SlowCall: 1})
	r.serve()
	r.worker("w1")

	ids := slices.Repeat([]uint32{token}, 48)
	hashes := func(scheme string, size, count uint32) *kvoraclev1.RouteRequest {
		return &kvoraclev1.RouteRequest{Model: "demo", Prompt: &kvoraclev1.RouteRequest_BlockHashes{BlockHashes: &kvoraclev1.BlockHashPrompt{
			HashScheme: scheme, BlockSize: size, LocalHashes: []uint64{hash, hash + 1}, TokenCount: count,
		}}}
	}
	unknown := prompt(ids...)
	unknown.Model = "nobody's"
	asText := func(s string, items ...*kvoraclev1.MultimodalItem) *kvoraclev1.RouteRequest {
		return &kvoraclev1.RouteRequest{Model: "demo", Prompt: &kvoraclev1.RouteRequest_Text{Text: s}, Multimodal: items, Explain: len(s) > 100}
	}
	wild := prompt(ids...)
	wild.MaxQueueSeconds = -1
	explain := prompt(ids...)
	explain.Explain = true
	requests := []*kvoraclev1.RouteRequest{
		prompt(ids...), explain, unknown, wild, prompt(slices.Repeat([]uint32{token}, 65)...),
		hashes("xxh3-64/1337", 16, 33), hashes("xxh3-64/1337", 16, 99), hashes("xxh3-64/1337", 32, 70), hashes("sha256", 16, 33),
		asText(text), asText(strings.Repeat(text, 11)), asText(strings.Repeat(text, 12)), asText(text, &kvoraclev1.MultimodalItem{}),
	}

	var out strings.Builder
	refused := 0
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", sampled)
	stream, err := r.route.RouteStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range requests {
		if _, err := r.route.Route(ctx, m); err != nil {
			refused++
			fmt.Fprintf(&out, "%v %v\n", err, status.Convert(err).Proto())
		}
		if err := stream.Send(&kvoraclev1.RouteStreamRequest{Request: m, Traceparent: sampled}); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out, answer.GetStatus())
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	blocks := r.report(ctx, "w2")
	if _, err := blocks.Recv(); err != nil {
		t.Fatal(err)
	}
	for seq, tokens := range [][]uint32{ids, ids[:47]} { // the second is refused: not a whole number of blocks
		if err := blocks.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{
			Sequence: uint64(seq) + 1, Ops: []*kvoraclev1.BlockOp{{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
				Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
				Content: &kvoraclev1.StoreBlocks_Tokens{Tokens: &kvoraclev1.BlockTokens{TokenIds: tokens}},
			}}}},
		}}}); err != nil {
			t.Fatal(err)
		}
		ack, err := blocks.Recv()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out, ack)
	}
	_, metrics := r.get("/metrics")
	out.WriteString(metrics)
	if r.stop(); refused < 6 || len(r.spans.Ended()) < len(requests) {
		t.Errorf("%d refusals and %d spans: the test has lost its teeth", refused, len(r.spans.Ended()))
	}
	for _, s := range r.spans.Ended() {
		fmt.Fprintln(&out, s.Name(), s.Attributes(), s.Events(), s.Status())
	}
	out.WriteString(r.logs.String())

	for _, canary := range []string{
		fmt.Sprint(token), fmt.Sprintf("%x", token), fmt.Sprint(int64(token) - 1<<32), fmt.Sprint(hash), fmt.Sprintf("%x", hash), text,
	} {
		if at := strings.Index(strings.ToLower(out.String()), canary); at >= 0 {
			t.Errorf("%q leaks: ...%s...", canary, out.String()[max(0, at-200):min(out.Len(), at+100)])
		}
	}
}
