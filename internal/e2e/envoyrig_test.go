//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stack is a proxy with a kvoracle and some engines behind it.
type stack struct {
	t       *testing.T
	engines []*engine
	workers []string // addresses of the engines, or of others
	url     string   // of what stands in front

	patience string // of Envoy with kvoracle; a minute, since this machine may be busy with something else

	oracle     *exec.Cmd
	args       []string
	grpc, http string // of the oracle
	ops        string
	exited     chan struct{}
	stderr     lockedBuffer
}

// mode is how Envoy hands bodies over.
type mode string

const (
	bufferedMode mode = "buffered" // deploy/envoy/envoy.yaml as it is
	loggedMode   mode = "logged"   // the same without its observer: the access log alone tells of responses
	authzMode    mode = "authz"    // deploy/envoy/authz.yaml in the place of its picker
	duplexMode   mode = "duplex"   // as gateways of the inference extension do, both ways
	shadowMode   mode = "shadow"   // deploy/envoy/shadow.yaml before an Envoy that chooses by itself
	canaryMode   mode = "canary"   // both, by deploy/envoy/canary.yaml
)

// newStack starts engines with caches of so many blocks, the oracle and Envoy.
func newStack(t *testing.T, m mode, capacity int, args ...string) *stack {
	t.Helper()
	s := newBareStack(t, capacity, args...)
	s.startEnvoy(m)
	return s
}

// newBareStack is a stack without anything in front.
func newBareStack(t *testing.T, capacity int, args ...string) *stack {
	t.Helper()
	return newStackAt(t, freePort(t), capacity, args...)
}

// newStackAt is newBareStack with an oracle that listens at an address.
func newStackAt(t *testing.T, listen string, capacity int, args ...string) *stack {
	t.Helper()
	s := &stack{t: t, patience: "60s"}
	for range 3 {
		e := newEngine(t, capacity)
		s.engines, s.workers = append(s.engines, e), append(s.workers, e.address)
	}
	s.ops = freePort(t)
	s.args = append([]string{"--http-listen=" + freePort(t), "--ops-listen=" + s.ops}, args...)
	s.startOracle(listen)
	t.Cleanup(func() {
		s.killOracle(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("kvoracle's stderr:\n%s", s.stderr.String())
		}
	})
	return s
}

// ports were given out to some test. None is given to two: it may be taken half a minute later only, or be left for a while by a
// server that is away.
var ports struct {
	mu    sync.Mutex
	given map[int]bool
}

// portNumber is a port that was free a moment ago, among those that the system gives to nobody by itself: no connection has one,
// and it stays free while its server is away.
func portNumber(t *testing.T) int {
	t.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	for range 1000 {
		port := 10_000 + rand.IntN(22_000)
		if ports.given[port] {
			continue
		}
		lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		_ = lis.Close() // it was only asked whether it is free
		if ports.given == nil {
			ports.given = make(map[int]bool)
		}
		ports.given[port] = true
		return port
	}
	t.Fatal("no port is free")
	return 0
}

// freePort is a portNumber's address.
func freePort(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", portNumber(t))
}

func (s *stack) startOracle(listen string) {
	s.t.Helper()
	bin := build(s.t, "server/cmd/kvoracle")
	s.oracle = exec.Command(bin, append([]string{"--listen=" + listen}, s.args...)...) //nolint:noctx // it is killed by hand
	out := newLineFinder(servingPrefix, servingHTTPPrefix)
	s.oracle.Stdout, s.oracle.Stderr = out, &s.stderr
	if err := s.oracle.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait()
		close(exited)
	}(s.oracle, s.exited)
	select {
	case lines := <-out.found:
		s.grpc, s.http = lines[0], lines[1]
	case <-s.exited:
		s.t.Fatalf("kvoracle ended before it served: %s", s.stderr.String())
	case <-time.After(startTimeout):
		s.t.Fatal("kvoracle does not serve")
	}
}

// killOracle ends it and waits until it has.
func (s *stack) killOracle(signal syscall.Signal) {
	_ = s.oracle.Process.Signal(signal) // it may be gone
	<-s.exited
}

// register makes all engines known.
func (s *stack) register(maxRequests int) {
	s.t.Helper()
	for i := range s.engines {
		s.registerOne(i, maxRequests)
	}
}

func (s *stack) registerOne(i, maxRequests int) {
	s.t.Helper()
	body := fmt.Sprintf(`{"spec":{"worker_id":"w%d","address":%q,"model":"m","block_size":%d,"max_requests":%d}}`,
		i, s.engines[i].address, tokensPerBlock, maxRequests)
	if code, answer := s.do(http.MethodPost, "http://"+s.http+"/v1/workers", body); code != 200 {
		s.t.Fatalf("register: %d %s", code, answer)
	}
}

