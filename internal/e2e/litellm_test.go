//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// litellmEnv names the interpreter that has testdata/requirements-litellm.txt installed; `make e2e` sets it.
const litellmEnv = "KVORACLE_E2E_LITELLM_PYTHON"

// litellm is a process with LiteLLM's router.
type litellm struct {
	t       *testing.T
	in      *json.Encoder
	answers *bufio.Scanner
}

// startLiteLLM starts one with deploy/litellm.
func (s *stack) startLiteLLM() *litellm {
	s.t.Helper()
	python := os.Getenv(litellmEnv)
	if python == "" {
		s.t.Fatalf("%s is not set: run this test by `make e2e`", litellmEnv)
	}
	var replace []string
	for i, e := range s.engines {
		replace = append(replace, "127.0.0.1:800"+strconv.Itoa(i+1), e.address)
	}
	dir := deploy(s.t, "litellm", replace...)
	cmd := exec.Command(python, filepath.Join("testdata", "litellm_traffic.py"), filepath.Join(dir, "config.yaml"))    //nolint:noctx // killed below
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "KVORACLE_URL=http://"+s.http, "KVORACLE_DEADLINE=20") // this machine may be busy
	var log lockedBuffer
	cmd.Stderr = &log
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if s.t.Failed() {
			s.t.Logf("LiteLLM's log:\n%s", log.String())
		}
	})
	l := &litellm{t: s.t, in: json.NewEncoder(in), answers: bufio.NewScanner(out)}
	l.answer() // it is ready
	return l
}

type litellmAnswer struct {
	Errors             []string
	Chosen, Unanswered int
}

func (l *litellm) answer() (a litellmAnswer) {
	l.t.Helper()
	if !l.answers.Scan() {
		l.t.Fatalf("LiteLLM has ended: %v", l.answers.Err())
	}
	if err := json.Unmarshal(l.answers.Bytes(), &a); err != nil {
		l.t.Fatalf("%s: %v", l.answers.Text(), err)
	}
	return a
}

// talk has conversations that begin with a name, and fails the test if any request fails.
func (l *litellm) talk(name string, talks, turns int, asks, isStream bool) litellmAnswer {
	l.t.Helper()
	if err := l.in.Encode(map[string]any{"name": name, "talks": talks, "turns": turns, "asks": asks, "stream": isStream}); err != nil {
		l.t.Fatal(err)
	}
	a := l.answer()
	if len(a.Errors) > 0 {
		l.t.Errorf("%s: %d of %d requests failed, such as %s", name, len(a.Errors), talks*turns, a.Errors[0])
	}
	return a
}

// TestLiteLLM: behind LiteLLM's real router conversations stay where their beginnings are cached, their ends are told, and
// nobody notices when a worker or the oracle dies.
func TestLiteLLM(t *testing.T) {
	t.Parallel()
	const talks, turns = 24, 4
	s := newBareStack(t, 4000)
	s.register(0)
	l := s.startLiteLLM()

	share := func(name string, asks, isStream bool) float64 {
		_, promptBefore, cachedBefore := sum(s.engines)
		a := l.talk(name, talks, turns, asks, isStream)
		if asks && (a.Unanswered > 0 || a.Chosen != talks*turns) {
			t.Errorf("%s: kvoracle placed %d requests, and %d went without", name, a.Chosen, a.Unanswered)
		}
		_, prompt, cached := sum(s.engines)
		return float64(cached-cachedBefore) / float64(prompt-promptBefore)
	}
	// Of four turns 0, 1, 2 and 3 are there already: 60%. By chance they are found on one of three workers: 28%.
	shuffled, whole, streamed := share("shuffled", false, false), share("whole", true, false), share("streamed", true, true)
	t.Logf("cached: %.0f%% shuffled, %.0f%% and %.0f%% with kvoracle", 100*shuffled, 100*whole, 100*streamed)
	for _, got := range []float64{whole, streamed} {
		if got < 0.5 || got < 1.3*shuffled {
			t.Errorf("%.3f of the prompts were cached, %.3f without kvoracle", got, shuffled)
		}
	}
	steps := func(step string) float64 {
		return s.metric("kvoracle_progress_events_total", `step="`+step+`"`, `outcome="applied"`)
	}
	s.until("every end is told", func() bool { return steps("finished") == 2*talks*turns && s.metric("kvoracle_bookings") == 0 })
	if got := steps("first_token"); got != talks*turns {
		t.Errorf("%v first tokens were told, want %d, of the streams", got, talks*turns)
	}
	if got := s.metric("kvoracle_cached_tokens_total", `source="counted"`); got == 0 {
		t.Error("no cached tokens were heard of")
	}

	// A worker dies: who is sent there is sent elsewhere.
	s.engines[1].die()
	if a := l.talk("without a worker", 8, 3, true, false); a.Chosen < 8*3 {
		t.Errorf("kvoracle placed %d requests of %d", a.Chosen, 8*3)
	}
	s.until("all bookings have ended", func() bool { return s.metric("kvoracle_bookings") == 0 })

	// The oracle dies: the router chooses.
	s.killOracle(syscall.SIGKILL)
	if a := l.talk("without the oracle", 8, 3, true, true); a.Chosen > 0 || a.Unanswered < 8*3 {
		t.Errorf("a dead oracle placed %d requests; %d went without", a.Chosen, a.Unanswered)
	}
	s.startOracle(s.grpc)
	s.register(0)
	if a := l.talk("again", 8, 3, true, false); a.Chosen < 8*3 {
		t.Errorf("kvoracle placed %d requests of %d", a.Chosen, 8*3)
	}
}
