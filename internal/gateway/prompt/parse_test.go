package prompt

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
)

var limits = Limits{Tokens: 8, Name: 16}

func parse(kind Kind, pieces ...string) (*Request, error) {
	var body [][]byte
	for _, p := range pieces {
		body = append(body, []byte(p))
	}
	return new(Parser).Parse(kind, body, limits)
}

func text(r *Request) string { return string(bytes.Join(r.Text, nil)) }

func TestParse(t *testing.T) {
	image := `"data:image/png;base64,` + strings.Repeat("A", 300) + `"`
	for _, tt := range []struct {
		name, body string
		kind       Kind
		text       string
		want       Request
	}{
		{
			"chat", `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}`, Chat,
			`[{"role":"user","content":"hi"}`,
			Request{Model: "m", IsStream: true},
		},
		{"tools come first, whatever their place", `{"messages":[1],"model":"m", "tools" : [ {} ] }`, Chat, `[ {} ][1`, Request{Model: "m"}},
		{"no tools", `{"model":"m","tools":null,"messages":[]}`, Chat, `[`, Request{Model: "m"}},
		{"tools that are none", `{"model":"m","tools":true,"messages":[-12.5]}`, Chat, `true[-12.5`, Request{Model: "m"}},
		{"an image is its digest", `{"model":"m","messages":[{"url":` + image + `},2]}`, Chat, `[{"url":532ab8bc9f7d0937},2`, Request{Model: "m"}},
		{"a short one is not", `{"model":"m","messages":["data:x"]}`, Chat, `["data:x"`, Request{Model: "m"}},
		{
			"anthropic", `{"messages":[{"role":"user"}],"system":"be \"kind\"","model":"m","max_tokens":5}`, Messages,
			`"be \"kind\""[{"role":"user"}`,
			Request{Model: "m"},
		},
		{"responses", `{"model":"m","input":"hello","instructions":"i","cache_salt":"s"}`, Responses, `"i"hello`, Request{Model: "m", CacheSalt: "s"}},
		{"a prompt", `{"model":"m\u00e9","prompt":"once upon a \u0074ime"}`, Completions, `once upon a \u0074ime`, Request{Model: "mé"}},
		{"the first of several", `{"model":"m","prompt":["one","two"]}`, Completions, `one`, Request{Model: "m"}},
		{"token ids", `{"model":"m","prompt":[0, 1,4294967295]}`, Completions, ``, Request{Model: "m", Tokens: []uint32{0, 1, 1<<32 - 1}}},
		{"the first of several lists", `{"model":"m","input":[[7,8],[9]]}`, Embeddings, ``, Request{Model: "m", Tokens: []uint32{7, 8}}},
		{"embeddings of messages", `{"model":"m","messages":["a"]}`, Embeddings, `["a"`, Request{Model: "m"}},
		{"what comes twice counts as it last came", `{"model":1,"prompt":[1],"model":"m","prompt":"x"}`, Completions, `x`, Request{Model: "m"}},
		{"a name with an escape", `{"mod\u0065l":"m","prompt":"x"}`, Completions, `x`, Request{Model: "m"}},
		{"tokens at a door for them", `{"token_ids":[1,2,3],"model":"m","sampling_params":{"max_tokens":1},"cache_salt":"s","features":null}`, Generate, ``, Request{
			Model: "m", CacheSalt: "s", Tokens: []uint32{1, 2, 3},
		}},
		{"an image among them", `{"features":{"mm_hashes":{"image":["cat"],"audio":[]},"kwargs_data":{"image":["AAAA"]},"mm_placeholders":` +
			`{"audio":[],"image":[{"offset":1,"length":2,"is_embed":null}]}},"token_ids":[1,2,3],"model":"m"}`, Generate, ``, Request{
			Model: "m", Tokens: []uint32{1, 2, 3}, Items: []block.Item{{First: 1, Count: 2, Digest: block.Sum([]byte("cat"))}},
		}},
		{"a part that is no text", `{"model":"m","messages":[{"content":[{"type":"image_url"}]}]}`, Chat, `[{"content":[{"type":"image_url"}]}`, Request{Model: "m", HasMedia: true}},
		{"a text that names one", `{"model":"m","messages":[{"content":"\"image_url\""}],"tools":["image_url"]}`, Chat, `["image_url"][{"content":"\"image_url\""}`, Request{Model: "m"}},
		{"no model", `{"prompt":"x"}`, Completions, `x`, Request{}},
		{"no salt", `{"model":"m","prompt":"","cache_salt":null}`, Completions, ``, Request{Model: "m"}},
	} {
		for cut := range len(tt.body) {
			r, err := parse(tt.kind, tt.body[:cut], tt.body[cut:])
			if err != nil {
				t.Fatalf("%s, cut at %d: %v", tt.name, cut, err)
			}
			if text(r) != tt.text {
				t.Fatalf("%s, cut at %d: text %s, want %s", tt.name, cut, text(r), tt.text)
			}
			got := Request{Model: r.Model, CacheSalt: r.CacheSalt, IsStream: r.IsStream, Tokens: r.Tokens, Items: r.Items, HasMedia: r.HasMedia}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Fatalf("%s, cut at %d: %s", tt.name, cut, d)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	long := strings.Repeat("x", 17)
	for _, tt := range []struct {
		body string
		kind Kind
		want error
	}{
		{``, Chat, ErrSyntax},
		{`{`, Chat, ErrSyntax},
		{`{"model":"m","messages":[]}}`, Chat, ErrSyntax},
		{`{"model":"m","messages":[]} x`, Chat, ErrSyntax},
		{`{"model":"m","messages":["a" "b"]}`, Chat, ErrSyntax},
		{`{"model":"m","prompt":[1,2}`, Completions, ErrSyntax},
		{`{"model":"m","prompt":[1,02]}`, Completions, ErrSyntax},
		{`[]`, Chat, ErrShape},
		{`{}`, Chat, ErrShape},
		{`{"model":"m"}`, Chat, ErrShape},
		{`{"model":"m","prompt":"x"}`, Chat, ErrShape},
		{`{"model":7,"prompt":"x"}`, Completions, ErrShape},
		{`{"model":"m","prompt":7}`, Completions, ErrShape},
		{`{"model":"m","prompt":null}`, Completions, ErrShape},
		{`{"model":"m","prompt":[]}`, Completions, ErrShape},
		{`{"model":"m","prompt":[[]]}`, Completions, ErrShape},
		{`{"model":"m","prompt":[{}]}`, Completions, ErrShape},
		{`{"model":"m","prompt":[1,"a"]}`, Completions, ErrShape},
		{`{"model":"m","prompt":[-1]}`, Completions, ErrShape},
		{`{"model":"m","prompt":[1.5]}`, Completions, ErrShape},
		{`{"model":"m","prompt":[4294967296]}`, Completions, ErrShape},
		{`{"model":"m","messages":{}}`, Chat, ErrShape},
		{`{"model":"m","token_ids":"x"}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[[1]]}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[]}`, Generate, ErrShape},
		{`{"model":"m","prompt":[1]}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":7}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":7}}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":{"image":["a"]}}}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[]}}}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"film":[{"offset":0,"length":1}]}}}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":{"image":[""]},"mm_placeholders":{"image":[{"offset":0,"length":1}]}}}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":1,"length":1}]}}}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":-1,"length":1}]}}}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":0,"length":0}]}}}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]}}}`, Generate, ErrShape},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":{"image":["a","a","a","a","a"]},"mm_placeholders":{"image":[` +
			strings.Repeat(`{"offset":0,"length":1},`, 4) + `{"offset":0,"length":1}]}}}`, Generate, ErrLimit},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes":{"image":[""` + strings.Repeat(`,""`, mostItems) + `]},"mm_placeholders":{"image":[{}` +
			strings.Repeat(`,{}`, mostItems) + `]}}}`, Generate, ErrLimit},
		{`{"model":"m","token_ids":[1],"features":{"mm_hashes"`, Generate, ErrSyntax},
		{`{"model":"` + long + `","prompt":"x"}`, Completions, ErrLimit},
		{`{"model":"m","cache_salt":"` + long + `","prompt":"x"}`, Completions, ErrLimit},
		{`{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`, Completions, ErrLimit},
		{`{"model":"m","prompt":[1,2,3,4,5,6,7,8,9`, Completions, ErrSyntax},
	} {
		if r, err := parse(tt.kind, tt.body); !errors.Is(err, tt.want) {
			t.Errorf("%s: %+v, %v; want %v", tt.body, r, err, tt.want)
		}
	}
}

