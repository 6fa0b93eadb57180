//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// both runs a test for each way in which Envoy hands bodies over, beside other tests.
func both(t *testing.T, test func(t *testing.T, m mode)) {
	t.Helper()
	t.Parallel()
	for _, m := range bodyModes {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			test(t, m)
		})
	}
}

var bodyModes = []mode{bufferedMode, authzMode, duplexMode}

// TestEnvoyCachedTokens is what it is all for: conversations of several turns find more of their prompts in the engines'
// caches than the same ones sent round robin.
func TestEnvoyCachedTokens(t *testing.T) {
	// Beside other tests more observers would be late.
	for _, m := range bodyModes {
		t.Run(string(m), func(t *testing.T) { envoyCachedTokens(t, m) })
	}
}

func envoyCachedTokens(t *testing.T, m mode) {
	t.Helper()
	const talks, turns, capacity = 16, 5, 2000
	s := newStack(t, m, capacity)
	s.register(0)
	share := func(engines []*engine, send func(talk, turn int, msgs []message) (int, string, string, error)) float64 {
		rng := rand.New(rand.NewPCG(1, 2))
		said := make([][]message, talks)
		for turn := range turns {
			for _, i := range rng.Perm(talks) {
				if turn == 0 {
					said[i] = []message{{"system", strings.Repeat(fmt.Sprintf("You are assistant %d of many. ", i%5), 40)}}
				}
				said[i] = append(said[i], message{"user", strings.Repeat(fmt.Sprintf("Talk %d asks %d. ", i, turn), 40)})
				code, _, text, err := send(i, turn, said[i])
				if err != nil || code != 200 {
					t.Fatalf("talk %d, turn %d: %d %s %v", i, turn, code, text, err)
				}
				said[i] = append(said[i], message{"assistant", strings.Repeat("Talk is cheap. ", 20)})
			}
		}
		prompt, cached := 0, 0
		for _, e := range engines {
			_, p, c, _ := e.counts()
			prompt, cached = prompt+p, cached+c
		}
		return float64(cached) / float64(prompt)
	}
	ours := share(s.engines, func(talk, turn int, msgs []message) (int, string, string, error) {
		return whole(ask(t.Context(), s.url, msgs, (talk+turn)%2 == 0))
	})
	var plain []*engine
	for range s.engines {
		plain = append(plain, newEngine(t, capacity))
	}
	n := 0
	turnabout := share(plain, func(talk, turn int, msgs []message) (int, string, string, error) {
		n++
		return whole(ask(t.Context(), plain[n%len(plain)].URL, msgs, (talk+turn)%2 == 0))
	})
	t.Logf("cached: %.1f %% of all prompt tokens, round robin %.1f %%", 100*ours, 100*turnabout)
	if ours < turnabout+0.15 {
		t.Errorf("cached: %.1f %% of all prompt tokens, round robin %.1f %%: want 15 points more", 100*ours, 100*turnabout)
	}
	s.until("all bookings have ended", func() bool { return s.metric("kvoracle_bookings") == 0 })
	if got := s.metric("kvoracle_extproc_requests_total", `outcome="decided"`); got != talks*turns {
		t.Errorf("%v decisions, want %d", got, talks*turns)
	}
	// What engines counted has been heard, of all but those whose observer was late; in tokens as the length of a text
	// makes them.
	_, _, cached := sum(s.engines)
	if got := s.metric("kvoracle_cached_tokens_total", `source="counted"`); got < 0.85*float64(cached) || got > 1.15*float64(cached) {
		t.Errorf("%v cached tokens were heard of, engines counted %d", got, cached)
	}
	if got := s.metric("kvoracle_progress_events_total", `step="first_token"`, `outcome="applied"`); got < 0.8*talks*turns/2 {
		t.Errorf("%v first tokens were heard of, of %d", got, talks*turns/2)
	}
}