func (s *stack) do(method, url, body string) (code int, answer string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// metric is the sum of a metric's values whose labels have all these words.
func (s *stack) metric(name string, words ...string) float64 {
	s.t.Helper()
	code, page := s.do(http.MethodGet, "http://"+s.ops+"/metrics", "")
	if code != 200 {
		return -1
	}
	sum := 0.0
lines:
	for line := range strings.SplitSeq(page, "\n") {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, w := range words {
			if !strings.Contains(rest, w) {
				continue lines
			}
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		sum += v
	}
	return sum
}

// becomes waits until a metric is what it should be: what is counted is counted a moment after it was done.
func (s *stack) becomes(want float64, what, name string, words ...string) {
	s.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for got := s.metric(name, words...); got != want; got = s.metric(name, words...) {
		if time.Now().After(deadline) {
			s.t.Errorf("%v %s, want %v", got, what, want)
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

// until waits for something to come true.
func (s *stack) until(what string, isSo func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !isSo() {
		if time.Now().After(deadline) {
			s.t.Fatalf("in vain: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// startEnvoy starts the release binary with deploy/envoy/envoy.yaml, its ports replaced by those of the test.
func (s *stack) startEnvoy(m mode) {
	s.t.Helper()
	python := os.Getenv(pythonEnv)
	if python == "" {
		s.t.Fatalf("%s is not set: run this test by `make e2e`", pythonEnv)
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "envoy", "envoy.yaml"))
	if err != nil {
		s.t.Fatal(err)
	}
	config := string(text)
	port := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	replace := func(old, by string) {
		if !strings.Contains(config, old) {
			s.t.Fatalf("the configuration has no %q", old)
		}
		config = strings.Replace(config, old, by, 1)
	}
	replace("port_value: 9901", "port_value: 0")
	replace("port_value: 8080", "port_value: 0")
	oracle := s.grpc // as Envoy names it
	if path, isUnix := strings.CutPrefix(s.grpc, "unix:"); isUnix {
		oracle = path
		replace("{socket_address: {address: 127.0.0.1, port_value: 7070}}", "{pipe: {path: "+path+"}}")
	} else {
		replace("port_value: 7070", "port_value: "+port(s.grpc))
	}
	for i := range 3 {
		if i < len(s.workers) {
			replace("port_value: 800"+strconv.Itoa(i+1), "port_value: "+port(s.workers[i]))
		} else {
			replace("        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 800"+strconv.Itoa(i+1)+"}}}\n", "")
		}
	}
	replace("message_timeout: 0.1s ", "message_timeout: "+s.patience+" ")
	replace("    connect_timeout: 0.1s", "    connect_timeout: 60s")
	if s.patience == "60s" { // nor does kvoracle look ill for being slow; one that is dead refuses a connection
		replace("    - timeout: 0.5s", "    - timeout: 60s")
	}
	cut := func(from, to string) {
		i := strings.Index(config, from)
		j := strings.Index(config, to)
		if i < 0 || j < i {
			s.t.Fatalf("the configuration has no %q before %q", from, to)
		}
		config = config[:i] + config[j:]
	}
	if m == loggedMode || m == duplexMode || m == shadowMode {
		cut("          # The observer", "          - name: envoy.filters.http.router")
	}
	fragment := func(name, indent string) string {
		b, err := os.ReadFile(filepath.Join("..", "..", "deploy", "envoy", name))
		if err != nil {
			s.t.Fatal(err)
		}
		return regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(string(b), indent+"$1")
	}
	switch m {
	case canaryMode:
		replace("          # The picker", fragment("shadow.yaml", "          ")+"          # The picker")
		cut("              - match: {prefix: /}", "          http_filters:")
		replace("          http_filters:", fragment("canary.yaml", "              ")+"          http_filters:")
	case shadowMode:
		cut("          # Tells kvoracle how each", "          route_config:")
		cut("          # The picker", "          - name: envoy.filters.http.router")
		replace("          - name: envoy.filters.http.router", fragment("shadow.yaml", "          ")+"          - name: envoy.filters.http.router")
		cut("    load_balancing_policy:", "    load_assignment:\n      cluster_name: workers")
	case authzMode:
		filters, clusters, ok := strings.Cut(fragment("authz.yaml", ""), "\nclusters:\n")
		_, filters, hasFilters := strings.Cut(filters, "http_filters:\n")
		if !ok || !hasFilters {
			s.t.Fatal("authz.yaml has no filters and clusters")
		}
		indented := func(text, by string) string { return regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(text, by+"$1") }
		cut("          # The picker", "          # The observer")
		replace("          # The observer", indented(filters, "          ")+"          # The observer")
		replace("  - name: workers", indented(clusters, "  ")+"  - name: workers")
		replace("timeout: 0.1s}", "timeout: "+s.patience+"}")
		replace("    connect_timeout: 0.1s", "    connect_timeout: 60s")
		if s.patience == "60s" {
			replace("    - timeout: 0.5s", "    - timeout: 60s")
		}
		replace("port_value: 7072", "port_value: "+port(s.http))
		replace("port_value: 7071", "port_value: "+port(s.ops))
	case bufferedMode, loggedMode, duplexMode:
	}
	if m == duplexMode { // all of it by the request's own stream
		cut("          # Tells kvoracle how each", "          route_config:")
		cut("                initial_metadata:", "              failure_mode_allow: true # without")
		cut("              request_attributes:", "              metadata_options:")
		cut("          # Holds the headers back", "          - name: envoy.filters.http.router")
		replace("request_header_mode: SKIP", "request_header_mode: SEND")
		replace("response_header_mode: SKIP", "response_header_mode: SEND")
		for _, x := range []string{"request", "response"} {
			config = regexp.MustCompile(x+`_body_mode: (BUFFERED|NONE)`).ReplaceAllString(config, x+"_body_mode: FULL_DUPLEX_STREAMED")
			replace(x+"_trailer_mode: SKIP", x+"_trailer_mode: SEND")
		}
	}
	dir := s.t.TempDir()
	file, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(filepath.Dir(python), "envoy"), "-c", file, //nolint:noctx // it outlives the test's context
		"--admin-address-path", admin, "--concurrency", "2", "--log-level", "warn", "--disable-hot-restart")
	var log lockedBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if s.t.Failed() {
			s.t.Logf("Envoy's log:\n%s", log.String())
		}
	})
	at := ""
	s.until("Envoy says where its pages are", func() bool {
		b, err := os.ReadFile(admin)
		at = string(b)
		return err == nil && at != ""
	})
	s.until("Envoy serves and has found kvoracle well", func() bool {
		code, page := s.do(http.MethodGet, "http://"+at+"/clusters", "")
		return code == 200 && strings.Contains(page, "kvoracle::"+oracle+"::health_flags::healthy") &&
			(m != authzMode || strings.Contains(page, "kvoracle-http::"+s.http+"::health_flags::healthy"))
	})
	s.until("Envoy listens", func() bool {
		var page struct {
			Listeners []struct {
				Address struct {
					Socket struct {
						Port int `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		_, text := s.do(http.MethodGet, "http://"+at+"/listeners?format=json", "")
		if json.Unmarshal([]byte(text), &page) != nil || len(page.Listeners) == 0 || page.Listeners[0].Address.Socket.Port == 0 {
			return false
		}
		s.url = fmt.Sprintf("http://127.0.0.1:%d", page.Listeners[0].Address.Socket.Port)
		return true
	})
}

// lockedBuffer is a process's output.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String gives what was written.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// message is one of a conversation.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ask is one chat request to a base URL.
func ask(ctx context.Context, url string, talk []message, isStream bool, header ...string) (*http.Response, error) {
	body, err := json.Marshal(map[string]any{"model": "m", "messages": talk, "stream": isStream, "max_tokens": 4})
	if err != nil {
		return nil, err
	}
	return post(ctx, url, bytes.NewReader(body), header...)
}

func post(ctx context.Context, url string, body io.Reader, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return http.DefaultClient.Do(req)
}

// whole reads an answer to its end.
func whole(resp *http.Response, err error) (code int, engine, text string, _ error) {
	if err != nil {
		return 0, "", "", err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header.Get("X-Engine"), string(b), err
}

// holdOn begins so many answers that are not to end, and waits for each to begin. They end with ctx.
func (s *stack) holdOn(ctx context.Context, clients int) {
	s.t.Helper()
	for i := range clients {
		resp, err := ask(ctx, s.url, []message{{"user", fmt.Sprintf("client %d", i)}}, true, "X-Hold", "1")
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = resp.Body.Close() })
		// Its first token comes at once, though the answer is far from its end.
		if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
			s.t.Fatal(err)
		}
	}
	if got := s.metric("kvoracle_bookings"); got != float64(clients) {
		s.t.Errorf("%v bookings for %d clients", got, clients)
	}
}
