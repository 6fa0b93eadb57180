//go:build e2e && vllm

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

// behindEnvoy puts Envoy, by deploy/envoy/envoy.yaml, before the engines and the oracle of TestVLLM, and sends it conversations as
// text. The oracle has their tokens from vLLM's own /render; what it then says is cached must be what the engine takes from its
// cache, request by request, as the engine's answer tells it through Envoy's observer.
func behindEnvoy(t *testing.T, turns *turns, oracle, pages string) {
	t.Helper()
	s := &stack{t: t, grpc: oracle, ops: pages}
	for _, e := range turns.engines {
		s.workers = append(s.workers, fmt.Sprintf("127.0.0.1:%d", e.http))
	}
	s.startEnvoy(bufferedMode)
	rng := rand.New(rand.NewPCG(3, 4))
	words := func(n int) string {
		var w []string
		for range n {
			w = append(w, fmt.Sprintf("w%d", 10+rng.IntN(490)))
		}
		return strings.Join(w, " ")
	}
	count := func(name string, labels ...string) int { return int(s.metric(name, labels...)) }
	finished := func() int { return count("kvoracle_progress_events_total", `step="finished"`, `outcome="applied"`) }

	const talks, rounds = 3, 4
	said := make([][]message, talks)
	hits, late, rendered := 0, 0, count("kvoracle_tokenize_requests_total", `outcome="rendered"`)
	for n := range talks * rounds {
		i := n % talks
		said[i] = append(said[i], message{"user", words(40)})
		body, err := json.Marshal(map[string]any{"model": "tiny", "messages": said[i], "max_tokens": 6, "temperature": 0, "ignore_eos": true})
		if err != nil {
			t.Fatal(err)
		}
		matched, counted := count("kvoracle_cached_tokens_total", `source="matched"`), count("kvoracle_cached_tokens_total", `source="counted"`)
		before := finished()
		code, text := s.do(http.MethodPost, s.url+"/v1/chat/completions", string(body))
		var answer struct {
			Choices []struct {
				Message message `json:"message"`
			} `json:"choices"`
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		if err := json.Unmarshal([]byte(text), &answer); code != http.StatusOK || err != nil || len(answer.Choices) != 1 {
			t.Fatalf("request %d: %d %s %v", n, code, text, err)
		}
		s.until("its end is known", func() bool { return finished() == before+1 })
		said[i] = append(said[i], answer.Choices[0].Message)
		cached := answer.Usage.Details.Cached
		matched = count("kvoracle_cached_tokens_total", `source="matched"`) - matched
		counted = count("kvoracle_cached_tokens_total", `source="counted"`) - counted
		if matched == 0 && counted == 0 && cached > 0 {
			late++ // its end was known before its observer had said what was cached
		} else if matched != cached || counted != cached {
			t.Errorf("request %d: the oracle says %d are cached, the engine took %d, of which was heard %d", n, matched, cached, counted)
		}
		if cached > 0 {
			hits++
		}
		turns.run("settle")
	}
	if got := count("kvoracle_tokenize_requests_total", `outcome="rendered"`) - rendered; got != talks*rounds {
		t.Errorf("%d prompts were rendered, want %d", got, talks*rounds)
	}
	if got := count("kvoracle_extproc_prompts_total", `source="tokenizer"`); got != talks*rounds {
		t.Errorf("%d prompts were known by their tokens, want %d", got, talks*rounds)
	}
	if late > hits/2 {
		t.Errorf("of %d cache hits %d were not heard of", hits, late)
	}
	if want := talks * (rounds - 1) / 2; hits < want { // some may be evicted
		t.Errorf("%d requests found something in the cache, want %d", hits, want)
	}
	s.until("all bookings have ended", func() bool { return count("kvoracle_bookings") == 0 })
	t.Logf("behind Envoy: %d requests, %d cache hits", talks*rounds, hits)
}
