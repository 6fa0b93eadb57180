//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// publisherModules makes sure that what testdata/publishers.py needs is there, and returns the directory: SGLang, of which
// nothing but its own files is wanted, and SMG's servicers. It is kept beside the interpreter.
func publisherModules(t *testing.T, python string) string {
	t.Helper()
	const list = "testdata/requirements-publishers.txt"
	want, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(filepath.Dir(python)), "publishers")
	if has, err := os.ReadFile(filepath.Join(dir, "ready.txt")); err == nil && bytes.Equal(has, want) {
		return dir
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	run(t, exec.CommandContext(t.Context(), python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile",
		"--only-binary=:all:", "--target", dir, "--requirement", list))
	if err := os.WriteFile(filepath.Join(dir, "ready.txt"), want, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// holds waits until the oracle believes that a worker holds so much: "device 3 blocks" and the like.
func holds(t *testing.T, ctl, oracle, worker, want string, meanwhile func()) {
	t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		out, err := exec.CommandContext(t.Context(), ctl, "--server", oracle, "verify", worker).CombinedOutput()
		_, tiers, _ := strings.Cut(string(out), "\n")
		var got []string
		for line := range strings.Lines(tiers) {
			what, _, _ := strings.Cut(strings.Join(strings.Fields(line), " "), ",")
			if !strings.HasSuffix(what, " 0 blocks") {
				got = append(got, what)
			}
		}
		if err == nil && strings.Join(got, ", ") == want {
			return
		}
		select {
		case <-again.C:
		case <-deadline.C:
			t.Fatalf("%s holds %q, want %q\n%s", worker, got, want, out)
		}
		if meanwhile != nil {
			meanwhile()
		}
	}
}

// goldenFrames are messages that the decoders are tested with, by name.
func goldenFrames(t *testing.T) map[string][]string {
	t.Helper()
	f, err := os.Open("../engine/kvevents/testdata/engine-events.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := make(map[string][]string)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var g struct {
			Name   string
			Frames []string
		}
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		out[g.Name] = g.Frames
	}
	return out
}