func sum(engines []*engine) (served, prompt, cached int) {
	for _, e := range engines {
		n, p, c, _ := e.counts()
		served, prompt, cached = served+n, prompt+p, cached+c
	}
	return served, prompt, cached
}

// traffic sends requests from so many clients until it is stopped, which tells how many there were and every failure.
func (s *stack) traffic(clients int) (stop func() (sent int, failures []string), sent *atomic.Int64) {
	ctx, cancel := context.WithCancel(s.t.Context())
	sent = new(atomic.Int64)
	var mu sync.Mutex
	var failures []string
	var wait sync.WaitGroup
	for c := range clients {
		wait.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				talk := []message{{"user", strings.Repeat(fmt.Sprintf("Client %d, request %d. ", c, n/4), 20)}}
				// Not ctx: a request that has begun is told to its end.
				code, _, text, err := whole(ask(s.t.Context(), s.url, talk, n%2 == 0))
				if err != nil || code != 200 || n%2 == 0 && !strings.HasSuffix(text, "[DONE]\n\n") {
					mu.Lock()
					failures = append(failures, fmt.Sprintf("client %d, request %d: %d %.200q %v", c, n, code, text, err))
					mu.Unlock()
				}
				sent.Add(1)
			}
		})
	}
	return func() (int, []string) {
		cancel()
		wait.Wait()
		return int(sent.Load()), failures
	}, sent
}

// more waits until so many more requests have been answered.
func (s *stack) more(sent *atomic.Int64, n int64) {
	s.t.Helper()
	from := sent.Load()
	s.until("requests are answered", func() bool { return sent.Load() >= from+n })
}

