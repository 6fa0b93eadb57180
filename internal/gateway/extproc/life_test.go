package extproc

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	ok        = "200"
	streaming = "text/event-stream; charset=utf-8"
	question  = `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"stream":true}`
	events    = "data: {\"x\":1,\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5," +
		"\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n"
)

// TestLifeByHeaders: where bodies are not seen, the end of the stream is the end of the request.
func TestLifeByHeaders(t *testing.T) {
	for _, tt := range []struct {
		status string
		want   []string
	}{
		{ok, []string{"dispatched applied", "finished applied"}},
		{"503", []string{"dispatched applied", "failed applied"}},
		{"400", []string{"dispatched applied", "cancelled applied"}},
	} {
		r := start(t, 2, nil)
		c, m := r.ask(textPath, question)
		to, _ := choice(t, m)
		c.answered(to[0], false, ":status", tt.status, "content-type", streaming)
		if c.recv().GetResponseHeaders() == nil {
			t.Error("the response's headers were not let on")
		}
		c.over()
		if d := cmp.Diff(tt.want, r.heard()); d != "" {
			t.Errorf("%s: %s", tt.status, d)
		}
	}
}

// TestLifeFollowsTheRetry: the booking goes to the worker that served it.
func TestLifeFollowsTheRetry(t *testing.T) {
	for _, tt := range []struct{ name, served string }{
		{"the second choice", "second"}, {"one that was not named", "other"},
	} {
		r := start(t, 4, nil)
		c, m := r.ask(textPath, question)
		to, _ := choice(t, m)
		served := to[1]
		if tt.served == "other" {
			for i := range 4 {
				if a := at(i + 1); a != to[0] && a != to[1] && a != to[2] {
					served = a
				}
			}
		}
		c.answered(served, false, ":status", ok)
		c.recv()
		booked := map[string]int{}
		for _, w := range r.o.Workers("", time.Now()) {
			if n := w.Ranks[0].Load.InFlight; n > 0 {
				booked[w.Address] = n
			}
		}
		if d := cmp.Diff(map[string]int{served: 1}, booked); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
		c.over()
	}
}

// TestLifeByBodies: the first token, what was cached, and who has left before the end.
func TestLifeByBodies(t *testing.T) {
	for _, tt := range []struct {
		name   string
		pieces []string
		isEnd  bool
		stream string // content-type
		want   []string
	}{
		{
			"a stream",
			[]string{events[:10], events[10:], ""},
			true, streaming,
			[]string{"dispatched applied", "first_token applied", "matched 0 cached 8", "finished applied"},
		},
		{
			"a whole answer",
			[]string{`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5}}`},
			true, "application/json",
			[]string{"dispatched applied", "finished applied"},
		},
		{
			"a client that leaves",
			[]string{events[:10]},
			false, streaming,
			[]string{"dispatched applied", "first_token applied", "cancelled applied"},
		},
	} {
		for _, mode := range []bodyMode{duplex, streamed} {
			r := start(t, 1, nil)
			c := r.call(buffered, mode)
			c.post(textPath)
			c.recv()
			c.body(question, true)
			to, _ := choice(t, c.recv())
			c.answered(to[0], false, ":status", ok, "content-type", tt.stream)
			c.recv()
			for i, p := range tt.pieces {
				isEnd := tt.isEnd && i == len(tt.pieces)-1
				c.responded(p, isEnd)
				m := c.recv().GetResponseBody()
				s := m.GetResponse().GetBodyMutation().GetStreamedResponse()
				if m == nil || mode == duplex && (string(s.GetBody()) != p || s.GetEndOfStream() != isEnd) || mode == streamed && s != nil {
					t.Errorf("%s, %v: a piece came back as %v", tt.name, mode, m)
				}
			}
			c.over()
			if d := cmp.Diff(tt.want, r.heard()); d != "" {
				t.Errorf("%s, %v: %s", tt.name, mode, d)
			}
		}
	}
}

// TestObserver: a stream of its own sees the bodies, whichever of the two ends first.
func TestObserver(t *testing.T) {
	for _, pickerFirst := range []bool{false, true} {
		r := start(t, 1, nil)
		c, m := r.ask(textPath, question)
		to, decision := choice(t, m)
		look := r.watch(to[0], decision)
		if got := next(t, r.steps); got != "dispatched applied" {
			t.Fatalf("first came %q", got)
		}
		c.answered(to[0], false, ":status", ok, "content-type", streaming)
		c.recv()
		look.hides = true
		look.responded(events, false)
		if got := next(t, r.steps); got != "first_token applied" {
			t.Fatalf("then came %q", got)
		}
		if pickerFirst {
			if err := c.stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			look.responded("", true)
			c.over()
		} else {
			look.responded("", true)
			look.over()
			c.over()
		}
		if d := cmp.Diff([]string{"matched 0 cached 8", "finished applied"}, r.heard()); d != "" {
			t.Errorf("picker first %v: %s", pickerFirst, d)
		}
		// Of one that is over nothing more is said.
		late := r.call(none, none)
		late.hides = true
		late.meta = meta(t, spaceBalancer, map[string]any{keyDecision: decision})
		late.seen(":status", ok)
		if got := next(t, r.steps); got != "unobserved" {
			t.Errorf("of one that is over: %q", got)
		}
	}
}

