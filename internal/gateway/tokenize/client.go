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
	"time"

	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
)

// Outcome is what became of a question.
type Outcome uint8

// The outcomes.
const (
	Asked   Outcome = iota // the engine has answered
	Known                  // it was remembered
	Late                   // the budget is spent
	Busy                   // too many were under way
	Failed                 // the engine has refused, or answered nonsense
	Foreign                // of a kind that is not asked about
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
	default:
		return "unknown"
	}
}

// Config is what a Client is told. URL must be set; every other zero means its default.
type Config struct {
	// URL of an engine, or of a balancer in front of several, without /tokenize.
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
}

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
		cfg: cfg, url: strings.TrimSuffix(cfg.URL, "/") + "/tokenize",
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

// Tokens gives the token ids of a request's prompt, or nil. The caller must not change them.
func (c *Client) Tokens(ctx context.Context, kind prompt.Kind, r *prompt.Request, body [][]byte) []uint32 {
	ids, outcome := c.tokens(ctx, kind, r, body)
	c.cfg.Counted(outcome)
	return ids
}

func (c *Client) tokens(ctx context.Context, kind prompt.Kind, r *prompt.Request, body [][]byte) ([]uint32, Outcome) {
	question := ask(kind, r, body)
	if question == nil {
		return nil, Foreign
	}
	key := maphash.Bytes(c.seed, question)
	if ids := c.cache.get(key); ids != nil {
		return ids, Known
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		return nil, Busy
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Budget)
	defer cancel()
	ids, err := c.call(ctx, question)
	switch {
	case errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
		return nil, Late
	case err != nil:
		return nil, Failed
	}
	c.cache.put(key, ids)
	return ids, Asked
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
	case prompt.None, prompt.Responses, prompt.Messages:
		return nil
	}
	return append(q, '}')
}

var errAnswer = errors.New("tokenize: the engine did not answer with tokens")

func (c *Client) call(ctx context.Context, question []byte) ([]uint32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(question))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	const longestNumber = 12 // with its comma and a space
	in := io.LimitReader(resp.Body, int64(longestNumber*c.cfg.MaxTokens+4096))
	if resp.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, in) // so that the connection can be used again
		return nil, fmt.Errorf("%w: %s", errAnswer, resp.Status)
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.NewDecoder(in).Decode(&answer); err != nil {
		return nil, err
	}
	if len(answer.Tokens) == 0 || len(answer.Tokens) > c.cfg.MaxTokens {
		return nil, errAnswer
	}
	return answer.Tokens, nil
}
