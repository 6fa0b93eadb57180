package smg

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/engine/metrics"
)

func messages(t testing.TB) map[string][]byte {
	t.Helper()
	body, err := os.ReadFile("testdata/messages.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]string
	if err := json.Unmarshal(body, &all); err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]byte)
	for name, text := range all {
		if out[name], err = hex.DecodeString(text); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestFacts(t *testing.T) {
	all := messages(t)
	for _, tt := range []struct {
		engine kvevents.Engine
		want   metrics.Facts
	}{
		{metrics.VLLM, metrics.Facts{Models: []string{"llama", "/models/llama"}, BlockSize: 16, Ranks: 2, MaxRunning: 256}},
		{metrics.SGLang, metrics.Facts{Models: []string{"m", "/m"}, BlockSize: 64, Ranks: 4, MaxRunning: 128, Started: 1790000000.25}},
		{metrics.TRTLLM, metrics.Facts{Models: []string{"/models/trt"}}},
	} {
		name := tt.engine.String()
		server, err := parseServer(tt.engine, all[name+" server"])
		if err != nil {
			t.Fatal(err)
		}
		model, err := parseModel(tt.engine, all[name+" model"])
		if err != nil {
			t.Fatal(err)
		}
		got, err := metrics.Merge(server, model)
		tt.want.Engine, tt.want.Source = tt.engine, "GetModelInfo"
		if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreUnexported(metrics.Facts{})); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}

func TestLoads(t *testing.T) {
	all := messages(t)
	for name, want := range map[string]map[int]metrics.Sample{
		"vllm loads": {
			0: {Running: new(3), Waiting: new(2), WaitingPrefillTokens: new(900), UsedTokens: new(1024), TotalTokens: new(4096), Usage: new(0.25)},
			1: {Running: new(0), Waiting: new(0), WaitingPrefillTokens: new(0), Usage: new(0.0)},
		},
		"sglang loads": {
			0: {Running: new(5), Waiting: new(1), WaitingPrefillTokens: new(333), UsedTokens: new(640), TotalTokens: new(65536), Usage: new(0.01)},
			1: {Running: new(0), Waiting: new(4), Usage: new(0.0)}, // what waits is not said, for it cannot be nothing
		},
	} {
		r, err := ParseLoads(all[name])
		if diff := cmp.Diff(want, r.Ranks); diff != "" || err != nil || r.Odd != 0 {
			t.Errorf("%s: %v, %d odd\n%s", name, err, r.Odd, diff)
		}
	}
	for name, want := range map[string]metrics.Sample{
		"vllm record":      {Running: new(3), Waiting: new(2), WaitingPrefillTokens: new(900), UsedTokens: new(1024), TotalTokens: new(4096), Usage: new(0.25)},
		"vllm idle record": {Running: new(0), Waiting: new(0), WaitingPrefillTokens: new(0), Usage: new(0.0)},
		"sglang record":    {Running: new(7), Waiting: new(1), WaitingPrefillTokens: new(0), TotalTokens: new(1000), Usage: new(0.4)},
	} {
		r, err := ParseRecord(3, all[name])
		if diff := cmp.Diff(map[int]metrics.Sample{3: want}, r.Ranks); diff != "" || err != nil || r.Odd != 0 {
			t.Errorf("%s: %v, %d odd\n%s", name, err, r.Odd, diff)
		}
	}
	if _, err := ParseLoads(nil); err == nil {
		t.Error("no ranks are a load")
	}
	// What cannot be is counted and left out.
	negative := []byte{8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}
	if r, err := ParseRecord(0, negative); err != nil || r.Odd != 1 || r.Ranks[0].Running != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzMessages(f *testing.F) {
	for _, m := range messages(f) {
		f.Add(m, uint8(1))
	}
	f.Fuzz(func(t *testing.T, m []byte, family uint8) {
		engine := []kvevents.Engine{metrics.VLLM, metrics.SGLang, metrics.TRTLLM}[family%3]
		for _, parse := range []func(kvevents.Engine, []byte) (metrics.Facts, error){parseServer, parseModel} {
			if x, err := parse(engine, m); err == nil && (x.Ranks < 0 || x.BlockSize < 0 || x.MaxRunning < 0 || math.IsNaN(x.Started) || len(x.Models) > 2) {
				t.Errorf("%+v", x)
			}
		}
		record, err := ParseRecord(1, m)
		if err == nil && len(record.Ranks) != 1 {
			t.Errorf("%+v", record)
		}
		loads, err := ParseLoads(m)
		if err == nil && len(loads.Ranks) == 0 {
			t.Error("no ranks, and no error")
		}
		for _, r := range []metrics.Reading{record, loads} {
			for rank, s := range r.Ranks {
				for _, n := range []*int{s.Running, s.Waiting, s.WaitingPrefillTokens, s.UsedTokens, s.TotalTokens} {
					if n != nil && *n < 0 {
						t.Errorf("rank %d: %d", rank, *n)
					}
				}
				if s.Usage != nil && !(*s.Usage >= 0 && *s.Usage <= 1) {
					t.Errorf("rank %d: %v", rank, *s.Usage)
				}
			}
		}
	})
}