// TestObserverOfWhatIsSeen: where bodies come by the request's own stream nothing is counted twice.
func TestObserverOfWhatIsSeen(t *testing.T) {
	r := start(t, 1, nil)
	c := r.call(buffered, duplex)
	c.post(textPath)
	c.recv()
	c.body(question, true)
	to, decision := choice(t, c.recv())
	look := r.watch(to[0], decision)
	look.hides = true
	look.responded(events, true)
	look.over()
	c.answered(to[0], false, ":status", ok, "content-type", streaming)
	c.recv()
	c.responded(events, true)
	c.recv()
	c.over()
	if d := cmp.Diff([]string{"dispatched applied", "first_token applied", "matched 0 cached 8", "finished applied"}, r.heard()); d != "" {
		t.Error(d)
	}
}

// TestObservedClientLeaves: the end of the request's own stream is waited for no longer than a moment.
func TestObservedClientLeaves(t *testing.T) {
	r := start(t, 1, nil)
	c, m := r.ask(textPath, question)
	to, decision := choice(t, m)
	r.watch(to[0], decision)
	next(t, r.steps)
	c.answered(to[0], false, ":status", ok, "content-type", streaming)
	c.recv()
	c.over()
	if d := cmp.Diff([]string{"cancelled applied"}, r.heard()); d != "" {
		t.Error(d)
	}
}

// seen is the headers of a response, with metadata set before.
func (c *call) seen(pairs ...string) {
	c.t.Helper()
	m, served := c.meta, ""
	c.meta = nil
	if m != nil {
		served = m.GetFilterMetadata()[spaceBalancer].GetFields()[keyServed].GetStringValue()
	}
	words := map[string]any{keyServed: served}
	if d := ofBalancer(m, keyDecision); d != "" {
		words[keyDecision] = d
	}
	c.meta = meta(c.t, spaceBalancer, words)
	c.send(responseHeadersRequest(pairs...))
}

// TestLivesAreRenewed: a long answer does not lose its booking.
func TestLivesAreRenewed(t *testing.T) {
	r := start(t, 1, nil)
	c, _ := r.ask(textPath, question)
	r.heard()
	r.s.Tick(time.Now())
	if got := r.heard(); len(got) != 0 || len(r.steps) != 0 {
		t.Errorf("a young booking was renewed: %v", got)
	}
	r.s.Tick(time.Now().Add(2 * renewEvery))
	if got := next(t, r.steps); got != "generating applied" {
		t.Errorf("heard %q", got)
	}
	c.over()
	if d := cmp.Diff([]string{"cancelled applied"}, r.heard()); d != "" {
		t.Error(d)
	}
	r.s.Tick(time.Now().Add(9 * renewEvery))
	if got := r.heard(); len(got) != 0 || len(r.steps) != 0 {
		t.Errorf("one that is over was renewed: %v", got)
	}
}

func TestUsage(t *testing.T) {
	long := strings.Repeat("data: {\"x\":1}\n\n", 2000)
	for _, tt := range []struct {
		name, body string
		want       usage
		found      bool
	}{
		{"none", `{"choices":[]}`, usage{cached: -1}, false},
		{"whole", `{"usage":{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":null}}`, usage{10, 3, -1}, true},
		{"cached", `{"usage": {"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}}`, usage{10, 3, 0}, true},
		{"stream", long + events, usage{9, 5, 8}, true},
		{"responses", `{"usage":{"input_tokens":10,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}}`, usage{10, 3, 4}, true},
		{"anthropic", "data: {\"message\":{\"usage\":{\"input_tokens\":2,\"cache_read_input_tokens\":8,\"cache_creation_input_tokens\":4,\"output_tokens\":1}}}\n\n" +
			long + "data: {\"usage\":{\"output_tokens\":30}}\n\n", usage{14, 30, 8}, true},
		{"text that speaks of it", `{"text":"\"usage\":{\"prompt_tokens\":1}"}`, usage{cached: -1}, false},
		{"cut off", `{"usage":{"prompt_tokens":10,`, usage{cached: -1}, false},
		{"absurd", `{"usage":{"prompt_tokens":-5,"completion_tokens":-3,"prompt_tokens_details":{"cached_tokens":-1}}}`, usage{0, 0, 0}, true},
		{"no numbers", `{"usage":{"prompt_tokens":"x"}}`, usage{cached: -1}, false},
		{"before more", long + `{"usage":{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":8}},"prompt_logprobs":"` + long + `"}`, usage{9, 5, 8}, true},
		{"often", `{"usage":{"prompt_tokens":9,"completion_tokens":1}}` + strings.Repeat("{\"usage\": null}{\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\"x\":{\"}\":\"\\\\\\\"}\"}}}", 100), usage{9, 4, -1}, true},
		{"within another", `{"usage":{"x":{"usage":{"prompt_tokens":1}},"prompt_tokens":9,"completion_tokens":5}}`, usage{9, 5, -1}, true},
		{"too long", `{"usage":{"prompt_tokens":9,"x":"` + strings.Repeat("x", longestUsage) + `"}}`, usage{cached: -1}, false},
	} {
		for _, n := range []int{1, 7, 4096, 1 << 20} {
			var r usageReader
			for b := []byte(tt.body); len(b) > 0; b = b[min(n, len(b)):] {
				r.add(b[:min(n, len(b))])
			}
			got, found := r.find()
			if found != tt.found || got != tt.want {
				t.Errorf("%s, by %d: %+v, %v; want %+v, %v", tt.name, n, got, found, tt.want, tt.found)
			}
			if cap(r.begun) > 2*longestUsage {
				t.Errorf("%s: %d bytes are kept", tt.name, cap(r.begun))
			}
		}
	}
}
