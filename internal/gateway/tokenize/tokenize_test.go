package tokenize

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
)

// engine answers as vLLM does without --enable-scale-out, and remembers what else it was asked.
func engine(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) (url string, asked *[]string) {
	t.Helper()
	asked = new([]string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if strings.HasSuffix(r.URL.Path, "/render") {
			http.Error(w, `{"error":{"message":"Scale-out endpoints are disabled.","type":"PermissionDeniedError","code":403}}`, http.StatusForbidden)
			return
		}
		*asked = append(*asked, r.Method+" "+r.URL.Path+" "+string(b))
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

func three(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, `{"count":3,"max_model_len":4096,"tokens":[1,2,4294967295],"token_strs":null}`)
}

func read(t *testing.T, kind prompt.Kind, pieces ...string) (r *prompt.Request, body [][]byte) {
	t.Helper()
	for _, p := range pieces {
		body = append(body, []byte(p))
	}
	r, err := new(prompt.Parser).Parse(kind, body, prompt.Limits{Tokens: 10, Name: 10})
	if err != nil {
		t.Fatal(err)
	}
	return r, body
}

func TestQuestions(t *testing.T) {
	url, asked := engine(t, three)
	var outcomes []Outcome
	c := New(Config{URL: url + "/", Budget: time.Minute, Counted: func(o Outcome) { outcomes = append(outcomes, o) }})
	for _, q := range []struct {
		kind   prompt.Kind
		pieces []string
	}{
		{prompt.Chat, []string{`{"tools":[{}],"messages":[ {"role":"us`, `er"}],"model":"m"}`}},
		{prompt.Chat, []string{`{"stream":true,"model":"m","messages":[ {"role":"user"}],"tools":[{}]}`}}, // the same question
		{prompt.Completions, []string{`{"model":"m","prompt":"a\"b"}`}},
		{prompt.Embeddings, []string{`{"model":"m","input":"x"}`}},
	} {
		r, body := read(t, q.kind, q.pieces...)
		if got, _ := c.Tokens(t.Context(), q.kind, r, body); !slices.Equal(got, []uint32{1, 2, 1<<32 - 1}) {
			t.Errorf("%v: %v", q.pieces, got)
		}
	}
	for kind, body := range map[prompt.Kind]string{
		prompt.Completions: `{"model":"m","prompt":["a","b"]}`, prompt.Messages: `{"model":"m","messages":[]}`,
		prompt.Responses: `{"model":"m","input":"x"}`, prompt.Chat: `{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"http://x/cat"}}]}]}`,
	} {
		r, b := read(t, kind, body)
		if got, _ := c.Tokens(t.Context(), kind, r, b); got != nil {
			t.Errorf("%s: %v", body, got)
		}
	}
	want := []string{
		`POST /tokenize {"model":"m","add_generation_prompt":true,"messages":[ {"role":"user"}],"tools":[{}]}`,
		`POST /tokenize {"model":"m","prompt":"a\"b"}`,
		`POST /tokenize {"model":"m","prompt":"x"}`,
	}
	if d := cmp.Diff(want, *asked); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]Outcome{Asked, Known, Asked, Asked, Foreign, Foreign, Foreign, Foreign}, outcomes); d != "" {
		t.Error(d)
	}
}

func TestWithoutAnAnswer(t *testing.T) {
	r, body := read(t, prompt.Completions, `{"model":"m","prompt":"x"}`)
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		budget time.Duration
		want   Outcome
	}{
		{"an error", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"tokens":[1]}`, http.StatusNotFound) }, time.Minute, Failed},
		{"no tokens", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"tokens":[]}`) }, time.Minute, Failed},
		{"no numbers", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"tokens":[-1]}`) }, time.Minute, Failed},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `tokens`) }, time.Minute, Failed},
		{"too many", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"tokens":[1`+strings.Repeat(",1", 10)+`]}`)
		}, time.Minute, Failed},
		{"without end", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"tokens":[`)
			for range 1000 {
				_, _ = io.WriteString(w, strings.Repeat("1,", 1000))
			}
		}, time.Minute, Failed},
		{"elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }, time.Minute, Failed},
		{"too late", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, time.Millisecond, Late},
	} {
		url, _ := engine(t, tt.answer)
		var got Outcome
		c := New(Config{URL: url, Budget: tt.budget, MaxTokens: 10, Counted: func(o Outcome) { got = o }})
		if ids, _ := c.Tokens(t.Context(), prompt.Completions, r, body); ids != nil || got != tt.want {
			t.Errorf("%s: %v, %v; want %v", tt.name, ids, got, tt.want)
		}
	}
	// Nobody there at all.
	var got Outcome
	c := New(Config{URL: "http://127.0.0.1:1", Budget: time.Minute, Counted: func(o Outcome) { got = o }})
	if ids, _ := c.Tokens(t.Context(), prompt.Completions, r, body); ids != nil || got != Failed {
		t.Errorf("nobody: %v, %v", ids, got)
	}
}

func TestBusy(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	url, _ := engine(t, func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-release
		three(w, r)
	})
	outcomes := make(chan Outcome, 2)
	c := New(Config{URL: url, Budget: time.Minute, Parallel: 1, Counted: func(o Outcome) { outcomes <- o }})
	r, body := read(t, prompt.Completions, `{"model":"m","prompt":"x"}`)
	first := make(chan []uint32)
	go func() {
		ids, _ := c.Tokens(context.Background(), prompt.Completions, r, body)
		first <- ids
	}()
	<-begun
	if ids, _ := c.Tokens(t.Context(), prompt.Completions, r, body); ids != nil || <-outcomes != Busy {
		t.Errorf("a second one: %v", ids)
	}
	close(release)
	if ids := <-first; len(ids) != 3 || <-outcomes != Asked {
		t.Errorf("the first one: %v", ids)
	}
}

// TestCacheEqualsTwin holds the cache against a list that is searched.
func TestCacheEqualsTwin(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		most := 1 + rng.IntN(30)
		c := newCache(most)
		type pair struct {
			key uint64
			n   int
		}
		var twin []pair // newest first
		for range 500 {
			key, n := uint64(rng.IntN(12)), 1+rng.IntN(12)
			at := slices.IndexFunc(twin, func(p pair) bool { return p.key == key })
			if rng.IntN(2) == 0 {
				want := 0
				if at >= 0 {
					p := twin[at]
					want = p.n
					twin = append([]pair{p}, slices.Delete(twin, at, at+1)...)
				}
				if got := len(c.get(key).ids); got != want {
					t.Fatalf("seed %d: %d has %d tokens, want %d", seed, key, got, want)
				}
				continue
			}
			c.put(key, answer{ids: make([]uint32, n)})
			if at < 0 && n <= most {
				twin = append([]pair{{key, n}}, twin...)
			}
			sum := 0
			for i, p := range twin {
				if sum += p.n; sum > most {
					twin = twin[:i]
					break
				}
			}
			held := 0
			for _, p := range twin {
				held += p.n
			}
			if c.held != held || len(c.byKey) != len(twin) || c.order.Len() != len(twin) || held > most {
				t.Fatalf("seed %d: %s", seed, fmt.Sprint(c.held, held, len(c.byKey), len(twin)))
			}
		}
	}
}