// TestSpans holds the raw values that a tokenizer is asked about.
func TestSpans(t *testing.T) {
	for _, tt := range []struct {
		kind                Kind
		body, prompt, tools string
	}{
		{Chat, `{"tools":[ 1 ],"messages":[ "a", {} ],"model":"m"}`, `[ "a", {} ]`, `[ 1 ]`},
		{Completions, `{"prompt": "a\"b" ,"model":"m"}`, `"a\"b"`, ``},
		{Completions, `{"prompt": [ "a", "b" ] ,"model":"m"}`, `[ "a", "b" ]`, ``},
		{Responses, `{"input":"","model":"m"}`, `""`, ``},
	} {
		for cut := range len(tt.body) {
			body := [][]byte{[]byte(tt.body[:cut]), []byte(tt.body[cut:])}
			r, err := new(Parser).Parse(tt.kind, body, limits)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(r.Prompt.Append(nil, body)); got != tt.prompt {
				t.Errorf("prompt of %s, cut at %d: %s, want %s", tt.body, cut, got, tt.prompt)
			}
			if got := string(r.Tools.Append(nil, body)); got != tt.tools {
				t.Errorf("tools of %s, cut at %d: %s, want %s", tt.body, cut, got, tt.tools)
			}
		}
	}
}

func TestKindOf(t *testing.T) {
	for path, want := range map[string]Kind{
		"/v1/chat/completions": Chat, "/v1/completions?x=/chat/completions": Completions, "/openai/v1/embeddings/": Embeddings,
		"/v1/messages": Messages, "/inference/v1/generate": Generate, "/generate": None, "/v1/responses": Responses, "/v1/models": None, "/": None, "": None, "/v1/messages/count_tokens": None,
	} {
		if got := KindOf("POST", path); got != want {
			t.Errorf("POST %s is %v, want %v", path, got, want)
		}
		if got := KindOf("GET", path); got != None {
			t.Errorf("GET %s is %v, want none", path, got)
		}
	}
}

