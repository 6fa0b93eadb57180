package extproc

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// TestBufferedChoice: the choice comes with the body's answer, in header and metadata, with two others in order.
func TestBufferedChoice(t *testing.T) {
	r := start(t, 4, nil)
	c, m := r.ask(chatPath, `{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
	to, decision := choice(t, m)
	if len(to) != 3 || decision == "" {
		t.Errorf("chose %v, decision %q; want three workers and a name", to, decision)
	}
	seen := map[string]bool{}
	for _, a := range to {
		if seen[a] || !slices.Contains([]string{at(1), at(2), at(3), at(4)}, a) {
			t.Errorf("%v: each must be a worker, once", to)
		}
		seen[a] = true
	}
	if m.GetRequestBody().GetResponse().GetBodyMutation() != nil {
		t.Error("the body was touched")
	}
	if got := next(t, r.picked); got != Decided {
		t.Errorf("counted as %v", got)
	}
	if got := next(t, r.sources); got != FromText {
		t.Errorf("known by %v", got)
	}
	c.over()
	if d := cmp.Diff([]string{"cancelled applied"}, r.heard()); d != "" {
		t.Errorf("it has never been answered: %s", d)
	}
}

// TestDuplexKeepsOrder: headers are answered when the body is complete, then it comes back as it was.
func TestDuplexKeepsOrder(t *testing.T) {
	body := `{"model":"m","prompt":"` + strings.Repeat("0123456789", 20_000) + `"}`
	for _, tt := range []struct {
		name     string
		pieces   []int // where it is cut
		trailers bool
		emptyEnd bool
	}{
		{"at once", nil, false, false},
		{"an empty last piece", []int{70_000}, false, true},
		{"many pieces", []int{1, 2, 100, 64_000, 130_000, 199_999}, false, false},
		{"trailers", []int{1000}, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, 2, nil)
			c := r.call(duplex, none)
			c.post(textPath, "content-length", strconv.Itoa(len(body)))
			from := 0
			for _, cut := range tt.pieces {
				c.body(body[from:cut], false)
				from = cut
			}
			if tt.emptyEnd {
				c.body(body[from:], false)
				c.body("", true)
			} else {
				c.body(body[from:], !tt.trailers)
			}
			if tt.trailers {
				c.trailers()
			}
			m := c.recv()
			if to, _ := choice(t, m); m.GetRequestHeaders() == nil || len(to) != 2 {
				t.Fatalf("first came %v", m)
			}
			length := headerIn(m.GetRequestHeaders().GetResponse().GetHeaderMutation(), "content-length")
			if want := strconv.Itoa(len(body)); !tt.trailers && length != want || tt.trailers && length != "" {
				t.Errorf("content-length %q, the body has %s, trailers %v", length, want, tt.trailers)
			}
			var got []byte
			for isEnd := false; !isEnd && len(got) < len(body); {
				s := c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
				if s == nil || len(s.GetBody()) > longestChunk || len(s.GetBody()) == 0 {
					t.Fatalf("a piece of %d bytes", len(s.GetBody()))
				}
				got, isEnd = append(got, s.GetBody()...), s.GetEndOfStream()
				if isEnd != (!tt.trailers && len(got) == len(body)) {
					t.Fatalf("after %d of %d bytes: end %v", len(got), len(body), isEnd)
				}
			}
			if string(got) != body {
				t.Error("what came back is not what was sent")
			}
			if tt.trailers && c.recv().GetRequestTrailers() == nil {
				t.Error("no trailers at the end")
			}
			c.over()
		})
	}
}

// TestOverload: a request that is let go is answered at its headers, its body passes, and nothing is booked for it.
func TestOverload(t *testing.T) {
	isOver := true
	r := start(t, 3, func(c *Config) { c.Overloaded = func(context.Context) bool { return isOver } })
	const body = `{"model":"m","prompt":"hello"}`
	c := r.call(buffered, none)
	c.post(textPath, keyChoice, "6.6.6.6:80")
	if to, _ := choice(t, c.recv()); to != nil {
		t.Errorf("buffered: chose %v", to)
	}
	c.body(body, true)
	if m := c.recv().GetRequestBody(); m == nil || m.GetResponse() != nil {
		t.Errorf("buffered: the body was answered with %v", m)
	}
	c.over()

	c = r.call(duplex, none)
	c.post(textPath)
	if to, _ := choice(t, c.recv()); len(to) != 2 {
		t.Errorf("duplex: chose %v, want two in turn", to)
	}
	for _, part := range []string{body[:9], body[9:]} {
		c.body(part, part == body[9:])
		s := c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if string(s.GetBody()) != part || s.GetEndOfStream() != (part == body[9:]) {
			t.Errorf("duplex: %q came back as %v", part, s)
		}
	}
	c.over()

	// Where candidates are named the proxy has no policy of its own.
	c = r.call(duplex, none)
	c.meta = meta(t, spaceHint, map[string]any{keyHint: []any{at(2)}})
	c.post(textPath)
	if to, _ := choice(t, c.recv()); !slices.Equal(to, []string{at(2)}) {
		t.Errorf("of one candidate: chose %v", to)
	}
	c.body(body, true)
	c.recv()
	c.over()
	for range 3 {
		if got := next(t, r.picked); got != Overloaded {
			t.Errorf("counted as %v", got)
		}
	}
	if steps := r.heard(); len(steps) > 0 {
		t.Errorf("something was booked: %v", steps)
	}

	isOver = false
	if to, _ := choice(t, second(r.ask(textPath, body))); len(to) != 3 {
		t.Errorf("afterwards: chose %v", to)
	}
}

func second[A, B any](_ A, b B) B { return b }

// TestHints are the extension's rules for the candidates it names, as its conformance tests have them.
func TestHints(t *testing.T) {
	for _, tt := range []struct {
		name string
		hint any
		want []string // any order; nil: 503
	}{
		{"one", []any{at(2)}, []string{at(2)}},
		{"two", []any{at(2), at(3)}, []string{at(2), at(3)}},
		{"one of ours", []any{"10.9.9.9:80", at(1)}, []string{at(1)}},
		{"none of ours", []any{"10.9.9.9:80"}, nil},
		{"empty", []any{}, nil},
		{"no list", 7.0, nil},
		{"a string", at(1) + ", " + at(2), []string{at(1), at(2)}},
	} {
		for _, mode := range []bodyMode{buffered, duplex} {
			for path, body := range map[string]string{
				textPath:                 `{"model":"m","prompt":[1,2,3,4,5]}`,
				"/v1/models":             "",                                  // without a prompt
				chatPath:                 `not JSON`,                          // without sense
				"/v1/x/chat/completions": `{"model":"unknown","messages":[]}`, // of a model nobody serves
			} {
				t.Run(tt.name+" "+mode.String()+path, func(t *testing.T) {
					r := start(t, 3, nil)
					c := r.call(mode, none)
					c.meta = meta(t, spaceHint, map[string]any{keyHint: tt.hint})
					if body == "" {
						c.headers(true, ":method", "GET", ":path", path)
					} else {
						c.post(path)
						if mode == buffered {
							c.recv()
						}
						c.body(body, true)
					}
					m := c.recv()
					if tt.want == nil {
						if got := m.GetImmediateResponse().GetStatus().GetCode(); got != 503 {
							t.Errorf("answered %v, want 503", m)
						}
						if got := next(t, r.picked); got != NoEndpoint {
							t.Errorf("counted as %v", got)
						}
						return
					}
					to, _ := choice(t, m)
					slices.Sort(to)
					if d := cmp.Diff(tt.want, to); d != "" {
						t.Error(d)
					}
				})
			}
		}
	}
}

// TestOnlyModel: a request that names no model is for the only one there is, as engines take it. Of several it is nobody's to choose.
func TestOnlyModel(t *testing.T) {
	r := start(t, 1, nil)
	for _, tt := range []struct {
		body string
		want Outcome
	}{{`{"messages":[]}`, Decided}, {`{"model":null,"messages":[]}`, Decided}, {`{"model":"","messages":[]}`, Decided}, {`{"model":7,"messages":[]}`, Unparsed}} {
		c, _ := r.ask(chatPath, tt.body)
		if got := next(t, r.picked); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.body, got, tt.want)
		}
		c.over()
	}
	if _, err := r.o.Register(fleet.Spec{Worker: "x", Address: at(9), Model: "x", BlockSize: blockSize, DPSize: 1}, time.Now()); err != nil {
		t.Fatal(err)
	}
	c, _ := r.ask(chatPath, `{"messages":[]}`)
	if got := next(t, r.picked); got != Unparsed {
		t.Errorf("of two models: %v", got)
	}
	c.over()
}

// TestFailsOpen: what is not for us to judge goes on, without a decision.
func TestFailsOpen(t *testing.T) {
	for _, tt := range []struct {
		name, path, body string
		want             Outcome
	}{
		{"not JSON", chatPath, `{"model":"m","messages":[`, Unparsed},
		{"no prompt", chatPath, `{"model":"m"}`, Unparsed},
		{"too many tokens", textPath, `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`, Unparsed},
		{"too much text", textPath, `{"model":"m","prompt":"` + strings.Repeat("x", 33) + `"}`, Unparsed},
		{"another model", chatPath, `{"model":"x","messages":[]}`, UnknownModel},
	} {
		for _, mode := range []bodyMode{buffered, duplex, partial} {
			r := start(t, 2, func(c *Config) { c.MaxTokens = 8 })
			c := r.call(mode, none)
			c.post(tt.path, keyChoice, "10.66.66.66:1")
			if mode != duplex {
				c.recv()
			}
			c.body(tt.body, true)
			// By the extension's protocol there is always one, here in turn.
			if to, decision := choice(t, c.recv()); decision != "" || len(to) != map[bool]int{true: 2}[mode == duplex] {
				t.Errorf("%s, %v: chose %v", tt.name, mode, to)
			}
			if got := next(t, r.picked); got != tt.want {
				t.Errorf("%s, %v: counted as %v, want %v", tt.name, mode, got, tt.want)
			}
			if mode == duplex {
				if got := c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody(); string(got) != tt.body {
					t.Errorf("%s: the body came back as %q", tt.name, got)
				}
			}
			c.over()
		}
	}
	r := start(t, 1, func(c *Config) {
		c.Route = func(context.Context, string, *oracle.RouteRequest) (*oracle.Answer, error) {
			return nil, errors.New("broken")
		}
	})
	if _, m := r.ask(chatPath, `{"model":"m","messages":[]}`); m.GetRequestBody() == nil {
		t.Errorf("a fault of ours was answered with %v", m)
	}
	if got := next(t, r.picked); got != Failed {
		t.Errorf("a fault of ours was counted as %v", got)
	}
}

// TestSlowBodyGoesOn: Envoy bounds nothing in duplex, so we do.
func TestSlowBodyGoesOn(t *testing.T) {
	r := start(t, 2, func(c *Config) { c.BodyTimeout = time.Millisecond })
	c := r.call(duplex, none)
	c.post(chatPath)
	if to, decision := choice(t, c.recv()); len(to) != 2 || decision != "" {
		t.Errorf("chose %v without a body, want two in turn", to)
	}
	if got := next(t, r.picked); got != Late {
		t.Errorf("counted as %v", got)
	}
	for i, piece := range []string{`{"model":`, `"m"}`} {
		c.body(piece, i == 1)
		s := c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if string(s.GetBody()) != piece || s.GetEndOfStream() != (i == 1) {
			t.Errorf("piece %d came back as %v", i, s)
		}
	}
	c.over()
}

// TestWithoutPrompt: such requests are spread over the workers, and nothing is booked.
func TestWithoutPrompt(t *testing.T) {
	for _, mode := range []bodyMode{none, streamed, buffered, duplex} {
		r := start(t, 3, nil)
		count := map[string]int{}
		for range 6 {
			c := r.call(mode, none)
			c.headers(true, ":method", "GET", ":path", "/v1/models")
			to, decision := choice(t, c.recv())
			if len(to) != 2 || to[0] == to[1] || decision != "" {
				t.Fatalf("%v: chose %v, decision %q", mode, to, decision)
			}
			count[to[0]]++
			c.over()
		}
		if d := cmp.Diff(map[string]int{at(1): 2, at(2): 2, at(3): 2}, count); d != "" {
			t.Errorf("%v: %s", mode, d)
		}
		if got := r.heard(); len(got) != 0 {
			t.Errorf("%v: %v", mode, got)
		}
	}
	// With a body that is none of ours.
	r := start(t, 1, nil)
	c := r.call(duplex, none)
	c.post("/v1/audio/transcriptions")
	choice(t, c.recv())
	c.body("abc", true)
	if got := c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse(); string(got.GetBody()) != "abc" || !got.GetEndOfStream() {
		t.Errorf("the body came back as %v", got)
	}
	c.over()
	// With nobody there it goes on.
	empty := start(t, 0, nil)
	c = empty.call(buffered, none)
	c.headers(true, ":method", "GET", ":path", "/")
	if to, _ := choice(t, c.recv()); to != nil {
		t.Errorf("chose %v of nobody", to)
	}
	c.over()
}

func TestRefusals(t *testing.T) {
	r := start(t, 0, func(c *Config) { c.MaxBody = 100 })
	r.register(1, 1)
	code := func(m *extprocv3.ProcessingResponse) int { return int(m.GetImmediateResponse().GetStatus().GetCode()) }
	const body = `{"model":"m","messages":[]}`

	first, m := r.ask(chatPath, body)
	if to, _ := choice(t, m); len(to) != 1 {
		t.Fatalf("chose %v", to)
	}
	_, m = r.ask(chatPath, body)
	if code(m) != 429 || headerIn(m.GetImmediateResponse().GetHeaders(), "retry-after") == "" {
		t.Errorf("at the limit: %v", m)
	}
	first.over()
	if _, err := r.o.Drain("w1", true); err != nil {
		t.Fatal(err)
	}
	_, m = r.ask(chatPath, body)
	if code(m) != 503 || !bytes.Contains(m.GetImmediateResponse().GetBody(), []byte(`"code":503`)) {
		t.Errorf("draining: %v", m)
	}
	if _, m = r.ask(chatPath, strings.Repeat("x", 101)); code(m) != 413 {
		t.Errorf("a long body: %v", m)
	}
	c := r.call(duplex, none)
	c.post(chatPath)
	c.body(strings.Repeat("x", 60), false)
	c.body(strings.Repeat("x", 60), false)
	c.body(strings.Repeat("x", 60), true) // too late to matter
	if m := c.recv(); code(m) != 413 {
		t.Errorf("a long body in pieces: %v", m)
	}
	c.over()
	c = r.call(duplex, none)
	c.post(chatPath, "content-length", "101")
	if m := c.recv(); code(m) != 413 {
		t.Errorf("a body that says it is long: %v", m)
	}
	c.over()
	var got []Outcome
	for range 6 {
		got = append(got, next(t, r.picked))
	}
	if d := cmp.Diff([]Outcome{Decided, Shed, NoEndpoint, TooLarge, TooLarge, TooLarge}, got); d != "" {
		t.Error(d)
	}
	c = r.call(duplex, none)
	c.post(chatPath)
	c.over()
	if got := next(t, r.picked); got != Abandoned {
		t.Errorf("a request without an end was counted as %v", got)
	}
}

// TestPromptsAreToldApart: tokens, tokenized text and text; adapters, salts and sessions.
func TestPromptsAreToldApart(t *testing.T) {
	var asked *oracle.RouteRequest
	var held oracle.RouteRequest
	cat := []block.Item{{First: 1, Count: 1, Digest: block.Sum([]byte("cat"))}}
	r := start(t, 1, func(c *Config) {
		route := c.Route
		c.Route = func(ctx context.Context, parent string, q *oracle.RouteRequest) (*oracle.Answer, error) {
			if parent != "00-1-2-03" {
				t.Errorf("parent %q", parent)
			}
			held = *q
			asked = &held
			return route(ctx, parent, q)
		}
		c.Models = map[string]Model{"sql": {Base: "m", LoRA: "sql-lora", Revision: "2"}}
		c.Tokenize = func(_ context.Context, k prompt.Kind, _ *prompt.Request, body [][]byte) ([]uint32, []block.Item) {
			if k == prompt.Chat {
				return []uint32{7, 8, 9}, cat
			}
			return nil, nil
		}
	})
	for _, tt := range []struct {
		path, body string
		source     Source
		want       oracle.RouteRequest
	}{
		{textPath, `{"model":"m","prompt":[1,2,3],"cache_salt":"s"}`, FromBody, oracle.RouteRequest{
			Model: "m", CacheSalt: "s", Session: "me", Prompt: oracle.Prompt{Tokens: []uint32{1, 2, 3}, Length: 3},
		}},
		{chatPath, `{"model":"sql","messages":[]}`, FromTokenizer, oracle.RouteRequest{
			Model: "m", LoRAName: "sql-lora", LoRARevision: "2", Session: "me", Prompt: oracle.Prompt{Tokens: []uint32{7, 8, 9}, Length: 3, Items: cat},
		}},
		{"/inference/v1/generate", `{"model":"m","token_ids":[1,2],"features":{"mm_hashes":{"image":["cat"]},"mm_placeholders":{"image":[{"offset":1,"length":1}]}}}`, FromBody, oracle.RouteRequest{
			Model: "m", Session: "me", Prompt: oracle.Prompt{Tokens: []uint32{1, 2}, Length: 2, Items: cat},
		}},
		{textPath, `{"model":"m","prompt":"hello"}`, FromText, oracle.RouteRequest{
			Model: "m", Session: "me", Prompt: oracle.Prompt{PackedTokens: [][]byte{[]byte("hello")}, Length: 2, IsText: true},
		}},
		{"/v1/embeddings", `{"model":"m","input":[1]}`, FromBody, oracle.RouteRequest{
			Model: "m", Session: "me", ExpectedOutput: 1, Prompt: oracle.Prompt{Tokens: []uint32{1}, Length: 1},
		}},
	} {
		c := r.call(buffered, none)
		c.post(tt.path, "x-session-id", "me", "traceparent", "00-1-2-03")
		c.recv()
		c.body(tt.body, true)
		choice(t, c.recv())
		if got := next(t, r.sources); got != tt.source {
			t.Errorf("%s: known by %v, want %v", tt.body, got, tt.source)
		}
		tt.want.NeedsAddress, tt.want.MaxAlternatives = true, alternatives
		if d := cmp.Diff(tt.want, *asked); d != "" {
			t.Errorf("%s: %s", tt.body, d)
		}
		c.over()
	}
}

// TestTurnsStayTogether is text mode from end to end: the second turn of each conversation goes where its first went.
func TestTurnsStayTogether(t *testing.T) {
	r := start(t, 4, nil)
	first := map[int]string{}
	say := func(talk, turns int) string {
		var s strings.Builder
		s.WriteString(`{"model":"m","messages":[{"role":"system","content":"` + strings.Repeat(strconv.Itoa(talk)+" is my number. ", 400) + `"}`)
		for i := range turns {
			s.WriteString(`,{"role":"user","content":"question ` + strconv.Itoa(i) + `"}`)
		}
		return s.String() + `]}`
	}
	for turn := 1; turn <= 3; turn++ {
		var open []*call
		for talk := range 12 {
			c, m := r.ask(chatPath, say(talk, turn))
			to, _ := choice(t, m)
			if turn == 1 {
				first[talk] = to[0]
			} else if to[0] != first[talk] {
				t.Errorf("talk %d, turn %d went to %s, the first to %s", talk, turn, to[0], first[talk])
			}
			c.answered(to[0], false, ":status", "200")
			c.recv()
			if turn == 1 {
				open = append(open, c) // the first turns come together
			} else {
				c.over()
			}
		}
		for _, c := range open {
			c.over()
		}
	}
	count := map[string]int{}
	for _, w := range first {
		count[w]++
	}
	if d := cmp.Diff(map[string]int{at(1): 3, at(2): 3, at(3): 3, at(4): 3}, count); d != "" {
		t.Errorf("the talks are not spread: %s", d)
	}
}

// TestOrderIsHeld: a stream that is none of the protocol's ends, and books nothing.
func TestOrderIsHeld(t *testing.T) {
	for name, say := range map[string]func(c *call){
		"headers twice":        func(c *call) { c.post(textPath); c.post(textPath) },
		"a body without":       func(c *call) { c.body(question, true) },
		"trailers without":     func(c *call) { c.trailers() },
		"headers after choice": func(c *call) { c.post(textPath); c.body(question, true); c.post(textPath) },
	} {
		r := start(t, 1, nil)
		c := r.call(duplex, none)
		say(c)
		for {
			_, err := c.stream.Recv()
			if err == nil {
				continue
			}
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
			break
		}
	}
}
