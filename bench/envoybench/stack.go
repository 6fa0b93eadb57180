package main

import (
	"bufio"
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
)

//go:embed envoy.yaml
var config string

// stack is Envoy, kvoracle and a worker.
type stack struct {
	plain, picked, observed, duplex string // URLs of the ways through Envoy
	ops                             string // of kvoracle

	dir    string
	oracle *exec.Cmd
	envoy  *exec.Cmd
	worker *http.Server

	held    chan struct{} // one for each request that the worker holds
	release chan struct{} // closed: it lets them go
}

func newStack(envoy, oracle string) (*stack, error) {
	s := &stack{held: make(chan struct{}, 1<<16), release: make(chan struct{})}
	var err error
	if s.dir, err = os.MkdirTemp("", "envoybench-"); err != nil {
		return nil, err
	}
	if err := s.start(envoy, oracle); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *stack) start(envoy, oracle string) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.worker = &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.worker.Serve(lis) }()

	ops, err := free()
	if err != nil {
		return err
	}
	s.ops = "http://" + ops
	s.oracle = exec.Command(oracle, "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--ops-listen="+ops, "--log-level=error")
	s.oracle.Stderr = os.Stderr
	out, err := s.oracle.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.oracle.Start(); err != nil {
		return err
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
	grpc, err := address("kvoracle: serving on ")
	if err != nil {
		return err
	}
	web, err := address("kvoracle: serving HTTP on ")
	if err != nil {
		return err
	}
	spec := fmt.Sprintf(`{"spec":{"worker_id":"w","address":"%s","model":"m","block_size":16}}`, lis.Addr())
	resp, err := http.Post("http://"+web+"/v1/workers", "application/json", strings.NewReader(spec))
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("register: %s", resp.Status)
	}
	return s.startEnvoy(envoy, grpc, lis.Addr().String())
}

func (s *stack) startEnvoy(binary, grpc, worker string) error {
	ports := map[string]string{"ORACLE": grpc, "WORKER": worker}
	for _, name := range []string{"PLAIN", "PICKED", "OBSERVED", "DUPLEX", "ADMIN"} {
		a, err := free()
		if err != nil {
			return err
		}
		ports[name] = a
	}
	text := config
	for name, a := range ports {
		_, port, _ := net.SplitHostPort(a)
		text = strings.ReplaceAll(text, "port_value: "+name, "port_value: "+port)
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
	s.plain, s.picked = "http://"+ports["PLAIN"], "http://"+ports["PICKED"]
	s.observed, s.duplex = "http://"+ports["OBSERVED"], "http://"+ports["DUPLEX"]
	for range 300 {
		resp, err := http.Get("http://" + ports["ADMIN"] + "/ready")
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

// decided is how many requests kvoracle has decided.
func (s *stack) decided() (float64, error) {
	resp, err := http.Get(s.ops + "/metrics")
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

// memory is kvoracle's resident memory now and at its peak, in MiB.
func (s *stack) memory() (now, peak float64) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.oracle.Process.Pid))
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
	for _, cmd := range []*exec.Cmd{s.envoy, s.oracle} {
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