// TestEnvoyLog: though no stream of the picker's outlives its choice, each booking ends as its request does, and no sooner.
func TestEnvoyLog(t *testing.T) {
	t.Parallel()
	s := newStack(t, loggedMode, 2000)
	s.register(0)
	const good, bad, left = 20, 3, 4
	for i := range good {
		code, _, text, err := whole(ask(t.Context(), s.url, []message{{"user", strings.Repeat(fmt.Sprintf("talk %d ", i), 50)}}, i%2 == 0))
		if err != nil || code != 200 {
			t.Fatalf("%d %s %v", code, text, err)
		}
	}
	for range bad {
		if code, _, _, err := whole(post(t.Context(), s.url, strings.NewReader(`{"model":"m","messages":[],"max_tokens":"x"}`))); err != nil || code != 400 {
			t.Fatalf("%d %v, want the engine's 400", code, err)
		}
	}
	s.until("all have ended", func() bool { return s.metric("kvoracle_bookings") == 0 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.holdOn(ctx, left)
	held := s.hold(2) //nolint:bodyclose // hold does
	if got := s.metric("kvoracle_bookings"); got != 2+left {
		t.Errorf("%v are booked, want those %d under way", got, 2+left)
	}
	cancel()
	s.until("those who left are known to have", func() bool { return s.metric("kvoracle_bookings") == 2 })
	for _, e := range s.engines {
		close(e.release)
	}
	for _, resp := range held {
		if code, _, _, err := whole(resp, nil); err != nil || code != 200 {
			t.Errorf("one that was held: %d %v", code, err)
		}
	}
	s.until("all have ended", func() bool { return s.metric("kvoracle_bookings") == 0 })
	for step, want := range map[string]float64{"dispatched": good + bad + left + 2, "finished": good + 2, "cancelled": bad + left, "failed": 0} {
		s.becomes(want, step, "kvoracle_progress_events_total", `step="`+step+`"`, `outcome="applied"`)
	}
	for outcome, want := range map[string]float64{"ended": good + bad + left + 2, "lost": 0, "unknown": 0} {
		s.becomes(want, "entries were "+outcome, "kvoracle_accesslog_entries_total", `outcome="`+outcome+`"`)
	}
}

// TestEnvoyShadow: an Envoy that chooses by itself shows what it does, and what is booked is where it is, until it ends. Nobody notices
// whether kvoracle is there.
func TestEnvoyShadow(t *testing.T) {
	t.Parallel()
	s := newStack(t, shadowMode, 2000)
	s.register(0)
	const talks, turns = 8, 4
	said := make([][]message, talks)
	for turn := range turns {
		for i := range said {
			said[i] = append(said[i], message{"user", strings.Repeat(fmt.Sprintf("Talk %d asks %d. ", i, turn), 40)})
			code, _, text, err := whole(ask(t.Context(), s.url, said[i], (i+turn)%2 == 0))
			if err != nil || code != 200 {
				t.Fatalf("talk %d, turn %d: %d %s %v", i, turn, code, text, err)
			}
			said[i] = append(said[i], message{"assistant", "Indeed."})
		}
	}
	if code, _, _, err := whole(post(t.Context(), s.url, strings.NewReader("not JSON"))); err != nil || code != 400 {
		t.Errorf("no JSON: %d %v, want the engine's 400", code, err)
	}
	steps := func(step string) float64 {
		return s.metric("kvoracle_progress_events_total", `step="`+step+`"`, `outcome="applied"`)
	}
	s.until("all have ended", func() bool { return steps("finished") == talks*turns && s.metric("kvoracle_bookings") == 0 })
	for outcome, want := range map[string]float64{"decided": talks * turns, "unparsed": 1} {
		s.becomes(want, "were "+outcome, "kvoracle_extproc_requests_total", `outcome="`+outcome+`"`)
	}
	if got := steps("first_token"); got != talks*turns/2 {
		t.Errorf("%v first tokens were seen, want %d", got, talks*turns/2)
	}
	held := map[string]int{}
	for range 9 {
		resp, err := ask(t.Context(), s.url, []message{{"user", "all the same"}}, true, "X-Hold", "1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		held[resp.Header.Get("X-Engine")]++
	}
	s.until("each is booked where it is", func() bool {
		var fleet struct {
			Workers []struct {
				Spec  struct{ Address string }
				Ranks []struct {
					Booked int `json:"booked_requests"`
				}
			}
		}
		_, text := s.do(http.MethodGet, "http://"+s.http+"/v1/workers", "")
		if err := json.Unmarshal([]byte(text), &fleet); err != nil {
			t.Fatal(err)
		}
		booked := map[string]int{}
		for _, w := range fleet.Workers {
			if n := w.Ranks[0].Booked; n > 0 {
				booked[w.Spec.Address] = n
			}
		}
		return maps.Equal(held, booked)
	})
	s.killOracle(syscall.SIGKILL)
	for i := range 5 {
		if code, _, text, err := whole(ask(t.Context(), s.url, said[0], i%2 == 0)); err != nil || code != 200 {
			t.Errorf("without kvoracle: %d %s %v", code, text, err)
		}
	}
}

// TestEnvoyCanary: some sessions are sent where kvoracle says, and the others where Envoy does, which it is shown; each is booked once.
func TestEnvoyCanary(t *testing.T) {
	t.Parallel()
	s := newStack(t, canaryMode, 2000)
	s.register(0)
	const each, turns = 4, 3
	for turn := range turns {
		for i := range 2 * each {
			talk := []message{{"user", strings.Repeat(fmt.Sprintf("Talk %d. ", i), 40*(turn+1))}}
			session := fmt.Sprintf("%d-%c", i, "1f"[i%2])
			if code, _, text, err := whole(ask(t.Context(), s.url, talk, i%4 < 2, "X-Session-Id", session)); err != nil || code != 200 {
				t.Fatalf("talk %d, turn %d: %d %s %v", i, turn, code, text, err)
			}
		}
	}
	s.until("all have ended", func() bool {
		return s.metric("kvoracle_progress_events_total", `step="finished"`, `outcome="applied"`) == 2*each*turns && s.metric("kvoracle_bookings") == 0
	})
	if got := s.metric("kvoracle_extproc_requests_total", `outcome="decided"`); got != 2*each*turns {
		t.Errorf("%v were decided, want each of %d once", got, 2*each*turns)
	}
	// The access log, of which each of Envoy's threads sends its own, names those that kvoracle has chosen for.
	s.until("all were logged", func() bool { return s.metric("kvoracle_accesslog_entries_total") == 2*each*turns })
	if got := s.metric("kvoracle_accesslog_entries_total", `outcome="foreign"`); got != each*turns {
		t.Errorf("Envoy chose for %v, want half of them, %d", got, each*turns)
	}
	if got := s.metric("kvoracle_accesslog_entries_total", `outcome="ended"`) + s.metric("kvoracle_accesslog_entries_total", `outcome="unknown"`); got != each*turns {
		t.Errorf("kvoracle chose for %v, want half of them, %d", got, each*turns)
	}
}

// TestEnvoyOracleDies: nobody notices, neither the end nor the return. Where response bodies go through the oracle those
// under way are lost, which is why the configuration does not do that.
func TestEnvoyOracleDies(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]struct {
		listen string
		mode   mode
	}{
		"port":   {freePort(t), bufferedMode},
		"socket": {"unix:" + filepath.Join(t.TempDir(), "grpc.sock"), bufferedMode}, // which the dead leave behind
		"authz":  {freePort(t), authzMode},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStackAt(t, way.listen, 2000)
			s.startEnvoy(way.mode)
			s.register(0)
			stop, sent := s.traffic(8)
			s.more(sent, 100)
			if s.metric("kvoracle_extproc_requests_total", `outcome="decided"`) < 90 {
				t.Error("requests were not decided from the start")
			}
			s.killOracle(syscall.SIGKILL)
			s.more(sent, 200)
			s.startOracle(s.grpc)
			s.register(0)
			s.until("decisions are made again", func() bool { return s.metric("kvoracle_extproc_requests_total", `outcome="decided"`) > 50 })
			n, failures := stop()
			if len(failures) > 0 {
				t.Errorf("%d of %d requests failed, such as %s", len(failures), n, failures[0])
			}
		})
	}
}

