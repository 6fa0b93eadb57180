package metrics

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

var ignoreSources = cmpopts.IgnoreUnexported(Facts{})

func read(t testing.TB, name string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestText(t *testing.T) {
	const source = "/metrics"
	for name, want := range map[string]Reading{
		"vllm-0.9.txt": {
			Facts: Facts{
				Source: source, Engine: VLLM, Models: []string{"meta-llama/Llama-3.1-8B-Instruct"},
				BlockSize: 16, TotalBlocks: 27000, Started: 1749410223.45,
			},
			Ranks: map[int]Sample{0: {Running: new(7), Waiting: new(3), Usage: new(0.25)}},
		},
		"vllm-0.32.txt": { // as served by a real one
			Facts: Facts{Source: source, Engine: VLLM, Models: []string{"tiny"}, BlockSize: 32, TotalBlocks: 32, Started: 1795992195.75},
			Ranks: map[int]Sample{0: {Running: new(0), Waiting: new(0), Usage: new(0.0)}},
		},
		"vllm-dp.txt": {
			Facts: Facts{Source: source, Engine: VLLM, Models: []string{"llama"}, BlockSize: 32, TotalBlocks: 1000},
			Ranks: map[int]Sample{
				0: {Running: new(2), Waiting: new(0), Usage: new(0.5)},
				1: {Running: new(0), Waiting: new(5)},
			},
			Odd: 1,
		},
		"vllm-no-stats.txt": {Facts: Facts{Source: source}},
		"sglang-0.5.12.txt": {
			Facts: Facts{Source: source, Engine: SGLang, Models: []string{"qwen"}, BlockSize: 64, TotalBlocks: 1600},
			Ranks: map[int]Sample{
				0: {Running: new(4), Waiting: new(1), UsedTokens: new(12801), TotalTokens: new(102400), Usage: new(0.13)},
				1: {Running: new(6), Waiting: new(0), TotalTokens: new(102400), Usage: new(0.21)},
			},
		},
		"sglang-0.4.txt": {
			Facts: Facts{Source: source, Engine: SGLang, Models: []string{"qwen"}, BlockSize: 16, TotalBlocks: 4096},
			Ranks: map[int]Sample{0: {Running: new(2), Waiting: new(0), Usage: new(0.5)}},
		},
		"trtllm.txt": {
			Facts: Facts{Source: source, Engine: TRTLLM, Models: []string{"llama"}, BlockSize: 32, MaxRunning: 256},
			Ranks: map[int]Sample{0: {Running: new(12), Waiting: new(0), Usage: new(0.1), UsedBlocks: new(499), TotalBlocks: new(5000)}},
		},
		"triton.txt": {
			Facts: Facts{Source: source, Engine: TRTLLM, BlockSize: 64},
			Ranks: map[int]Sample{0: {Running: new(5), Waiting: new(2), Usage: new(0.5), UsedBlocks: new(50), TotalBlocks: new(100)}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseText(read(t, name))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got, ignoreSources); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestOddValuesAreLeftOut(t *testing.T) {
	body := strings.ReplaceAll(`
vllm:num_requests_running{engine="RANK"} -1
vllm:num_requests_running{engine="1"} +Inf
vllm:num_requests_running{engine="2"} 3
vllm:num_requests_running{engine="2000"} 3
vllm:num_requests_running{engine="two"} 3
vllm:kv_cache_usage_perc{engine="2"} 90
vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1
`, "RANK", "0")
	r, err := ParseText([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := Reading{
		Facts: Facts{Source: "/metrics", Engine: VLLM},
		Ranks: map[int]Sample{0: {}, 1: {}, 2: {Running: new(3)}},
		Odd:   5,
	}
	if d := cmp.Diff(want, r, ignoreSources); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for rank, s := range r.Ranks {
		if s.Said() != (rank == 2) {
			t.Errorf("rank %d: said %v", rank, s.Said())
		}
	}
}

func TestMalformedTextIsAnError(t *testing.T) {
	for _, body := range []string{"vllm:num_requests_running{engine=} 1\n", "vllm:num_requests_running x\n"} {
		if r, err := ParseText([]byte(body)); err == nil {
			t.Errorf("%q gives %+v", body, r)
		}
	}
	if _, err := ParseText([]byte("something_else{ broken\n\xff\xfe")); err != nil {
		t.Errorf("a line that does not matter: %v", err)
	}
}

func TestComplete(t *testing.T) {
	facts := Facts{BlockSize: 16, TotalBlocks: 100}
	for name, c := range map[string]struct{ in, want Sample }{
		"nothing said": {Sample{}, Sample{TotalBlocks: new(100)}},
		"a ratio":      {Sample{Usage: new(0.254)}, Sample{Usage: new(0.254), UsedBlocks: new(25), TotalBlocks: new(100)}},
		"tokens": {
			Sample{UsedTokens: new(17), TotalTokens: new(330)},
			Sample{UsedTokens: new(17), TotalTokens: new(330), UsedBlocks: new(2), TotalBlocks: new(20)},
		},
		"more than all": {Sample{UsedBlocks: new(120)}, Sample{UsedBlocks: new(100), TotalBlocks: new(100)}},
		"not ready":     {Sample{TotalBlocks: new(0), Usage: new(0.5)}, Sample{Usage: new(0.5)}},
	} {
		if d := cmp.Diff(c.want, c.in.Complete(facts)); d != "" {
			t.Errorf("%s: -want +got:\n%s", name, d)
		}
	}
	if got := (Sample{Usage: new(0.5)}).Complete(Facts{}); got.UsedBlocks != nil || got.TotalBlocks != nil {
		t.Errorf("blocks out of nothing: %+v", got)
	}
}

func FuzzText(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatalf("no texts: %v", err)
	}
	for _, name := range files {
		f.Add(read(f, filepath.Base(name)))
	}
	f.Add([]byte("# TYPE vllm:num_requests_running histogram\nvllm:num_requests_running{engine=\"0\"} 1 2\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := ParseText(body)
		if err != nil {
			return
		}
		for rank, s := range r.Ranks {
			s = s.Complete(r.Facts)
			if rank < 0 || rank > MaxRank {
				t.Fatalf("rank %d", rank)
			}
			for _, v := range []*int{s.Running, s.Waiting, s.UsedBlocks, s.TotalBlocks, s.UsedTokens, s.TotalTokens} {
				if v != nil && (*v < 0 || *v > maxCount) {
					t.Fatalf("%d in %+v", *v, s)
				}
			}
			if s.UsedBlocks != nil && s.TotalBlocks != nil && *s.UsedBlocks > *s.TotalBlocks {
				t.Fatalf("%d of %d blocks", *s.UsedBlocks, *s.TotalBlocks)
			}
		}
		// What is skipped unparsed must not change what is read.
		parser := expfmt.NewTextParser(model.UTF8Validation)
		all, err := parser.TextToMetricFamilies(bytes.NewReader(append(bytes.Clone(body), '\n')))
		if err != nil || bytes.Contains(body, []byte(`{"`)) {
			return // names in quotes are no engine's way to write
		}
		for _, k := range known() {
			if mf := all[k.name]; mf != nil && len(mf.GetMetric()) > 0 {
				if _, scalar := valueOf(mf.GetMetric()[0]); scalar && !bytes.Contains(relevant(body), []byte(k.name)) {
					t.Fatalf("%s was skipped", k.name)
				}
			}
		}
	})
}

func BenchmarkText(b *testing.B) {
	line := []byte(`vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.0` + "\n")
	body := append(read(b, "vllm-0.9.txt"), bytes.Repeat(line, 300_000/len(line))...)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := ParseText(body); err != nil {
			b.Fatal(err)
		}
	}
}
