package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kvoracle/kvoracle/bench/child"
)

//go:embed envoy.yaml
var config string

//go:embed way.yaml
var wayConfig string

//go:embed authz.yaml
var authzConfig string

// The ways through Envoy.
const (
	plain             = "plain"                 // no picker
	atOnce            = "trivial"               // the trivial picker
	atOnceSocket      = "trivial-socket"        // the same, on a Unix socket
	picked            = "kvoracle"              // kvoracle
	pickedSocket      = "kvoracle-socket"       // the same, on a Unix socket
	atOnceAuthz       = "trivial-authz"         // the trivial picker, asked by ext_authz over HTTP
	pickedAuthz       = "kvoracle-authz"        // kvoracle, asked so
	pickedAuthzSocket = "kvoracle-authz-socket" // the same, on a Unix socket
	observed          = "observed"              // kvoracle and its observer
	duplex            = "duplex"                // kvoracle, which the body goes through
	oracle2, oracle   = 1, 0                    // the kvoracle on the sockets, and the other
)

// ways lists those that are timed.
func ways() []string {
	return []string{plain, atOnce, picked, atOnceSocket, pickedSocket, atOnceAuthz, pickedAuthz, pickedAuthzSocket, observed}
}

// pickers lists those of way.yaml, which are clusters of Envoy by the same names.
func pickers() []string { return []string{atOnce, picked, atOnceSocket, pickedSocket} }

// authzs lists those of authz.yaml, with the clusters that take their access logs.
func authzs() map[string]string {
	return map[string]string{atOnceAuthz: atOnce, pickedAuthz: picked, pickedAuthzSocket: pickedSocket}
}

// stack is Envoy, the pickers and a worker.
type stack struct {
	urls map[string]string // of the ways
	ops  [2]string         // of both kvoracles

	dir     string
	oracles [2]*exec.Cmd
	trivial *child.Process
	envoy   *exec.Cmd
	worker  *http.Server

	held    chan struct{} // one for each request that the worker holds
	release chan struct{} // closed: it lets them go
}

func newStack(envoy, binary string, size int) (*stack, error) {
	s := &stack{held: make(chan struct{}, 1<<16), release: make(chan struct{})}
	var err error
	if s.dir, err = os.MkdirTemp("", "envoybench-"); err != nil {
		return nil, err
	}
	if err := s.start(envoy, binary, size); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *stack) start(envoy, binary string, size int) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.worker = &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.worker.Serve(lis) }()

	worker := lis.Addr().String()
	if s.trivial, err = child.Start("-trivial", s.dir, "-worker", worker, "-body", strconv.Itoa(size)); err != nil {
		return err
	}
	trivial, err := s.trivial.Line()
	if err != nil {
		return fmt.Errorf("the trivial picker: %w", err)
	}
	trivialWeb, err := s.trivial.Line()
	if err != nil {
		return fmt.Errorf("the trivial picker: %w", err)
	}
	at, web, err := s.startOracle(binary, oracle, "127.0.0.1:0", "127.0.0.1:0", worker)
	if err != nil {
		return err
	}
	if _, _, err := s.startOracle(binary, oracle2, "unix:"+filepath.Join(s.dir, "kvoracle"), "unix:"+filepath.Join(s.dir, "kvoracle-web"), worker); err != nil {
		return err
	}
	return s.startEnvoy(envoy, map[string]string{"ORACLE": at, "ORACLEWEB": web, "TRIVIAL": trivial, "TRIVIALWEB": trivialWeb, "WORKER": worker})
}

// startOracle starts a kvoracle that knows the worker, and says where it serves gRPC and HTTP.
func (s *stack) startOracle(binary string, i int, listen, httpListen, worker string) (at, web string, err error) {
	ops, err := free()
	if err != nil {
		return "", "", err
	}
	s.ops[i] = "http://" + ops
	cmd := exec.Command(binary, "--listen="+listen, "--http-listen="+httpListen, "--ops-listen="+ops, "--log-level=error")
	s.oracles[i] = cmd
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", "", err
	}
	if err := cmd.Start(); err != nil {
		return "", "", err
	}
	lines := bufio.NewScanner(out)
	address := func(prefix string) (string, error) {
		for lines.Scan() {
			if a, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				return a, nil
			}
		}
		return "", errors.New("kvoracle did not say " + prefix)
	}
	at, err = address("kvoracle: serving on ")
	if err != nil {
		return "", "", err
	}
	web, err = address("kvoracle: serving HTTP on ")
	if err != nil {
		return "", "", err
	}
	spec := fmt.Sprintf(`{"spec":{"worker_id":"w","address":"%s","model":"m","block_size":16}}`, worker)
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		if path, ok := strings.CutPrefix(web, "unix:"); ok {
			return net.Dial("unix", path)
		}
		return net.Dial("tcp", web)
	}}}
	resp, err := c.Post("http://kvoracle/v1/workers", "application/json", strings.NewReader(spec))
	if err != nil {
		return "", "", err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", "", fmt.Errorf("register: %s", resp.Status)
	}
	return at, web, nil
}