// page gets a page, whatever its status.
func page(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestPublishers hears engines that cannot run here as closely as their packages allow: SGLang's own publisher and load
// publisher, over ZeroMQ; the same through SMG's own gRPC relay; and TensorRT-LLM, whose package is not to be had without its
// vendor's index, by recorded messages over libzmq and HTTP.
func TestPublishers(t *testing.T) {
	t.Parallel()
	python := os.Getenv(pythonEnv)
	if python == "" {
		t.Fatalf("%s is not set: run this test by `make e2e`", pythonEnv)
	}
	modules := publisherModules(t, python)
	ctl := build(t, "client/cmd/kvoraclectl")
	golden := goldenFrames(t)
	unhex := func(name string, part int) string {
		b, err := hex.DecodeString(golden[name][part])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return string(b)
	}

	// SGLang, before anybody listens.
	engine := startPeer(t, "publishers.py", modules)
	sglang := engine.do("sglang", fields{"name": "p", "endpoint": "tcp://127.0.0.1:*", "replay": "tcp://127.0.0.1:*"})
	loadPort := portNumber(t)
	// Another one by the same code, which vLLM has too: an address without a wildcard is connected to.
	bound := fmt.Sprintf("tcp://127.0.0.1:%d", portNumber(t))
	connecting := fields{"name": "c", "endpoint": bound, "bind": nil}
	engine.do("sglang", connecting)
	engine.do("load_socket", fields{"name": "l", "endpoint": sglang.Endpoint, "port": loadPort})
	servicer := engine.do("serve", fields{"endpoint": sglang.Endpoint, "replay": sglang.Replay}).Endpoint
	cleared := fields{"type": "AllBlocksCleared"}
	stored := func(parent any, first int, hashes ...int64) fields {
		var tokens []int
		for i := range 4 * len(hashes) {
			tokens = append(tokens, first+i)
		}
		return fields{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": 4}
	}
	publish := func(events ...fields) { engine.do("publish", fields{"name": "p", "events": events}) }
	publish(cleared, stored(nil, 1, -5, 6))

	// TensorRT-LLM's stream and its buffer.
	stream := startLibzmq(t)
	streamAt := stream.open("trt", "XPUB", fields{"bind": "tcp://127.0.0.1:*"})
	var mu sync.Mutex
	var buffer []string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/kv_cache_events" {
			http.NotFound(w, r)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		answer := "[]"
		if len(buffer) > 0 {
			answer, buffer = buffer[0], buffer[1:]
		}
		_, _ = fmt.Fprint(w, answer)
	}))
	t.Cleanup(web.Close)
	gather := func(names ...string) {
		mu.Lock()
		defer mu.Unlock()
		for _, name := range names {
			buffer = append(buffer, strings.Replace(unhex(name, 0), `,"attention_dp_rank":1`, "", 1)) // all are of one rank here
		}
	}

	oracle := start(t)
	const known = "model: m, block-size: 4"
	ops := startBridge(t, oracle.grpc,
		fmt.Sprintf("worker: sglang, engine: sglang, %s, events: '%s', replay: '%s', load: 'tcp://127.0.0.1:%d'", known, sglang.Endpoint, sglang.Replay, loadPort),
		fmt.Sprintf("worker: connecting, engine: sglang, %s, events: '%s', bind: true", known, bound),
		fmt.Sprintf("worker: relayed, events: 'grpc://%s'", servicer), // which says the rest itself
		fmt.Sprintf("worker: trt-stream, engine: trtllm, %s, events: '%s'", known, streamAt),
		fmt.Sprintf("worker: trt-buffer, %s, events: '%s/kv_cache_events'", known, web.URL),
	)

	// What it published before anybody listened is in its memory. The relay has none: what comes later has no place there.
	holds(t, ctl, oracle.grpc, "sglang", "device 2 blocks", nil)
	all := func() { publish(cleared, stored(nil, 1, -5, 6), stored(6, 9, 7)) }
	holds(t, ctl, oracle.grpc, "sglang", "device 3 blocks", all)  // what it held may have been replayed, and the subscription be under way
	holds(t, ctl, oracle.grpc, "relayed", "device 3 blocks", all) // it may subscribe a little later than it says
	publish(fields{"type": "BlockRemoved", "block_hashes": []int{7}, "medium": "GPU"}, fields{"type": "BlockRemoved", "block_hashes": []int{6}, "medium": "GPU"})
	for _, worker := range []string{"sglang", "relayed"} {
		holds(t, ctl, oracle.grpc, worker, "device 1 blocks", nil)
	}
	salted := stored(nil, 1, 70)
	salted["cache_salt"] = "tenant"
	publish(salted)
	for _, worker := range []string{"sglang", "relayed"} {
		holds(t, ctl, oracle.grpc, worker, "device 2 blocks", nil)
		out := run(t, exec.CommandContext(t.Context(), ctl, "--server", oracle.grpc, "route", "--model", "m", "--tokens", "1-8", "--salt", "tenant", "--explain"))
		if !strings.Contains(out, worker) {
			t.Errorf("%s is no candidate:\n%s", worker, out)
		}
	}

	// The process ends, and another one begins at its address.
	engine.do("close", fields{"name": "p"})
	engine.do("sglang", fields{"name": "p", "endpoint": sglang.Endpoint, "replay": sglang.Replay})
	again := func() { publish(cleared, stored(nil, 101, 1)) }
	again()
	for _, worker := range []string{"sglang", "relayed"} {
		holds(t, ctl, oracle.grpc, worker, "device 1 blocks", again)
	}

	// The one that connects, over two lives.
	for life := range 2 {
		if life > 0 {
			engine.do("close", fields{"name": "c"})
			engine.do("sglang", connecting)
		}
		holds(t, ctl, oracle.grpc, "connecting", fmt.Sprintf("device %d blocks", 2-life), func() {
			hashes := []int64{-5, 6}[:2-life]
			engine.do("publish", fields{"name": "c", "events": []fields{cleared, stored(nil, 1, hashes...)}})
		})
	}

	// Its load is heard, on its own socket and in the relay's stream.
	for isHeard := false; !isHeard; {
		engine.do("load", fields{"name": "l", "running": 3, "waiting": 1})
		status := page(t, "http://"+ops+"/healthz")
		isHeard = true
		for line := range strings.Lines(status) {
			if (strings.HasPrefix(line, "sglang/0") || strings.HasPrefix(line, "relayed/0")) && strings.Contains(line, "load never") {
				isHeard = false
			}
		}
	}

	// TensorRT-LLM's stream, once the bridge has subscribed.
	if got := stream.recv("trt", patience); got != "\x01" {
		t.Fatalf("subscription %q", got)
	}
	for _, name := range []string{"trtllm-stream-start-cleared", "trtllm-stream-stored", "trtllm-stream-removed", "trtllm-stream-heartbeat"} {
		stream.do("send", fields{"name": "trt", "frames": golden[name]})
	}
	holds(t, ctl, oracle.grpc, "trt-stream", "device 1 blocks", nil)

	// Its buffer: an offload moves a block, and a removal is for every level.
	gather("trtllm-json-created", "trtllm-json-stored")
	holds(t, ctl, oracle.grpc, "trt-buffer", "device 2 blocks", nil)
	gather("trtllm-json-stored-mm", "trtllm-json-updated", "trtllm-json-updated-priority")
	holds(t, ctl, oracle.grpc, "trt-buffer", "device 2 blocks, host 1 blocks", nil)
	gather("trtllm-json-removed")
	holds(t, ctl, oracle.grpc, "trt-buffer", "device 1 blocks", nil) // whose parent has gone, so that nobody can reuse it

	counts := page(t, "http://"+ops+"/metrics")
	for _, want := range []string{
		`kvoracle_bridge_lives_total{rank="0",worker="sglang"} 2`,
		`kvoracle_bridge_missing_batches_total{rank="0",worker="trt-buffer"} 0`, `kvoracle_bridge_missing_batches_total{rank="0",worker="sglang"} 0`,
	} {
		if !strings.Contains(counts, want) {
			t.Errorf("no %s in\n%s", want, counts)
		}
	}
}
