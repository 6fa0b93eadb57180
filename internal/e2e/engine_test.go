//go:build e2e

package e2e

import (
	"container/list"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// engine is a simulated inference engine with OpenAI's API. It keeps a prefix cache of so many blocks, takes as long as it
// has to compute, and counts in its answers what it found in the cache.
type engine struct {
	*httptest.Server

	address string

	mu       sync.Mutex
	cache    map[uint64]*list.Element
	order    list.List // of uint64, newest first
	capacity int
	perToken time.Duration // that a token takes
	served   int           // requests
	prompt   int           // tokens
	cached   int
	gone     int           // requests whose clients have left
	release  chan struct{} // closed: requests that are held go on
	dying    chan struct{} // closed: no answer begins any more
}

const (
	bytesPerToken  = 4
	tokensPerBlock = 16
)

func newEngine(t *testing.T, capacity int) *engine {
	t.Helper()
	e := &engine{cache: make(map[uint64]*list.Element), capacity: capacity, perToken: 20 * time.Microsecond, release: make(chan struct{}), dying: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.chat)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		e.served++
		e.mu.Unlock()
		_, _ = fmt.Fprint(w, `{"object":"list","data":[{"id":"m"}]}`)
	})
	e.Server = httptest.NewServer(mux)
	e.address = e.Listener.Addr().String()
	t.Cleanup(func() {
		e.mu.Lock()
		select {
		case <-e.release:
		default:
			close(e.release)
		}
		e.mu.Unlock()
		e.Close()
	})
	return e
}

// die ends it as a crash does that comes between answers: requests whose answers have not begun are lost with their
// connections. Nobody could make up for half an answer.
func (e *engine) die() {
	close(e.dying)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if e.Config.Shutdown(ctx) != nil {
		e.CloseClientConnections()
	}
}

// compute looks a prompt up in the cache and adds it.
func (e *engine) compute(text string) (tokens, cached int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	tokens = (len(text) + bytesPerToken - 1) / bytesPerToken
	h, hits := fnv.New64a(), true
	for ; len(text) >= bytesPerToken*tokensPerBlock; text = text[bytesPerToken*tokensPerBlock:] {
		_, _ = h.Write([]byte(text[:bytesPerToken*tokensPerBlock]))
		id := h.Sum64() // of all before it too
		if at := e.cache[id]; at != nil {
			e.order.MoveToFront(at)
			if hits {
				cached += tokensPerBlock
			}
			continue
		}
		hits = false
		e.cache[id] = e.order.PushFront(id)
	}
	for e.order.Len() > e.capacity {
		oldest := e.order.Back()
		e.order.Remove(oldest)
		delete(e.cache, oldest.Value.(uint64))
	}
	cached = min(cached, tokens-1)
	e.served++
	e.prompt += tokens
	e.cached += cached
	return tokens, cached
}

// chatRequest is what is understood of a request.
type chatRequest struct {
	Model    string `json:"model"`
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	Stream    bool `json:"stream"`
	MaxTokens int  `json:"max_tokens"`
}

func (e *engine) chat(w http.ResponseWriter, r *http.Request) {
	var q chatRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || len(q.Messages) == 0 {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	var text strings.Builder
	for _, m := range q.Messages {
		_, _ = fmt.Fprintf(&text, "<|%s|>%s", m.Role, m.Content)
	}
	tokens, cached := e.compute(text.String())
	if !e.wait(r, time.Duration(tokens-cached)*e.perToken) {
		return
	}
	select {
	case <-e.dying:
		panic(http.ErrAbortHandler)
	default:
	}
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`, tokens, q.MaxTokens, cached)
	w.Header().Set("X-Engine", e.address)
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		// As of vLLM where a prompt's logprobs are asked for: much comes after what it has counted.
		_, _ = fmt.Fprintf(w, `{"choices":[{"message":{"content":%q}}],"usage":%s,"prompt_logprobs":[%snull]}`,
			strings.Repeat("x ", q.MaxTokens), usage, strings.Repeat("null,", 2000))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range q.MaxTokens {
		finish := "null"
		if i == q.MaxTokens-1 {
			finish = `"length"`
		}
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x \"},\"finish_reason\":%s}],\"usage\":null}\n\n", finish)
		w.(http.Flusher).Flush()
		if r.Header.Get("X-Hold") != "" {
			select {
			case <-e.release:
			case <-r.Context().Done():
				e.left()
				return
			}
		}
	}
	_, _ = fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", usage)
}

// wait computes, or notices that nobody wants the answer any more, or that there will be none.
func (e *engine) wait(r *http.Request, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-e.dying:
		return true
	case <-r.Context().Done():
		e.left()
		return false
	}
}

func (e *engine) left() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone++
}

// counts are its counters at one moment.
func (e *engine) counts() (served, prompt, cached, gone int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served, e.prompt, e.cached, e.gone
}