// startEnvoy starts Envoy; ports has the addresses that are known.
func (s *stack) startEnvoy(binary string, ports map[string]string) error {
	s.urls = make(map[string]string)
	for _, name := range append(ways(), duplex, "admin") {
		a, err := free()
		if err != nil {
			return err
		}
		ports[strings.ToUpper(name)+"_WAY"] = a
		s.urls[name] = "http://" + a
	}
	var all strings.Builder
	for _, name := range pickers() {
		all.WriteString(strings.NewReplacer("WAY", name, "PORT", strings.ToUpper(name)+"_WAY", "CLUSTER", name).Replace(wayConfig))
	}
	for name, logs := range authzs() {
		all.WriteString(strings.NewReplacer("WAY", name, "PORT", strings.ToUpper(name)+"_WAY", "CLUSTER", name, "LOGS", logs).Replace(authzConfig))
	}
	text := strings.NewReplacer("# WAYS\n", all.String(), "SOCKETS", s.dir).Replace(config)
	for name, a := range ports {
		_, port, _ := net.SplitHostPort(a)
		text = strings.ReplaceAll(text, "port_value: "+name+"}", "port_value: "+port+"}")
	}
	file := filepath.Join(s.dir, "envoy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	// A thousand requests take more files than many shells allow.
	s.envoy = exec.Command("sh", "-c", `ulimit -n "$(ulimit -H -n)"; exec "$@"`, "sh", binary, "-c", file, "--concurrency", "1",
		"--log-level", "error", "--disable-hot-restart")
	s.envoy.Stderr = os.Stderr
	if err := s.envoy.Start(); err != nil {
		return err
	}
	for range 300 {
		resp, err := http.Get(s.urls["admin"] + "/ready")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("envoy does not become ready")
}

// serve is the worker: it answers at once, or holds a request until it is told.
func (s *stack) serve(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if r.Header.Get("X-Hold") != "" {
		s.held <- struct{}{}
		<-s.release
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"usage": map[string]int{"prompt_tokens": 2000, "completion_tokens": 1}})
}

// free is an address that was free a moment ago.
func free() (string, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = lis.Close() }()
	return lis.Addr().String(), nil
}

// decided is how many requests a kvoracle has decided.
func (s *stack) decided(i int) (float64, error) {
	resp, err := http.Get(s.ops[i] + "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), `kvoracle_extproc_requests_total{outcome="decided"} `); ok {
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, errors.New("no request was decided")
}

// used is the processor time of Envoy and of a way's picker, in seconds.
func (s *stack) used(way string) (envoy, picker float64) {
	switch way {
	case atOnce, atOnceSocket, atOnceAuthz:
		picker = s.trivial.CPU()
	case picked, pickedAuthz, observed:
		picker = child.CPUOf(s.oracles[oracle].Process.Pid)
	case pickedSocket, pickedAuthzSocket:
		picker = child.CPUOf(s.oracles[oracle2].Process.Pid)
	}
	return child.CPUOf(s.envoy.Process.Pid), picker
}

// memory is kvoracle's resident memory now and at its peak, in MiB.
func (s *stack) memory() (now, peak float64) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.oracles[oracle].Process.Pid))
	for line := range strings.SplitSeq(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		v, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "VmRSS:":
			now = v / 1024
		case "VmHWM:":
			peak = v / 1024
		}
	}
	return now, peak
}

func (s *stack) stop() {
	if s.trivial != nil {
		s.trivial.Stop()
	}
	for _, cmd := range []*exec.Cmd{s.envoy, s.oracles[oracle], s.oracles[oracle2]} {
		if cmd != nil && cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	if s.worker != nil {
		_ = s.worker.Close()
	}
	_ = os.RemoveAll(s.dir)
}
