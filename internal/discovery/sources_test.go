package discovery

import (
	"context"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// template is what all workers have in common.
func template() *kvoraclev1.WorkerSpec {
	return &kvoraclev1.WorkerSpec{Model: "m", BlockSize: 16, Labels: map[string]string{"pool": "a"}}
}

// show writes endpoints in a line each.
func show(t *testing.T, list []Endpoint, err error) []string {
	t.Helper()
	if err != nil {
		return []string{"error"}
	}
	var got []string
	for _, e := range list {
		s := e.Spec.GetWorkerId() + " at " + e.Spec.GetAddress()
		if z := e.Spec.GetLabels()["zone"]; z != "" {
			s += " in " + z
		}
		if e.Out {
			s += " out"
		}
		if e.Spec.GetModel() != "m" || e.Spec.GetBlockSize() != 16 {
			t.Errorf("%s is not of the template: %v", s, e.Spec)
		}
		got = append(got, s)
	}
	return got
}

func TestFile(t *testing.T) {
	f := &File{Path: filepath.Join(t.TempDir(), "workers.yaml")}
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"workers:\n- {worker_id: a, address: '1.2.3.4:80', model: m, block_size: 16, labels: {zone: z}}\n- {workerId: b, model: m, block_size: 16, out: true}\n", []string{"a at 1.2.3.4:80 in z", "b at  out"}},
		{`{"workers": [{"worker_id": "a", "model": "m", "block_size": 16, "out": false}]}`, []string{"a at "}},
		{"workers: []", nil},
		{"", []string{"error"}}, // half written
		{"workers:", []string{"error"}},
		{"workers: [{worker_id: a, model: m", []string{"error"}},
		{"workers: [{worker_id: a, speed: 9}]", []string{"error"}},
		{"workers: [{worker_id: a, out: perhaps}]", []string{"error"}},
		{"workers: [{worker_id: a}, {worker_id: a}]", []string{"error"}},
		{"workers: [{model: m}]", []string{"error"}},
	} {
		if err := os.WriteFile(f.Path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := f.Look(t.Context())
		if d := cmp.Diff(tt.want, show(t, got, err)); d != "" {
			t.Errorf("%q (-want +got):\n%s", tt.text, d)
		}
	}
	if err := os.Remove(f.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Look(t.Context()); err == nil {
		t.Error("a file that is not there is a fleet")
	}
	if _, err := parseFile(make([]byte, MaxAnswer+1)); err == nil {
		t.Error("a file without end was read")
	}
	var long strings.Builder
	for i := range MaxEndpoints + 1 {
		_, _ = fmt.Fprintf(&long, "{worker_id: w%d},", i)
	}
	if _, err := parseFile([]byte("workers: [" + long.String() + "]")); err == nil {
		t.Error("a list without end was read")
	}
	seen := make(chan struct{})
	go func() {
		f.Wait(t.Context(), time.Hour)
		close(seen)
	}()
	select {
	case <-seen: // a file says nothing when it changes, so it is looked at often, whatever the longest time is
	case <-time.After(time.Minute):
		t.Error("a change of a file is not looked for")
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte("workers:\n- {worker_id: a, address: b, model: m, block_size: 16, out: true}"))
	f.Add([]byte(`{"workers":[{"worker_id":"a","labels":{"x":"y"},"roles":["ROLE_PREFILL"]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := parseFile(text)
		seen := make(map[string]bool)
		for _, e := range list {
			if n := e.Spec.GetWorkerId(); err != nil || n == "" || seen[n] {
				t.Fatalf("%q in %v, %v", n, list, err)
			}
			seen[e.Spec.GetWorkerId()] = true
		}
	})
}

// names is a DNS server on a real socket.
type names struct {
	mu  sync.Mutex
	a   map[string][]string // IPv4 addresses by name
	srv map[string][]string // "port target" by name
}

func (n *names) set(name string, ips ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.a[name] = ips
}

// serve answers until the test ends, and gives a resolver that asks here alone.
func (n *names) serve(t *testing.T) *net.Resolver {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(n.answer(b[:size]), from)
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// stream answers as serve does, but over TCP, where an answer may be of 64 KiB.
func (n *names) stream(t *testing.T) *net.Resolver {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close() //nolint:errcheck // the asker has what it wants
				var size [2]byte
				for {
					if _, err := io.ReadFull(conn, size[:]); err != nil {
						return
					}
					q := make([]byte, binary.BigEndian.Uint16(size[:]))
					if _, err := io.ReadFull(conn, q); err != nil {
						return
					}
					a := n.answer(q)
					_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = lis.Close()
		all.Wait()
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", lis.Addr().String())
	}}
}

// answer is RFC 1035's, for a question alone.
func (n *names) answer(q []byte) []byte {
	const typeA, typeSRV = 1, 33
	n.mu.Lock()
	defer n.mu.Unlock()
	var labels []string
	at := 12
	for q[at] != 0 {
		labels = append(labels, string(q[at+1:at+1+int(q[at])]))
		at += 1 + int(q[at])
	}
	name, kind := strings.Join(labels, "."), binary.BigEndian.Uint16(q[at+1:])
	end := at + 5
	var records [][]byte
	switch kind {
	case typeA:
		for _, ip := range n.a[name] {
			records = append(records, net.ParseIP(ip).To4())
		}
	case typeSRV:
		for _, s := range n.srv[name] {
			var port uint16
			var target string
			_, _ = fmt.Sscan(s, &port, &target)
			r := binary.BigEndian.AppendUint16([]byte{0, 1, 0, 1}, port)
			for l := range strings.SplitSeq(target, ".") {
				r = append(append(r, byte(len(l))), l...)
			}
			records = append(records, append(r, 0))
		}
	}
	out := append([]byte{}, q[:2]...)
	flags := uint16(0x8180)
	if n.a[name] == nil && n.srv[name] == nil {
		flags |= 3 // no such name
	}
	out = binary.BigEndian.AppendUint16(out, flags)
	out = binary.BigEndian.AppendUint16(append(out, 0, 1), uint16(len(records)))
	out = append(out, 0, 0, 0, 0)
	out = append(out, q[12:end]...)
	for _, r := range records {
		out = append(out, 0xc0, 12)
		out = binary.BigEndian.AppendUint16(out, kind)
		out = append(out, 0, 1, 0, 0, 0, 1)
		out = binary.BigEndian.AppendUint16(out, uint16(len(r)))
		out = append(out, r...)
	}
	return out
}

func TestDNS(t *testing.T) {
	n := &names{a: map[string][]string{}, srv: map[string][]string{"_http._tcp.pool.test": {"8001 one.test", "8002 two.test"}}}
	r := n.serve(t)
	n.set("workers.test", "10.0.0.2", "10.0.0.1", "10.0.0.2")
	n.set("one.test", "10.0.0.1")
	n.set("two.test", "10.0.0.1", "10.0.0.9")
	look := func(name string) []string {
		d := &DNS{Name: name, Template: template(), Resolver: r}
		got, err := d.Look(t.Context())
		return show(t, got, err)
	}
	for name, want := range map[string][]string{
		"workers.test.:8000":    {"10.0.0.1:8000 at 10.0.0.1:8000", "10.0.0.2:8000 at 10.0.0.2:8000"},
		"_http._tcp.pool.test.": {"10.0.0.1:8001 at 10.0.0.1:8001", "10.0.0.1:8002 at 10.0.0.1:8002", "10.0.0.9:8002 at 10.0.0.9:8002"},
		"nobody.test.:8000":     {"error"},
		"_http._tcp.nowhere.":   {"error"},
		"workers.test":          {"error"}, // no port
	} {
		if d := cmp.Diff(want, look(name)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	n.set("workers.test", "10.0.0.3") // asked anew each time
	if d := cmp.Diff([]string{"10.0.0.3:8000 at 10.0.0.3:8000"}, look("workers.test.:8000")); d != "" {
		t.Errorf("afterwards (-want +got):\n%s", d)
	}
}

// One name can have so many addresses as a fleet may have workers, and no more: beyond that the look fails and nothing changes.
func TestDNSOfTooMany(t *testing.T) {
	const targets = 5 // each of 3,277 addresses: one answer has room for 4,000
	n := &names{a: map[string][]string{}, srv: map[string][]string{}}
	fill := func(all int) {
		n.srv["_http._tcp.pool.test"] = nil
		for i := range targets {
			var ips []string
			for k := i; k < all; k += targets {
				ips = append(ips, fmt.Sprintf("10.%d.%d.%d", k>>16, k>>8&0xff, k&0xff))
			}
			name := fmt.Sprintf("t%d.test", i)
			n.set(name, ips...)
			n.srv["_http._tcp.pool.test"] = append(n.srv["_http._tcp.pool.test"], "8000 "+name)
		}
	}
	d := &DNS{Name: "_http._tcp.pool.test.", Template: template(), Resolver: n.stream(t)}
	fill(MaxEndpoints - 1)
	if got, err := d.Look(t.Context()); err != nil || len(got) != MaxEndpoints-1 {
		t.Errorf("%d endpoints, %v", len(got), err)
	}
	n.srv["_http._tcp.pool.test"] = append(n.srv["_http._tcp.pool.test"], "8001 one.test", "8001 two.test")
	n.set("one.test", "10.0.0.1")
	if got, err := d.Look(t.Context()); err == nil { // two.test is not known
		t.Errorf("%d endpoints although a target has no address", len(got))
	}
	n.set("two.test", "10.0.0.1") // another name of the same place
	if got, err := d.Look(t.Context()); err != nil || len(got) != MaxEndpoints {
		t.Errorf("%d endpoints, %v", len(got), err)
	}
	n.set("two.test", "10.0.0.2")
	if got, err := d.Look(t.Context()); got != nil || err == nil || !strings.Contains(err.Error(), "16385 addresses, want at most 16384") {
		t.Errorf("%d endpoints, %v", len(got), err)
	}
}

// api is a Kubernetes API server on a real socket, of which a test writes the documents.
type api struct {
	mu      sync.Mutex
	docs    map[string]string // by path and query
	asked   []string
	changed chan struct{} // each lets a watch hear of one change
}

func (a *api) serve(t *testing.T) *Kube {
	t.Helper()
	s := httptest.NewServer(a.handler())
	t.Cleanup(s.Close)
	return &Kube{API: s.URL + "/", Client: s.Client(), Namespace: "ns", Template: template(), Token: func() (string, error) { return "t0", nil }}
}

func (a *api) handler() http.Handler {
	a.changed = make(chan struct{}, 8)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		key := r.URL.Path
		if q := r.URL.RawQuery; q != "" {
			key += "?" + q
		}
		a.asked = append(a.asked, key+" "+r.Header.Get("Authorization"))
		doc, ok := a.docs[key]
		a.mu.Unlock()
		switch {
		case r.URL.Query().Get("watch") != "":
			w.(http.Flusher).Flush()
			select {
			case <-a.changed:
				_, _ = fmt.Fprintln(w, `{"type":"MODIFIED"}`)
			case <-r.Context().Done():
			}
		case !ok:
			http.Error(w, "{}", http.StatusNotFound)
		default:
			_, _ = fmt.Fprint(w, doc)
		}
	})
}

// A pod is given the API's address in its environment, and an authority, a token and a namespace in a folder. Tokens are
// renewed there.
func TestInCluster(t *testing.T) {
	const path = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dvllm&limit=500"
	a := &api{docs: map[string]string{path: `{"items":[{"ports":[{"port":8000}],"endpoints":[{"addresses":["10.0.0.1"]}]}]}`}}
	s := httptest.NewTLSServer(a.handler())
	t.Cleanup(s.Close)
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fails := func(want string) {
		t.Helper()
		if err := new(Kube).inCluster(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("InCluster says %v, want %q", err, want)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	fails("this is no pod")
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	fails("ca.crt")
	write("ca.crt", []byte("nothing"))
	fails("ca.crt has no certificate")
	write("ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	fails("namespace")
	write("namespace", []byte("llm\n"))
	k := &Kube{Service: "vllm", Template: template()}
	if err := k.inCluster(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Look(t.Context()); err == nil { // the token is not there yet
		t.Errorf("asked without a token: %v", got)
	}
	for _, token := range []string{"first", "renewed"} {
		write("token", []byte(token+"\n"))
		got, err := k.Look(t.Context())
		if d := cmp.Diff([]string{"10.0.0.1:8000 at 10.0.0.1:8000"}, show(t, got, err)); d != "" {
			t.Errorf("with the %s token (-want +got):\n%s", token, d)
		}
		if last := a.asked[len(a.asked)-1]; last != path+" Bearer "+token {
			t.Errorf("asked %s", last)
		}
	}
	named := &Kube{Namespace: "other"}
	if err := named.inCluster(dir); err != nil || named.Namespace != "other" {
		t.Errorf("a namespace that was named is now %q, %v", named.Namespace, err)
	}
	k.Client = nil // whoever does not know the authority does not trust the server
	if got, err := k.Look(t.Context()); err == nil {
		t.Errorf("trusted a stranger: %v", got)
	}
}

func TestEndpointSlices(t *testing.T) {
	const path = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
	many := make([]string, MaxEndpoints+1)
	for i := range many {
		many[i] = fmt.Sprintf(`{"addresses":["10.1.%d.%d"]}`, i>>8, i&255)
	}
	a := &api{docs: map[string]string{
		path + "?labelSelector=kubernetes.io%2Fservice-name%3Dvllm&limit=500": `{"metadata":{"resourceVersion":"7","continue":"next"},"items":[
			{"addressType":"IPv4","ports":[{"name":"metrics","port":9000},{"name":"http","port":8000}],"endpoints":[
				{"addresses":["10.0.0.1"],"conditions":{"ready":true},"targetRef":{"kind":"Pod","name":"vllm-0"},"zone":"z1"},
				{"addresses":["10.0.0.2"],"conditions":{"ready":false},"targetRef":{"kind":"Pod","name":"vllm-1"}},
				{"addresses":["10.0.0.3"],"conditions":{"ready":true,"serving":true,"terminating":true},"targetRef":{"kind":"Pod","name":"vllm-2"}},
				{"addresses":["10.0.0.4"],"conditions":{}},
				{"addresses":[]}]},
			{"ports":[{"name":"other","port":1}],"endpoints":[{"addresses":["10.0.0.9"]}]}]}`,
		path + "?continue=next&labelSelector=kubernetes.io%2Fservice-name%3Dvllm&limit=500": `{"metadata":{"resourceVersion":"8"},"items":[
			{"ports":[{"name":"http","port":8000}],"endpoints":[
				{"addresses":["10.0.0.2"],"conditions":{"ready":true},"targetRef":{"name":"vllm-1"}},
				{"addresses":["fd00::5"],"conditions":{"ready":true},"targetRef":{"name":"vllm-5"}}]}]}`,
		path + "?labelSelector=kubernetes.io%2Fservice-name%3Dempty&limit=500":  `{"metadata":{"resourceVersion":"9"},"items":[]}`,
		path + "?labelSelector=kubernetes.io%2Fservice-name%3Dbroken&limit=500": `{"items":[`,
		path + "?labelSelector=kubernetes.io%2Fservice-name%3Dslices&limit=500": `{"items":[{}` + strings.Repeat(",{}", MaxEndpoints) + `]}`,
		path + "?labelSelector=kubernetes.io%2Fservice-name%3Dmany&limit=500":   `{"items":[{"ports":[{"name":"http","port":1}],"endpoints":[` + strings.Join(many, ",") + `]}]}`,
	}}
	k := a.serve(t)
	k.Service, k.Port = "vllm", "http"
	got, err := k.Look(t.Context())
	if d := cmp.Diff([]string{
		"vllm-0 at 10.0.0.1:8000 in z1", "vllm-1 at 10.0.0.2:8000", "vllm-2 at 10.0.0.3:8000 out", "10.0.0.4:8000 at 10.0.0.4:8000", "vllm-5 at [fd00::5]:8000",
	}, show(t, got, err)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for service, want := range map[string][]string{
		"empty": nil, "broken": {"error"}, "forbidden": {"error"}, "slices": {"error"}, "many": {"error"},
	} {
		k.Service = service
		got, err := k.Look(t.Context())
		if d := cmp.Diff(want, show(t, got, err)); d != "" {
			t.Errorf("%s (-want +got):\n%s", service, d)
		}
	}
	k.Service = "vllm"
	for port, want := range map[string]string{"9000": "vllm-0 at 10.0.0.1:9000 in z1", "": "vllm-0 at 10.0.0.1:9000 in z1", "other": "10.0.0.9:1 at 10.0.0.9:1"} {
		k.Port = port
		got, err := k.Look(t.Context())
		if all := show(t, got, err); len(all) == 0 || all[0] != want {
			t.Errorf("port %q: %v, want %s first", port, all, want)
		}
	}
	for _, q := range a.asked {
		if !strings.HasSuffix(q, " Bearer t0") {
			t.Errorf("without its token: %s", q)
		}
	}

	// A watch from the version that was listed ends the wait.
	k.Service = "empty"
	if _, err := k.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	a.changed <- struct{}{}
	k.Wait(t.Context(), time.Hour)
	if waited := time.Since(began); waited < settle {
		t.Errorf("looks again %v after a change: others may follow it", waited)
	}
	if last := a.asked[len(a.asked)-1]; !strings.Contains(last, "watch=1&resourceVersion=9 ") {
		t.Errorf("watched by %s", last)
	}
	k.Wait(t.Context(), time.Millisecond) // nothing happens
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	k.Wait(ctx, time.Hour)

	// One that is refused at once makes no busy loop.
	k.API = "http://127.0.0.1:1"
	ctx, cancel = context.WithCancel(t.Context())
	waited := make(chan struct{})
	go func() {
		k.Wait(ctx, time.Hour)
		close(waited)
	}()
	select {
	case <-waited:
		t.Error("a watch that failed ended the wait")
	case <-time.After(200 * time.Millisecond):
	}
	cancel()
	<-waited
}

func TestInferencePool(t *testing.T) {
	const pool, pods = "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools/", "/api/v1/namespaces/ns/pods?labelSelector=app%3Dvllm%2Ctier%3Dgpu&limit=500"
	a := &api{docs: map[string]string{
		pool + "p":        `{"spec":{"selector":{"matchLabels":{"tier":"gpu","app":"vllm"}},"targetPorts":[{"number":8000},{"number":8001}]}}`,
		pool + "one":      `{"spec":{"selector":{"matchLabels":{"tier":"gpu","app":"vllm"}},"targetPorts":[{"number":8000}]}}`,
		pool + "all":      `{"spec":{"selector":{},"targetPorts":[{"number":8000}]}}`,
		pool + "portless": `{"spec":{"selector":{"matchLabels":{"app":"vllm"}}}}`,
		"/api/v1/namespaces/ns/pods?labelSelector=&limit=500": `{"items":[{"metadata":{"name":"anybody"},"status":{"phase":"Running","podIP":"10.0.0.9"}}]}`,
		pods: `{"metadata":{"resourceVersion":"3"},"items":[
			{"metadata":{"name":"x"},"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]}},
			{"metadata":{"name":"y"},"status":{"phase":"Running","podIP":"10.0.0.2","conditions":[{"type":"Ready","status":"False"}]}},
			{"metadata":{"name":"z","deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"phase":"Running","podIP":"10.0.0.3","conditions":[{"type":"Ready","status":"True"}]}},
			{"metadata":{"name":"done"},"status":{"phase":"Succeeded","podIP":"10.0.0.4"}},
			{"metadata":{"name":"pending"},"status":{"phase":"Pending"}}]}`,
	}}
	k := a.serve(t)
	for name, want := range map[string][]string{
		"p": {
			"x:8000 at 10.0.0.1:8000", "x:8001 at 10.0.0.1:8001", "y:8000 at 10.0.0.2:8000 out", "y:8001 at 10.0.0.2:8001 out",
			"z:8000 at 10.0.0.3:8000 out", "z:8001 at 10.0.0.3:8001 out",
		},
		"one":      {"x at 10.0.0.1:8000", "y at 10.0.0.2:8000 out", "z at 10.0.0.3:8000 out"},
		"all":      {"error"},
		"portless": {"error"},
		"unknown":  {"error"},
	} {
		k.Pool = name
		got, err := k.Look(t.Context())
		if d := cmp.Diff(want, show(t, got, err)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
