package metrics

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSGLangLoads(t *testing.T) {
	r, err := ParseSGLangLoads([]byte(`{"timestamp":"2026-09-20T10:00:00Z","version":"0.5.13","accelerator":"H100","loads":[
		{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":2,"num_waiting_uncached_tokens":4096,"num_used_tokens":640,
		 "num_total_tokens":6400,"max_total_num_tokens":12800,"max_running_requests":64,"token_usage":0.05,"gen_throughput":12.5,
		 "memory":{"weight_gb":15.1}},
		{"dp_rank":1,"num_running_reqs":0,"num_waiting_reqs":0,"max_total_num_tokens":0},
		{"dp_rank":-1,"num_running_reqs":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Reading{
		Facts: Facts{Source: "/v1/loads", Engine: SGLang, MaxRunning: 64},
		Ranks: map[int]Sample{
			0: {Running: new(3), Waiting: new(2), WaitingPrefillTokens: new(4096), UsedTokens: new(640), TotalTokens: new(12800)},
			1: {Running: new(0), Waiting: new(0), TotalTokens: new(0)},
		},
		Odd: 1,
	}
	if d := cmp.Diff(want, r, ignoreSources); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := r.Ranks[1].Complete(Facts{BlockSize: 64}); got.TotalBlocks != nil {
		t.Errorf("an engine that is not ready has %d blocks", *got.TotalBlocks)
	}

	r, err = ParseSGLangLoads([]byte(` [{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":900}]`))
	if d := cmp.Diff(map[int]Sample{0: {Running: new(3), Waiting: new(2)}}, r.Ranks); err != nil || d != "" {
		t.Errorf("/get_load: %v\n%s", err, d)
	}
	for _, body := range []string{`{"loads":[]}`, `[]`, `{}`, `x`, `[1]`, ``} {
		if r, err := ParseSGLangLoads([]byte(body)); err == nil {
			t.Errorf("%q gives %+v", body, r)
		}
	}
}

func TestServerInfo(t *testing.T) {
	for name, c := range map[string]struct {
		parse func([]byte) (Facts, error)
		body  string
		want  Facts
	}{
		"sglang": {
			ParseSGLangServerInfo,
			`{"model_path":"/models/qwen","served_model_name":"qwen","page_size":64,"dp_size":2,"max_total_num_tokens":102400,
			  "max_running_requests":48,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv",
			  "block_size":64,"dp_size":2}}`,
			Facts{
				Source: "/server_info", Engine: SGLang, Models: []string{"qwen", "/models/qwen"}, BlockSize: 64, Ranks: 2,
				MaxRunning: 48, Events: "tcp://*:5557", Topic: "kv",
			},
		},
		"sglang without events": {
			ParseSGLangServerInfo, `{"model_path":"qwen","page_size":16,"kv_events":null}`,
			Facts{Source: "/server_info", Engine: SGLang, Models: []string{"qwen"}, BlockSize: 16},
		},
		"vllm": {
			ParseVLLMServerInfo,
			`{"vllm_config":{"scheduler_config":{"max_num_seqs":256},"parallel_config":{"data_parallel_size":4},"cache_config":{"block_size":16}}}`,
			Facts{Source: "/server_info", Engine: VLLM, MaxRunning: 256, Ranks: 4, BlockSize: 16},
		},
		"vllm as text": {ParseVLLMServerInfo, `{}`, Facts{Source: "/server_info"}},
		"models": {
			ParseModels,
			`{"object":"list","data":[{"id":"llama","object":"model","owned_by":"vllm","root":"/m/llama","parent":null,"max_model_len":4096},
			  {"id":"sql","owned_by":"vllm","root":"/m/sql","parent":"llama"},{"id":"llama-alias","owned_by":"vllm"}]}`,
			Facts{Source: "/v1/models", Engine: VLLM, Models: []string{"llama", "llama-alias"}},
		},
	} {
		got, err := c.parse([]byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(c.want, got, ignoreSources); d != "" {
			t.Errorf("%s: -want +got:\n%s", name, d)
		}
		if _, err := c.parse([]byte("<html>")); err == nil {
			t.Errorf("%s: a page is no document", name)
		}
	}
}

func TestTRTLLMStats(t *testing.T) {
	r, ok, err := ParseTRTLLMStats([]byte(`[
		{"iter":7,"numActiveRequests":9,"numQueuedRequests":9,"attentionDpRank":0,"kvCacheStats":{"maxNumBlocks":100,"usedNumBlocks":90,"tokensPerBlock":32}},
		{"iter":8,"numActiveRequests":1,"numQueuedRequests":0,"attentionDpRank":1,"kvCacheStats":{"maxNumBlocks":100,"usedNumBlocks":3,"tokensPerBlock":32}},
		{"iter":8,"numActiveRequests":2,"numQueuedRequests":4,"attentionDpRank":0,"kvCacheStats":{"maxNumBlocks":100,"usedNumBlocks":20,"tokensPerBlock":32}}]`))
	want := map[int]Sample{
		0: {Running: new(2), Waiting: new(4), UsedBlocks: new(20), TotalBlocks: new(100)},
		1: {Running: new(1), Waiting: new(0), UsedBlocks: new(3), TotalBlocks: new(100)},
	}
	if d := cmp.Diff(want, r.Ranks); err != nil || !ok || d != "" {
		t.Errorf("%v, %v\n%s", ok, err, d)
	}
	if r.Facts.BlockSize != 32 || r.Facts.Engine != TRTLLM {
		t.Errorf("facts %+v", r.Facts)
	}
	if r, ok, err := ParseTRTLLMStats([]byte(`[]`)); ok || err != nil || len(r.Ranks) != 0 {
		t.Errorf("an idle engine: %+v, %v, %v", r, ok, err)
	}
}

func TestMerge(t *testing.T) {
	flags := Facts{Source: "the flags", Models: []string{"llama"}, BlockSize: 16}
	scraped := Facts{Source: "/metrics", Engine: VLLM, BlockSize: 16, TotalBlocks: 99}
	models := Facts{Source: "/v1/models", Models: []string{"alias", "llama"}}
	all, err := Merge(flags, scraped)
	if err != nil {
		t.Fatal(err)
	}
	if all, err = Merge(all, models); err != nil {
		t.Fatal(err)
	}
	want := Facts{Source: "/v1/models", Engine: VLLM, Models: []string{"llama"}, BlockSize: 16, TotalBlocks: 99}
	if d := cmp.Diff(want, all, ignoreSources); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for name, c := range map[string]struct {
		b    Facts
		want string
	}{
		"block size": {Facts{Source: "/server_info", BlockSize: 32}, "block-size: the flags says 16, /server_info says 32"},
		"engine":     {Facts{Source: "/server_info", Engine: SGLang}, "engine: /metrics says vllm, /server_info says sglang"},
		"capacity":   {Facts{Source: "x", TotalBlocks: 98}, "blocks: /metrics says 99, x says 98"},
		"model":      {Facts{Source: "x", Models: []string{"a", "b"}}, "model: the flags says llama, x says a, b"},
	} {
		_, err := Merge(all, c.b)
		var contradiction *ContradictionError
		if !errors.As(err, &contradiction) || err.Error() != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestORCA(t *testing.T) {
	want := Reading{Facts: Facts{Source: "ORCA"}, Ranks: map[int]Sample{0: {Waiting: new(3), Usage: new(0.25)}}}
	for _, header := range []string{
		"TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3",
		"text named_metrics.kv_cache_usage_perc:0.25,named_metrics.num_requests_waiting:3,cpu_utilization=0.3",
		`JSON {"named_metrics":{"kv_cache_usage_perc":0.25,"num_requests_waiting":3}}`,
		`JSON {"applicationUtilization":0.5,"namedMetrics":{"vllm:num_requests_waiting":3},"utilization":{"kv_cache_utilization":0.25}}`,
	} {
		values, err := ParseORCA(header)
		if err != nil {
			t.Errorf("%q: %v", header, err)
			continue
		}
		if d := cmp.Diff(want, ORCASample(values), ignoreSources); d != "" {
			t.Errorf("%q: -want +got:\n%s", header, d)
		}
	}
	for _, header := range []string{
		"", "BIN AAAA", "TEXT a", "TEXT a=b", "JSON [", "TEXT " + strings.Repeat("a=1,", 5000), "JSON {}" + strings.Repeat(" ", 20000),
	} {
		if v, err := ParseORCA(header); err == nil {
			t.Errorf("%.40q gives %v", header, v)
		}
	}
}

func FuzzDocuments(f *testing.F) {
	f.Add([]byte(`{"loads":[{"dp_rank":3,"num_running_reqs":1e300}]}`))
	f.Add([]byte(`[{"numActiveRequests":2,"kvCacheStats":{}}]`))
	f.Add([]byte(`TEXT named_metrics.kv_cache_usage_perc=0.25`))
	f.Add([]byte(`{"page_size":1e18,"kv_events":{"endpoint_port_base":70000}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		check := func(r Reading) {
			for rank, s := range r.Ranks {
				if rank < 0 || rank > MaxRank || (s.Running != nil && (*s.Running < 0 || *s.Running > maxCount)) {
					t.Fatalf("rank %d: %+v", rank, s)
				}
			}
		}
		if r, err := ParseSGLangLoads(body); err == nil {
			check(r)
		}
		if r, _, err := ParseTRTLLMStats(body); err == nil {
			check(r)
		}
		if values, err := ParseORCA(string(body)); err == nil {
			check(ORCASample(values))
		}
		for _, parse := range []func([]byte) (Facts, error){ParseModels, ParseSGLangServerInfo, ParseVLLMServerInfo} {
			if facts, err := parse(body); err == nil && (facts.BlockSize < 0 || facts.BlockSize > maxCount || facts.Ranks < 0 || len(facts.Models) > maxModels) {
				t.Fatalf("%+v", facts)
			}
		}
	})
}