// TestEnvoyOracleHangs: of a kvoracle that is there and says nothing each request waits for message_timeout and no longer, until its
// health check tells; and when it goes on nothing is left booked.
func TestEnvoyOracleHangs(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{bufferedMode, authzMode} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			oracleHangs(t, m)
		})
	}
}

func oracleHangs(t *testing.T, m mode) {
	t.Helper()
	s := newBareStack(t, 2000, "--lease=5s") // which ends what was chosen at the very moment when Envoy left
	s.patience = "1s"
	s.startEnvoy(m)
	s.register(0)
	once := func() time.Duration {
		t.Helper()
		from := time.Now()
		if code, _, text, err := whole(ask(t.Context(), s.url, []message{{"user", "hello"}}, false)); err != nil || code != 200 {
			t.Errorf("%d %s %v", code, text, err)
		}
		return time.Since(from)
	}
	decided := func() float64 { return s.metric("kvoracle_extproc_requests_total", `outcome="decided"`) }
	decides := func() {
		t.Helper()
		before := decided()
		s.until("it decides", func() bool {
			once()
			return decided() > before
		})
	}
	signal := func(which syscall.Signal) {
		t.Helper()
		if err := s.oracle.Process.Signal(which); err != nil {
			t.Fatal(err)
		}
	}
	var first time.Duration
	for range 10 { // on a busy machine it may look ill before, and is not asked
		decides()
		signal(syscall.SIGSTOP)
		if first = once(); first >= time.Second/2 {
			break
		}
		signal(syscall.SIGCONT)
	}
	s.until("it is not asked any more", func() bool { return once() < time.Second/2 })
	signal(syscall.SIGCONT)
	if first < time.Second/2 || first > 30*time.Second { // it is asked, and given up; Envoy's clock is a coarse one
		t.Errorf("the first request without an answer took %v, want about the second that kvoracle is given", first)
	}
	decides()
	s.until("nothing is left booked", func() bool { return s.metric("kvoracle_bookings") == 0 })
}