// TestTurnsShareTheirText: each turn of a conversation begins with the whole text of the one before it.
func TestTurnsShareTheirText(t *testing.T) {
	messages := `{"role":"system","content":"s"}`
	before := ""
	for turn := range 5 {
		messages += fmt.Sprintf(`,{"role":"user","content":"q%d"}`, turn)
		r, err := parse(Chat, `{"model":"m","temperature":0.`+fmt.Sprint(turn)+`,"messages":[`+messages+`],"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(text(r), before) {
			t.Errorf("turn %d does not begin with the one before: %s, %s", turn, text(r), before)
		}
		before = text(r)
		messages += fmt.Sprintf(`,{"role":"assistant","content":"a%d"}`, turn)
	}
}

// TestPoolsKeepNothing: a parser that is used again knows nothing of what it read before.
func TestPoolsKeepNothing(t *testing.T) {
	var p Parser
	bodies := []string{
		`{"model":"a","prompt":[1,2],"cache_salt":"s","stream":true}`, `{"model":"b"`, `{"model":"b","prompt":"xyz"}`,
		`{"model":"c","prompt":"` + strings.Repeat("y", 100_000) + `"}`,
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		b := bodies[rng.IntN(len(bodies))]
		body := cutAt([]byte(b), rng.IntN(len(b)), rng.IntN(2*len(b)))
		compare(t, &p, Completions, body)
	}
}

// cutAt cuts a body into up to three pieces.
func cutAt(b []byte, at, next int) [][]byte {
	at = min(max(at, 0), len(b))
	next = min(max(next, at), len(b))
	return slices.DeleteFunc([][]byte{b[:at], b[at:next], b[next:]}, func(p []byte) bool { return len(p) == 0 })
}

// compare holds Parse against its twin.
func compare(t *testing.T, p *Parser, kind Kind, body [][]byte) {
	t.Helper()
	whole := bytes.Join(body, nil)
	want, refused := twinOf(kind, whole, limits)
	before := bytes.Clone(whole)
	got, err := p.Parse(kind, body, limits)
	if !bytes.Equal(bytes.Join(body, nil), before) {
		t.Fatal("the body was changed")
	}
	if (err != nil) != (refused != nil) {
		t.Fatalf("%v: %.200q: err %v, the twin %v", kind, whole, err, refused)
	}
	if err != nil {
		if !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrShape) && !errors.Is(err, ErrLimit) {
			t.Fatalf("%v is of no kind", err)
		}
		return
	}
	if got.Model != want.Model || got.CacheSalt != want.CacheSalt || got.IsStream != want.IsStream || !slices.Equal(got.Tokens, want.Tokens) ||
		!slices.Equal(got.Items, want.Items) {
		t.Fatalf("%v: %.200q:\n%+v, the twin\n%+v", kind, whole, got, want)
	}
	if text(got) != text(want) {
		t.Fatalf("%v: %.200q: text\n%s, the twin\n%s", kind, whole, text(got), text(want))
	}
}

func FuzzParse(f *testing.F) {
	image := `"data:image/png;base64,` + strings.Repeat("A", 300) + `"`
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":` + image + `}}]}],"tools":[{}],"stream":true}`,
		`{"model":"m","prompt":[1,2,3],"cache_salt":"s"}`, `{"model":"m","input":[["a"]]}`, `{"model":"m","prompt":["a","b"],"prompt":null}`,
		`{"model":"\ud800","prompt":"\xff"}`, `{"system":[{"text":"x"}],"messages":["a"],"model":"m"}`, `{"instructions":1,"input":"x","model":"m"}`,
		`{"token_ids":[1,2],"model":"m","features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]},"kwargs_data":[1]}}`,
	} {
		for k := range Generate + 1 {
			f.Add([]byte(s), uint8(k), 5, 20)
		}
	}
	var p Parser
	f.Fuzz(func(t *testing.T, body []byte, kind uint8, at, next int) {
		k := Kind(kind % uint8(Generate+1))
		if k == None || bytes.Contains(body, []byte("\ufffd")) || k == Embeddings && bytes.Contains(body, []byte("messages")) ||
			bytes.Contains(body, []byte(`\u`)) && k == Embeddings {
			return // see twin_test.go: it knows less
		}
		compare(t, &p, k, cutAt(body, at, next))
	})
}
