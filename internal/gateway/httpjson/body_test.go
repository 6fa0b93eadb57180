package httpjson

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/iotest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func request(t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body)
}

func TestBodiesAreBounded(t *testing.T) {
	d := &Door{cfg: Config{MaxBody: 100_000}, bodies: budget{most: 150_000}}
	want := bytes.Repeat([]byte("x"), 100_000)
	for name, body := range map[string]io.Reader{
		"announced": bytes.NewReader(want), "chunked": io.MultiReader(bytes.NewReader(want)), "slow": iotest.OneByteReader(bytes.NewReader(want)),
	} {
		got, taken, err := d.readBody(request(t, body), nil)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, error %v", name, len(got), err)
		}
		if taken < len(want) || taken != cap(got) {
			t.Errorf("%s: %d bytes of the budget for %d", name, taken, cap(got))
		}
		d.bodies.give(taken)
	}
	if held := d.bodies.held.Load(); held != 0 {
		t.Errorf("%d bytes are held by nobody", held)
	}
	for name, c := range map[string]struct {
		body io.Reader
		code codes.Code
		http int
	}{
		"announced": {bytes.NewReader(make([]byte, 100_001)), codes.ResourceExhausted, http.StatusRequestEntityTooLarge},
		"chunked":   {io.MultiReader(bytes.NewReader(make([]byte, 100_001))), codes.ResourceExhausted, http.StatusRequestEntityTooLarge},
		"too slow":  {iotest.ErrReader(os.ErrDeadlineExceeded), codes.DeadlineExceeded, http.StatusRequestTimeout},
		"cut":       {iotest.ErrReader(io.ErrUnexpectedEOF), codes.Canceled, 0},
	} {
		_, taken, err := d.readBody(request(t, c.body), nil)
		d.bodies.give(taken)
		var f *fault
		if !errors.As(err, &f) || f.code != c.code || f.http != c.http {
			t.Errorf("%s: %+v", name, err)
		}
	}
}

func TestBodiesTogetherAreBounded(t *testing.T) {
	d := &Door{cfg: Config{MaxBody: 100_000}, bodies: budget{most: 150_000}}
	_, first, err := d.readBody(request(t, bytes.NewReader(make([]byte, 90_000))), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, second, err := d.readBody(request(t, bytes.NewReader(make([]byte, 90_000))), nil)
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
	d.bodies.give(first + second)
	if _, _, err := d.readBody(request(t, bytes.NewReader(make([]byte, 90_000))), nil); err != nil {
		t.Errorf("when the others are gone: %v", err)
	}
}

// TestBodyHasItsMemory: it is nobody else's until it is released, and then is used again, unless it is large.
func TestBodyHasItsMemory(t *testing.T) {
	d := &Door{cfg: Config{MaxBody: 1 << 20}, bodies: budget{most: 1 << 30}}
	kept, large := 0, 0
	for round := range 20 {
		var releases []func()
		var bodies, want [][]byte
		for i, size := range []int{10, 5_000, 0, 40_000, 1_000_000, 3} {
			want = append(want, bytes.Repeat([]byte{byte('a' + i + round%3)}, size))
			body, release, err := d.Body(request(t, bytes.NewReader(want[i])))
			if err != nil {
				t.Fatal(err)
			}
			bodies, releases = append(bodies, body), append(releases, release)
		}
		for i := range bodies {
			if !bytes.Equal(bodies[i], want[i]) {
				t.Fatalf("round %d: body %d has changed", round, i)
			}
			releases[i]()
		}
		var all []*[]byte
		for m, ok := d.memory.Get().(*[]byte); ok; m, ok = d.memory.Get().(*[]byte) {
			if all = append(all, m); cap(*m) > 0 {
				kept++
			}
			if cap(*m) > mostKept {
				large++
			}
		}
		for _, m := range all {
			d.memory.Put(m) // for the next round
		}
	}
	if held := d.bodies.held.Load(); kept == 0 || large > 0 || held != 0 {
		t.Errorf("memory was kept %d times, %d times of large ones, and %d bytes are held by nobody", kept, large, held)
	}
}

// echo answers every call with nothing.
type echo struct{}

func (echo) Admit(ctx context.Context, _ string) (context.Context, error) { return ctx, nil }

func (echo) Call(_ context.Context, _ string, _, dst []byte) ([]byte, error) { return dst, nil }
func (echo) Refused(context.Context, string, error)                          {}

// FuzzDoor: whatever a body is, the door answers it with JSON and a status that is not its own fault.
func FuzzDoor(f *testing.F) {
	for _, text := range texts() {
		f.Add("/v1/route", text)
	}
	f.Add("/v1/progress", `{"events":[{"decision_id":"x","finished":{}}]}`)
	f.Add("/v1/workers/a%2Fb/drain", `{"undo":true}`)
	d, err := New(echo{}, Config{MaxBody: 1 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path, body string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader([]byte(body)))
		r.URL.Path = path
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Errorf("%s %q: %d %s", path, body, w.Code, w.Body)
		}
		if held := d.bodies.held.Load(); held != 0 {
			t.Errorf("%d bytes are held by nobody", held)
		}
	})
}