// TestEnvoyOracleDrains: an orderly end harms no answer that is under way, though bodies go through it.
func TestEnvoyOracleDrains(t *testing.T) {
	both(t, func(t *testing.T, m mode) {
		s := newStack(t, m, 2000, "--drain-timeout=60s")
		s.register(0)
		held := s.hold(6) //nolint:bodyclose // hold does
		if err := s.oracle.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		s.until("it drains", func() bool { return strings.Contains(s.stderr.String(), "msg=draining") })
		for _, e := range s.engines {
			close(e.release)
		}
		for i, resp := range held {
			if code, _, text, err := whole(resp, nil); err != nil || code != 200 || !strings.HasSuffix(text, "[DONE]\n\n") {
				t.Errorf("answer %d: %d %.200q %v", i, code, text, err)
			}
		}
		<-s.exited
		if code := s.oracle.ProcessState.ExitCode(); code != 0 || strings.Contains(s.stderr.String(), "calls are cut") {
			t.Errorf("it ended with code %d, want an orderly 0", code)
		}
		if m != duplexMode {
			if code, _, text, err := whole(ask(t.Context(), s.url, []message{{"user", "hello"}}, false)); err != nil || code != 200 {
				t.Errorf("afterwards: %d %s %v", code, text, err)
			}
		}
	})
}

// TestEnvoyWorkerDies: requests go to the second choice.
func TestEnvoyWorkerDies(t *testing.T) {
	both(t, func(t *testing.T, m mode) {
		s := newStack(t, m, 2000)
		s.register(0)
		// A conversation that only one of them knows.
		talk := []message{{"user", strings.Repeat("A long beginning. ", 200)}}
		_, first, _, err := whole(ask(t.Context(), s.url, talk, false))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(s.engines, func(e *engine) bool { return e.address == first })
		if i < 0 {
			t.Fatalf("served by %q", first)
		}
		s.until("it is known to be there", func() bool {
			_, again, _, err := whole(ask(t.Context(), s.url, talk, false))
			return err == nil && again == first
		})
		s.engines[i].die()
		for range 5 {
			code, other, text, err := whole(ask(t.Context(), s.url, talk, true))
			if err != nil || code != 200 || other == first {
				t.Fatalf("after its end: %d by %q %s %v", code, other, text, err)
			}
		}
		s.until("all bookings have ended", func() bool { return s.metric("kvoracle_bookings") == 0 })
	})
}

// TestEnvoyWorkerDrains: nothing new goes there, and what is there ends well.
func TestEnvoyWorkerDrains(t *testing.T) {
	both(t, func(t *testing.T, m mode) {
		s := newStack(t, m, 2000)
		s.register(0)
		talk := []message{{"user", strings.Repeat("A long beginning. ", 200)}}
		held, err := ask(t.Context(), s.url, talk, true, "X-Hold", "1")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(s.engines, func(e *engine) bool { return e.address == held.Header.Get("X-Engine") })
		if code, text := s.do(http.MethodPost, fmt.Sprintf("http://%s/v1/workers/w%d/drain", s.http, i), "{}"); code != 200 {
			t.Fatalf("drain: %d %s", code, text)
		}
		before, _, _, _ := s.engines[i].counts()
		for range 20 {
			code, engine, text, err := whole(ask(t.Context(), s.url, talk, false))
			if err != nil || code != 200 || engine == s.engines[i].address {
				t.Fatalf("while it drains: %d by %q %s %v", code, engine, text, err)
			}
		}
		if after, _, _, _ := s.engines[i].counts(); after != before {
			t.Errorf("it was sent %d requests", after-before)
		}
		close(s.engines[i].release)
		if code, _, text, err := whole(held, nil); err != nil || code != 200 || !strings.HasSuffix(text, "[DONE]\n\n") {
			t.Errorf("what was under way: %d %.200q %v", code, text, err)
		}
	})
}

