//go:build e2e && vllm

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// vllmEnv names the interpreter that has testdata/requirements-vllm.txt installed; `make e2e-vllm` sets it.
	vllmEnv = "KVORACLE_E2E_VLLM_PYTHON"

	// On a quiet machine it takes half a minute, most of it for Python to import.
	engineTimeout = 15 * time.Minute
)

// TestVLLM puts kvoracle and its bridge before two real vLLM engines (CPU, a tiny model of random weights) and sends them
// conversations. Whatever Route says is cached must be what the engine takes from its cache, request by request: through
// eviction, preemption, a cache reset, a restart of the oracle, and one of an engine.
func TestVLLM(t *testing.T) {
	python, vllm := os.Getenv(pythonEnv), os.Getenv(vllmEnv)
	if python == "" || vllm == "" {
		t.Fatalf("%s and %s are not both set: run this test by `make e2e-vllm`", pythonEnv, vllmEnv)
	}
	model := writeModel(t)
	engines := make([]*vllmEngine, len(engineNames))
	for i, name := range engineNames {
		engines[i] = &vllmEngine{name: name, python: vllm, model: model, http: portNumber(t), events: portNumber(t), replay: portNumber(t)}
		engines[i].start(t)
		engines[i].wait(t) // one after the other: each is busy for a while
	}

	oracle := start(t)
	var entries []string
	for _, e := range engines {
		entries = append(entries, fmt.Sprintf("worker: %s, address: '127.0.0.1:%d', events: 'tcp://127.0.0.1:%d', replay: 'tcp://127.0.0.1:%d', "+
			"metrics: 'http://127.0.0.1:%d/metrics'", e.name, e.http, e.events, e.replay, e.http))
	}
	ops := startBridge(t, oracle.grpc, entries...)
	turns := newTurns(t, python, oracle.grpc, ops, engines)

	turns.run("turns", "36")
	turns.run("burst", "10")
	turns.run("turns", "8")
	turns.run("reset")
	turns.run("turns", "8")

	oracle.stop()
	pages := freePort(t)
	start(t, "--listen="+oracle.grpc, "--ops-listen="+pages, fmt.Sprintf("--tokenize-url=http://127.0.0.1:%d", engines[0].http), "--tokenize-budget=50s")
	turns.run("turns", "6")

	// The engine is killed as a crash does it, and forgets everything.
	engines[0].stop(t)
	engines[0].start(t)
	engines[0].wait(t)
	turns.run("gone", engines[0].name)
	turns.run("turns", "12")

	behindEnvoy(t, turns, oracle.grpc, pages)

	if turns.hits < 15 || turns.evicted < 3 {
		t.Errorf("%d requests found something in the cache, want 15 or more; %d found something evicted, want 3 or more", turns.hits, turns.evicted)
	}
	t.Logf("%d checks, %d cache hits, %d of them cut short by eviction", turns.checks, turns.hits, turns.evicted)
}

// turns runs testdata/turns.py, phase after phase.
type turns struct {
	t                     *testing.T
	python, stubs, state  string
	oracle, ops           string
	engines               []*vllmEngine
	checks, hits, evicted int
}

func newTurns(t *testing.T, python, oracle, ops string, engines []*vllmEngine) *turns {
	t.Helper()
	return &turns{
		t: t, python: python, stubs: makeStubs(t, python), state: filepath.Join(t.TempDir(), "state.json"),
		oracle: oracle, ops: ops, engines: engines,
	}
}

