package extproc

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// FuzzAuthz has Check answer any request. Envoy gets a word that it understands, a choice among the workers or the removal of what a
// client has made up; and no booking outlives the log's silence, nor a call that Envoy has given up.
func FuzzAuthz(f *testing.F) {
	for _, s := range []string{
		"POST /envoy" + textPath + " HTTP/1.1\r\nHost: h\r\nX-Request-Id: r\r\nTraceparent: 00-1-2-03\r\nX-Session-Id: s\r\n\r\n" + question,
		"POST /envoy" + textPath + " HTTP/1.1\r\nHost: h\r\nX-Kvoracle-Priority: -9\r\nX-Kvoracle-Max-Queue-Seconds: NaN\r\nX-Slo-Ttft-Ms: 1e9\r\n\r\n" + question,
		"POST /envoy/v1/messages HTTP/1.1\r\nHost: h\r\nX-Gateway-Destination-Endpoint: 10.66.66.66:1\r\n\r\n{",
		"POST /envoy/v1/completions HTTP/1.1\r\nHost: h\r\n\r\n" + `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`,
		"GET /envoy/v1/models HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /envoy" + textPath + " HTTP/1.1\r\nHost: h\r\n\r\n" + question + strings.Repeat(" ", 1000),
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, hasLeft bool) {
		in := bufio.NewReader(strings.NewReader(string(data)))
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(in) // as it is, whatever the headers say
		if err != nil {
			t.Fatal(err)
		}
		o := oracle.New(oracle.Config{}, nil)
		for i := range 2 {
			spec := fleet.Spec{Worker: at(i + 1), Address: at(i + 1), Model: "m", BlockSize: 4, DPSize: 1, MaxRequests: 1}
			if _, err := o.Register(spec, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		s := New(Config{Oracle: o, MaxBody: 1000, Route: func(ctx context.Context, _ string, q *oracle.RouteRequest) (*oracle.Answer, error) {
			return o.Route(ctx, q, time.Now())
		}})
		for range 3 { // the last finds both workers at their limits, if all were decided
			w := httptest.NewRecorder()
			s.Check(w, r, body, func() bool { return hasLeft })
			to, removed := w.Header().Get(keyChoice), w.Header().Get("X-Envoy-Auth-Headers-To-Remove")
			switch {
			case !slices.Contains([]int{200, 413, 429}, w.Code):
				t.Errorf("answered %d", w.Code)
			case w.Code != 200 && to != "", w.Code == 200 && (to == "") != (removed == keyChoice):
				t.Errorf("answered %d, chosen %q, removed %q", w.Code, to, removed)
			}
			for one := range strings.SplitSeq(to, ",") {
				if to != "" && one != at(1) && one != at(2) {
					t.Errorf("chosen %q", to)
				}
			}
		}
		if n := o.Stats(time.Now()).Load.Bookings; hasLeft && n != 0 {
			t.Errorf("%d bookings of calls that were given up", n)
		}
		s.Tick(time.Now().Add(2 * defaultLogSilence))
		if n := o.Stats(time.Now()).Load.Bookings; n != 0 || len(s.lives) != 0 || len(s.byRequest) != 0 || s.left != 0 {
			t.Errorf("%d bookings, %d lives, %d of them by their requests, %d awaited are left", n, len(s.lives), len(s.byRequest), s.left)
		}
	})
}

// FuzzUsage reads any response: what is found of it does not depend on the pieces in which it comes, nothing of it is negative,
// and no more is kept than one usage takes.
func FuzzUsage(f *testing.F) {
	for _, s := range []string{
		events, `{"usage":{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":8}}}`,
		`{"usage": {"input_tokens":2,"cache_read_input_tokens":8,"x":{"}":"\\\""}}}`, `"usage":"usage":{"usage":{}}`,
		`{"usage":{"x":"` + strings.Repeat("x", longestUsage) + `"usage":{"prompt_tokens":1}`, `{"usage":{"prompt_tokens":-5}}`,
	} {
		f.Add([]byte(s), uint16(1))
		f.Add([]byte(s), uint16(7))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint16) {
		var whole, pieces usageReader
		whole.add(data)
		for p := range slices.Chunk(data, max(int(size), 1)) {
			pieces.add(p)
			if n := len(pieces.begun); n > longestUsage+len(usageName)+1 {
				t.Fatalf("%d bytes are kept", n)
			}
		}
		u, ok := whole.find()
		if u2, ok2 := pieces.find(); u != u2 || ok != ok2 || whole.found != pieces.found {
			t.Errorf("%+v, %v of %d as a whole, %+v, %v of %d in pieces", u, ok, whole.found, u2, ok2, pieces.found)
		}
		if u.prompt < 0 || u.output < 0 || u.cached < -1 {
			t.Errorf("got %+v", u)
		}
	})
}