// hold begins so many answers, which the engines keep open until they are released.
func (s *stack) hold(n int) []*http.Response {
	s.t.Helper()
	var out []*http.Response
	for i := range n {
		resp, err := ask(s.t.Context(), s.url, []message{{"user", fmt.Sprintf("client %d", i)}}, true, "X-Hold", "1")
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = resp.Body.Close() })
		if resp.StatusCode != http.StatusOK {
			s.t.Fatalf("answer %d: %s", i, resp.Status)
		}
		out = append(out, resp) //nolint:bodyclose // at the test's end
	}
	return out
}

// TestEnvoySheds: with every worker at its limit a client is told to come again, and is welcome when it does.
func TestEnvoySheds(t *testing.T) {
	both(t, func(t *testing.T, m mode) {
		s := newStack(t, m, 2000)
		s.register(1)
		talk := []message{{"user", "hello"}}
		held := s.hold(len(s.engines)) //nolint:bodyclose // hold does
		resp, err := ask(t.Context(), s.url, talk, false)
		if err == nil && resp.Header.Get("Retry-After") == "" {
			t.Error("429 without a time to come again")
		}
		if code, _, text, err := whole(resp, err); err != nil || code != 429 || !strings.Contains(text, `"code":429`) {
			t.Errorf("at the limit: %d %s %v", code, text, err)
		}
		for _, e := range s.engines {
			close(e.release)
		}
		for _, r := range held {
			if code, _, _, err := whole(r, nil); code != 200 || err != nil {
				t.Errorf("one that was let in: %d %v", code, err)
			}
		}
		s.until("there is room again", func() bool {
			code, _, _, err := whole(ask(t.Context(), s.url, talk, false))
			return err == nil && code == 200
		})
		// Nobody at all is another matter.
		for i := range s.engines {
			s.do(http.MethodPost, fmt.Sprintf("http://%s/v1/workers/w%d/drain", s.http, i), "{}")
		}
		want := 503
		if m == authzMode {
			want = 429 // to this filter 503 is a picker that is ill
		}
		if code, _, text, err := whole(ask(t.Context(), s.url, talk, false)); err != nil || code != want || !strings.Contains(text, "no worker can take this request") {
			t.Errorf("all drained: %d %s %v", code, text, err)
		}
	})
}

