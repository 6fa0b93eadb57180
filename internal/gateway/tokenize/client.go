package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
)

// Outcome is what became of a question.
type Outcome uint8

// The outcomes.
const (
	Asked    Outcome = iota // the engine has answered, by /tokenize
	Known                   // it was remembered
	Late                    // the budget is spent
	Busy                    // too many were under way
	Failed                  // the engine has refused, or answered nonsense
	Foreign                 // of a kind that is not asked about
	Rendered                // the engine has answered, by /render
)

// String gives the name in metrics.
func (o Outcome) String() string {
	switch o {
	case Asked:
		return "asked"
	case Known:
		return "known"
	case Late:
		return "late"
	case Busy:
		return "busy"
	case Failed:
		return "failed"
	case Foreign:
		return "foreign"
	case Rendered:
		return "rendered"
	default:
		return "unknown"
	}
}

// Config is what a Client is told. URL must be set; every other zero means its default.
type Config struct {
	// URL of an engine, or of a balancer in front of several, without a path.
	URL string
	// Budget is how long an answer may take; default 20 ms.
	Budget time.Duration
	// Parallel is how many questions may be under way; default 64.
	Parallel int
	// CacheTokens bounds the tokens remembered, 4 bytes each; default 4 Mi.
	CacheTokens int
	// MaxTokens is the longest prompt; default 1,048,576.
	MaxTokens int
	// Counted is told what became of each question. nil: nobody is.
	Counted func(Outcome)
}

// Client asks. All methods may be called concurrently.
type Client struct {
	cfg   Config
	url   string
	http  *http.Client
	slots chan struct{}
	seed  maphash.Seed
	cache *cache
	start time.Time
	// unserved is, by kind, until when its /render is not asked for, as time since start.
	unserved [numKinds]atomic.Int64
}

const (
	numKinds = int(prompt.Generate) + 1
	// askAgain is how long an engine without /render is not asked for it.
	askAgain = time.Minute
)

// New makes a Client.
func New(cfg Config) *Client {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&cfg.Parallel, 64)
	def(&cfg.CacheTokens, 4<<20)
	def(&cfg.MaxTokens, 1<<20)
	if cfg.Budget <= 0 {
		cfg.Budget = 20 * time.Millisecond
	}
	if cfg.Counted == nil {
		cfg.Counted = func(Outcome) {}
	}
	return &Client{
		cfg: cfg, url: strings.TrimSuffix(cfg.URL, "/"), start: time.Now(),
		http: &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: cfg.Parallel, IdleConnTimeout: 90 * time.Second},
			// An engine that sends us elsewhere is none.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		slots: make(chan struct{}, cfg.Parallel),
		seed:  maphash.MakeSeed(),
		cache: newCache(cfg.CacheTokens),
	}
}

// Tokens gives the token ids of a request's prompt, or nil, and what lies under placeholders among them. The caller must not
// change them.
func (c *Client) Tokens(ctx context.Context, kind prompt.Kind, r *prompt.Request, body [][]byte) ([]uint32, []block.Item) {
	a, outcome := c.tokens(ctx, kind, r, body)
	c.cfg.Counted(outcome)
	return a.ids, a.items
}

func (c *Client) tokens(ctx context.Context, kind prompt.Kind, r *prompt.Request, body [][]byte) (answer, Outcome) {
	path := renderPath(kind, r, body)
	canRender := path != "" && time.Since(c.start) >= time.Duration(c.unserved[kind].Load())
	question := ask(kind, r, body)
	var key uint64
	switch {
	case canRender:
		key = c.key(kind, body)
	case question != nil:
		key = maphash.Bytes(c.seed, question)
	default:
		return answer{}, Foreign
	}
	if a := c.cache.get(key); a.ids != nil {
		return a, Known
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		return answer{}, Busy
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Budget)
	defer cancel()
	var a answer
	var err error
	outcome := Asked
	if canRender {
		outcome = Rendered
		a, err = c.render(ctx, path, body)
		if err == nil && r.HasMedia && len(a.items) == 0 {
			err = errAnswer // an older one: it does not say which image a placeholder is
		}
		if errors.Is(err, errUnserved) {
			c.unserved[kind].Store(int64(time.Since(c.start) + askAgain))
			if question == nil {
				return answer{}, Foreign
			}
			canRender, outcome, key = false, Asked, maphash.Bytes(c.seed, question)
		}
	}
	if !canRender {
		a.ids, err = c.tokenize(ctx, question)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
		return answer{}, Late
	case err != nil:
		return answer{}, Failed
	}
	c.cache.put(key, a)
	return a, outcome
}

// key names the whole of a request.
func (c *Client) key(kind prompt.Kind, body [][]byte) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	_ = h.WriteByte(byte(kind)) // it never fails
	for _, piece := range body {
		_, _ = h.Write(piece)
	}
	return h.Sum64()
}

// ask is the question about a prompt; nil: there is none.
func ask(kind prompt.Kind, r *prompt.Request, body [][]byte) []byte {
	model, err := json.Marshal(r.Model)
	if err != nil {
		return nil
	}
	q := append([]byte(`{"model":`), model...)
	switch kind {
	case prompt.Chat:
		if r.HasMedia {
			return nil // /tokenize does not say which image a placeholder is
		}
		q = append(q, `,"add_generation_prompt":true,"messages":`...)
		q = r.Prompt.Append(q, body)
		if r.Tools != (prompt.Span{}) {
			q = append(q, `,"tools":`...)
			q = r.Tools.Append(q, body)
		}
	case prompt.Completions, prompt.Embeddings:
		q = append(q, `,"prompt":`...)
		at := len(q)
		q = r.Prompt.Append(q, body)
		if len(q) == at || q[at] != '"' {
			return nil // several prompts
		}
	case prompt.None, prompt.Responses, prompt.Messages, prompt.Generate:
		return nil
	}
	return append(q, '}')
}

var errAnswer = errors.New("tokenize: the engine did not answer with tokens")

// tokenize asks by /tokenize.
func (c *Client) tokenize(ctx context.Context, question []byte) ([]uint32, error) {
	resp, err := c.post(ctx, "/tokenize", bytes.NewReader(question), len(question))
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	in := c.limited(resp)
	if resp.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, in) // so that the connection can be used again
		return nil, fmt.Errorf("%w: %s", errAnswer, resp.Status)
	}
	var said struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.NewDecoder(in).Decode(&said); err != nil {
		return nil, err
	}
	return c.checked(said.Tokens)
}

func (c *Client) post(ctx context.Context, path string, body io.Reader, length int) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = int64(length)
	req.Header.Set("Content-Type", "application/json")
	return c.http.Do(req)
}

// limited is as much of an answer as is read.
func (c *Client) limited(resp *http.Response) io.Reader {
	const longestNumber = 12 // with its comma and a space
	return io.LimitReader(resp.Body, int64(longestNumber*c.cfg.MaxTokens+longestRest))
}

// longestRest is what an answer may have beside its tokens.
const longestRest = 16 << 10

func (c *Client) checked(ids []uint32) ([]uint32, error) {
	if len(ids) == 0 || len(ids) > c.cfg.MaxTokens {
		return nil, errAnswer
	}
	return ids, nil
}
