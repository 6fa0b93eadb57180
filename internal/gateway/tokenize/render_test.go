package tokenize

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
)

// vllm has the doors of vLLM 0.32, worded as it words them. /tokenize gives one token, /render two.
type vllm struct {
	url string

	mu     sync.Mutex
	render http.HandlerFunc // nil: as with --enable-scale-out
	asked  []string
}

const generate = `{"request_id":"r","token_ids":[7,8],"token_offsets":null,"features":null,"sampling_params":{"max_tokens":16},"model":"m"}`

func newVLLM(t *testing.T) *vllm {
	t.Helper()
	v := &vllm{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		v.mu.Lock()
		v.asked = append(v.asked, r.URL.Path+" "+string(b))
		render := v.render
		v.mu.Unlock()
		switch {
		case r.URL.Path == "/tokenize":
			_, _ = io.WriteString(w, `{"count":1,"max_model_len":4096,"tokens":[9],"token_strs":null}`)
		case render != nil:
			render(w, r)
		case r.URL.Path == "/v1/completions/render":
			_, _ = io.WriteString(w, "["+generate+"]")
		default:
			_, _ = io.WriteString(w, generate)
		}
	}))
	t.Cleanup(s.Close)
	v.url = s.URL
	return v
}

// answers is what an engine says to /render from now on.
func (v *vllm) answers(code int, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.render = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}
}

func (v *vllm) heard() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := v.asked
	v.asked = nil
	return out
}

var ofKinds = []struct {
	kind       prompt.Kind
	path, body string
}{
	{prompt.Chat, "/v1/chat/completions/render", `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":1}`},
	{prompt.Messages, "/v1/messages/render", `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":1}`},
	{prompt.Responses, "/v1/responses/render", `{"model":"m","input":"x"}`},
	{prompt.Completions, "/v1/completions/render", `{"model":"m","prompt":"x","max_tokens":1}`},
}

// TestRender: an engine that serves it is given the request as it is.
func TestRender(t *testing.T) {
	v := newVLLM(t)
	var got []Outcome
	c := New(Config{URL: v.url, Budget: time.Minute, Counted: func(o Outcome) { got = append(got, o) }})
	for _, k := range ofKinds {
		r, body := read(t, k.kind, k.body[:9], k.body[9:])
		for range 2 { // the second is remembered
			if ids, _ := c.Tokens(t.Context(), k.kind, r, body); !slices.Equal(ids, []uint32{7, 8}) {
				t.Errorf("%v: %v", k.kind, ids)
			}
		}
		if d := cmp.Diff([]string{k.path + " " + k.body}, v.heard()); d != "" {
			t.Errorf("%v: %s", k.kind, d)
		}
		if d := cmp.Diff([]Outcome{Rendered, Known}, got); d != "" {
			t.Errorf("%v: %s", k.kind, d)
		}
		got = nil
	}
	// Of several prompts there is no one answer, and embeddings are not rendered.
	r, body := read(t, prompt.Completions, `{"model":"m","prompt":["x","y"]}`)
	if ids, _ := c.Tokens(t.Context(), prompt.Completions, r, body); ids != nil || v.heard() != nil {
		t.Errorf("of several prompts: %v", ids)
	}
	r, body = read(t, prompt.Embeddings, `{"model":"m","input":"x"}`)
	if ids, _ := c.Tokens(t.Context(), prompt.Embeddings, r, body); !slices.Equal(ids, []uint32{9}) {
		t.Errorf("embeddings: %v", ids)
	}
}

// TestRenderTellsImages: what the engine's cache calls an image comes with the tokens, and a prompt with one is not known by tokens
// alone.
func TestRenderTellsImages(t *testing.T) {
	v := newVLLM(t)
	v.answers(200, `{"token_ids":[7,8,8,9],"features":{"mm_hashes":{"image":["cat","dog"],"audio":["moo"]},"kwargs_data":null,`+
		`"mm_placeholders":{"image":[{"offset":1,"length":1,"is_embed":null},{"offset":2,"length":1}],"audio":[{"offset":3,"length":1}]}}}`)
	c := New(Config{URL: v.url, Budget: time.Minute})
	r, body := read(t, prompt.Chat, `{"model":"m","messages":[{"content":[{"type":"image_url"}]}]}`)
	want := []block.Item{
		{First: 3, Count: 1, Digest: block.Sum([]byte("moo"))},
		{First: 1, Count: 1, Digest: block.Sum([]byte("cat"))},
		{First: 2, Count: 1, Digest: block.Sum([]byte("dog"))},
	}
	for range 2 { // the second is remembered
		ids, items := c.Tokens(t.Context(), prompt.Chat, r, body)
		if d := cmp.Diff(want, items); d != "" || !slices.Equal(ids, []uint32{7, 8, 8, 9}) {
			t.Errorf("%v %s", ids, d)
		}
	}
	if got := v.heard(); len(got) != 1 {
		t.Errorf("asked %v", got)
	}
	v.answers(200, generate) // one that does not tell
	r, body = read(t, prompt.Chat, `{"model":"m","messages":[{"content":[{"type":"image_url","image_url":"x"}]}]}`)
	if ids, _ := c.Tokens(t.Context(), prompt.Chat, r, body); ids != nil {
		t.Errorf("known by %v, which are those of any image", ids)
	}
}