// TestEnvoyBodies: large ones, slow ones, senseless ones, and none.
func TestEnvoyBodies(t *testing.T) {
	both(t, func(t *testing.T, m mode) {
		s := newStack(t, m, 200_000, "--ext-proc-max-body=3000000", "--ext-proc-body-timeout=10s")
		s.register(0)
		for _, e := range s.engines {
			e.perToken /= 50 // or 2 MiB take ten seconds
		}
		large := []message{{"user", strings.Repeat("0123456789abcdef", 1<<17)}} // 2 MiB
		var last string
		for turn := range 3 {
			code, engine, text, err := whole(ask(t.Context(), s.url, large, false))
			if err != nil || code != 200 {
				t.Fatalf("2 MiB: %d %.200s %v", code, text, err)
			}
			if turn > 0 && engine != last {
				t.Errorf("2 MiB went to %s, and then to %s", last, engine)
			}
			last = engine
		}
		huge := []message{{"user", strings.Repeat("0123456789abcdef", 1<<18)}} // 4 MiB
		if code, _, _, err := whole(ask(t.Context(), s.url, huge, false)); err != nil || code != 413 {
			t.Errorf("4 MiB: %d %v, want 413", code, err)
		}
		if code, _, _, err := whole(post(t.Context(), s.url, strings.NewReader("not JSON"))); err != nil || code != 400 {
			t.Errorf("no JSON: %d %v, want the engine's 400", code, err)
		}
		unknown := strings.NewReader(`{"model":"other","messages":[{"role":"user","content":"x"}],"max_tokens":1}`)
		if code, _, _, err := whole(post(t.Context(), s.url, unknown)); err != nil || code != 200 {
			t.Errorf("a model that nobody has registered: %d %v", code, err)
		}
		for range 6 {
			if code, text := s.do(http.MethodGet, s.url+"/v1/models", ""); code != 200 || !strings.Contains(text, `"m"`) {
				t.Errorf("models: %d %s", code, text)
			}
		}
		asked := 6.0
		if m == bufferedMode { // Envoy asks about bodies only
			asked = 0
		}
		if got := s.metric("kvoracle_extproc_requests_total", `outcome="in_turn"`); got != asked {
			t.Errorf("%v requests without a prompt were counted, want %v", got, asked)
		}

		// A body that comes in three pieces: each is sent when the one before it is known to have gone.
		body, in := io.Pipe()
		go func() {
			for _, piece := range []string{`{"model":"m","max_tokens":1,"messages":[{"role":`, `"user","content":"hel`, `lo"}]}`} {
				_, _ = io.WriteString(in, piece)
				<-time.After(50 * time.Millisecond)
			}
			_ = in.Close()
		}()
		if code, _, text, err := whole(post(t.Context(), s.url, body)); err != nil || code != 200 {
			t.Errorf("a slow body: %d %s %v", code, text, err)
		}
		if m != duplexMode {
			return // Envoy waits for the whole body itself
		}
		late := func() float64 { return s.metric("kvoracle_extproc_requests_total", `outcome="late"`) }
		body, in = io.Pipe()
		go func() {
			_, _ = io.WriteString(in, `{"model":"m","max_tokens":1,"messages":[{"role":`)
			for late() == 0 && t.Context().Err() == nil {
				<-time.After(50 * time.Millisecond)
			}
			_, _ = io.WriteString(in, `"user","content":"hello"}]}`)
			_ = in.Close()
		}()
		if code, _, text, err := whole(post(t.Context(), s.url, body)); err != nil || code != 200 || late() != 1 {
			t.Errorf("a body beyond the limit of time: %d %s %v, %v late", code, text, err, late())
		}
	})
}

// TestEnvoyClientsLeave: their bookings go with them, whatever they were waiting for.
func TestEnvoyClientsLeave(t *testing.T) {
	both(t, func(t *testing.T, m mode) {
		s := newStack(t, m, 2000)
		s.register(0)
		const clients = 12
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.holdOn(ctx, clients)
		cancel()
		s.until("engines have noticed", func() bool {
			n := 0
			for _, e := range s.engines {
				_, _, _, gone := e.counts()
				n += gone
			}
			return n == clients
		})
		s.until("all bookings have ended", func() bool { return s.metric("kvoracle_bookings") == 0 })
		s.becomes(clients, "were cancelled", "kvoracle_progress_events_total", `step="cancelled"`, `outcome="applied"`)
		if m != duplexMode {
			return // nothing is asked before a body is complete
		}
		// One that leaves before its body is complete has booked nothing. With luck kvoracle has heard of it by then.
		s.until("one is counted as abandoned", func() bool {
			ctx, cancel := context.WithCancel(t.Context())
			body, in := io.Pipe()
			sent := make(chan error, 1)
			go func() {
				_, _, _, err := whole(post(ctx, s.url, body))
				sent <- err
			}()
			if _, err := io.WriteString(in, `{"model":"m","messages":[`); err != nil {
				t.Fatal(err)
			}
			<-time.After(100 * time.Millisecond)
			cancel()
			_ = in.CloseWithError(io.ErrUnexpectedEOF) // what reads it waits for more, context or not
			if err := <-sent; err == nil {
				t.Error("a request that was given up was answered")
			}
			return s.metric("kvoracle_extproc_requests_total", `outcome="abandoned"`) >= 1
		})
		if got := s.metric("kvoracle_bookings"); got != 0 {
			t.Errorf("%v bookings are left", got)
		}
	})
}