func (p *turns) run(phase ...string) {
	p.t.Helper()
	args := append([]string{filepath.Join("testdata", "turns.py"), p.oracle, p.ops, p.state}, phase...)
	for _, e := range p.engines {
		args = append(args, fmt.Sprintf("%s=http://127.0.0.1:%d=tcp://127.0.0.1:%d", e.name, e.http, e.replay))
	}
	cmd := exec.CommandContext(p.t.Context(), p.python, args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+p.stubs, "PYTHONDONTWRITEBYTECODE=1")
	out := run(p.t, cmd)
	p.t.Logf("%s", out)
	for field := range strings.FieldsSeq(out) {
		name, value, _ := strings.Cut(field, "=")
		n, _ := strconv.Atoi(value)
		switch name {
		case "checks":
			p.checks += n
		case "hits":
			p.hits += n
		case "evicted":
			p.evicted += n
		}
	}
}

// writeModel makes a model that needs no download: a configuration, since weights are random, and a tokenizer whose words are w6
// to w511.
func writeModel(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	vocabulary := map[string]int{"<unk>": 0, "<s>": 1, "</s>": 2, "user": 3, "assistant": 4, "system": 5}
	for i := 6; i < 512; i++ {
		vocabulary["w"+strconv.Itoa(i)] = i
	}
	for name, content := range map[string]any{
		"config.json": map[string]any{
			"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
			"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512,
			"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
			"tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
		},
		"tokenizer.json": map[string]any{
			"version":       "1.0",
			"added_tokens":  []any{added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")},
			"pre_tokenizer": map[string]any{"type": "WhitespaceSplit"},
			"model":         map[string]any{"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
		},
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
			"chat_template": "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant{% endif %}",
		},
	} {
		text, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// added is a token of a tokenizer that is no word.
func added(id int, content string) map[string]any {
	return map[string]any{
		"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
	}
}

var engineNames = []string{"vllm-a", "vllm-b"}

// vllmEngine is one vLLM process.
type vllmEngine struct {
	name, python, model  string
	http, events, replay int

	cmd    *exec.Cmd
	log    *bytes.Buffer
	exited chan struct{}
	ended  bool
}

func (e *vllmEngine) start(t *testing.T) {
	t.Helper()
	events := fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d","topic":"kv"}`,
		e.events, e.replay)
	cmd := exec.Command(e.python, "-m", "vllm.entrypoints.openai.api_server", //nolint:noctx // outlives the test's context, as servers do
		"--model", e.model, "--served-model-name", "tiny", "--load-format", "dummy", "--enable-scale-out", "--dtype", "bfloat16",
		"--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4", "--block-size", "32", "--num-gpu-blocks-override", "18",
		"--enable-prefix-caching", "--enable-prompt-tokens-details", "--host", "127.0.0.1", "--port", strconv.Itoa(e.http),
		"--kv-events-config", events)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind",
		"OMP_NUM_THREADS=1", "VLLM_NO_USAGE_STATS=1", "HF_HUB_OFFLINE=1", "VLLM_SERVER_DEV_MODE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has children, which must not outlive it
	e.cmd, e.log, e.exited, e.ended = cmd, &bytes.Buffer{}, make(chan struct{}), false
	cmd.Stdout, cmd.Stderr = e.log, e.log
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s did not start: %v", e.name, err)
	}
	exited := e.exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	t.Cleanup(func() { e.stop(t) })
}

// stop kills the engine and its children.
func (e *vllmEngine) stop(t *testing.T) {
	t.Helper()
	if e.ended {
		return
	}
	e.ended = true
	if err := syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Errorf("%s could not be killed: %v", e.name, err)
	}
	<-e.exited
	if t.Failed() {
		t.Logf("%s said at the end:\n%s", e.name, tail(e.log.Bytes(), 4000))
	}
}

// wait returns when the engine can be called.
func (e *vllmEngine) wait(t *testing.T) {
	t.Helper()
	if !answers(t.Context(), fmt.Sprintf("http://127.0.0.1:%d/health", e.http), engineTimeout, e.exited) {
		e.stop(t)
		t.Fatalf("%s did not get up within %v; it said at the end:\n%s", e.name, engineTimeout, tail(e.log.Bytes(), 30_000))
	}
}

func tail(b []byte, n int) []byte { return b[max(len(b)-n, 0):] }