// TestRenderIsFound: an engine without it is asked by /tokenize at once, and only so for a minute.
func TestRenderIsFound(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		code       int
	}{
		{"not enabled", `{"error":{"message":"Scale-out endpoints are disabled.","type":"PermissionDeniedError","param":null,"code":403}}`, 403},
		{"an older one", `{"detail":"Not Found"}`, 404},
		{"something else", `not found`, 404},
		{"of another method", `{"detail":"Method Not Allowed"}`, 405},
		{"not for this model", `{"error":{"message":"no","type":"NotImplementedError","code":501}}`, 501},
	} {
		v := newVLLM(t)
		v.answers(tt.code, tt.text)
		c := New(Config{URL: v.url, Budget: time.Minute})
		ask := func(text string) (ids []uint32, paths []string) {
			r, body := read(t, prompt.Completions, `{"model":"m","prompt":"`+text+`"}`)
			ids, _ = c.Tokens(t.Context(), prompt.Completions, r, body)
			for _, q := range v.heard() {
				path, _, _ := strings.Cut(q, " ")
				paths = append(paths, path)
			}
			return ids, paths
		}
		for _, step := range []struct {
			text  string
			paths []string
		}{{"a", []string{"/v1/completions/render", "/tokenize"}}, {"a", nil}, {"b", []string{"/tokenize"}}} {
			ids, paths := ask(step.text)
			if d := cmp.Diff(step.paths, paths); d != "" || !slices.Equal(ids, []uint32{9}) {
				t.Errorf("%s, %s: %v %s", tt.name, step.text, ids, d)
			}
		}
		// Nothing else tells Anthropic's tokens.
		r, body := read(t, prompt.Messages, `{"model":"m","messages":[]}`)
		if ids, _ := c.Tokens(t.Context(), prompt.Messages, r, body); ids != nil {
			t.Errorf("%s: messages: %v", tt.name, ids)
		}
		v.heard()
		c.start = c.start.Add(-2 * askAgain) // two minutes later it has it
		v.mu.Lock()
		v.render = nil
		v.mu.Unlock()
		if ids, paths := ask("c"); !slices.Equal(ids, []uint32{7, 8}) || len(paths) != 1 {
			t.Errorf("%s, later: %v by %v", tt.name, ids, paths)
		}
	}
}

// TestRenderRefuses: what one request is refused says nothing of the next.
func TestRenderRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		code       int
	}{
		{"an unknown model", `{"error":{"message":"The model x does not exist.","type":"NotFoundError","param":"model","code":404}}`, 404},
		{"a bad request", `{"error":{"message":"no","type":"BadRequestError","code":400}}`, 400},
		{"a fault", `oops`, 500},
		{"nonsense", `{`, 200},
		{"nothing", ``, 200},
		{"no tokens", `{"token_ids":[]}`, 200},
		{"negative ones", `{"token_ids":[-1]}`, 200},
		{"too many", `{"token_ids":[1,1,1,1,1,1,1,1,1,1,1]}`, 200},
		{"several answers", `[` + generate + `,` + generate + `]`, 200},
		{"an image at no place", `{"token_ids":[1],"features":{"mm_hashes":{"image":["a"]}}}`, 200},
		{"an image out of place", `{"token_ids":[1],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":1,"length":1}]}}}`, 200},
		{"without end", `{"token_ids":[` + strings.Repeat(" ", 1<<20) + `1]}`, 200},
	} {
		v := newVLLM(t)
		v.answers(tt.code, tt.text)
		var got Outcome
		c := New(Config{URL: v.url, Budget: time.Minute, MaxTokens: 10, Counted: func(o Outcome) { got = o }})
		r, body := read(t, prompt.Chat, `{"model":"m","messages":[]}`)
		if ids, _ := c.Tokens(t.Context(), prompt.Chat, r, body); ids != nil || got != Failed {
			t.Errorf("%s: %v, %v", tt.name, ids, got)
		}
		v.mu.Lock()
		v.render = nil
		v.mu.Unlock()
		if ids, _ := c.Tokens(t.Context(), prompt.Chat, r, body); !slices.Equal(ids, []uint32{7, 8}) || got != Rendered {
			t.Errorf("after %s: %v, %v", tt.name, ids, got)
		}
	}
}
