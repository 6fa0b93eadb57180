//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// patience is how long these tests wait for what must come; only a failing one waits so long.
const patience = time.Minute

// libzmq is a Python process with sockets of the real libzmq.
type libzmq struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     *json.Encoder
	out    *json.Decoder
	stderr bytes.Buffer
}

type fields = map[string]any

func startLibzmq(t *testing.T) *libzmq { return startPeer(t, "zeromq.py") }

// startPeer starts a script of testdata that takes commands, and tells it where to find its modules.
func startPeer(t *testing.T, script string, modules ...string) *libzmq {
	t.Helper()
	python := os.Getenv(pythonEnv)
	if python == "" {
		t.Fatalf("%s is not set: run this test by `make e2e`", pythonEnv)
	}
	p := &libzmq{t: t, cmd: exec.CommandContext(context.WithoutCancel(t.Context()), python, append([]string{filepath.Join("testdata", script)}, modules...)...)}
	p.cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+strings.Join(modules, string(os.PathListSeparator)))
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = json.NewEncoder(stdin), json.NewDecoder(bufio.NewReader(stdout))
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		if t.Failed() && p.stderr.Len() > 0 {
			t.Logf("Python said:\n%s", &p.stderr)
		}
	})
	return p
}

// do has the process do something and returns its answer.
func (p *libzmq) do(op string, f fields) (answer struct {
	Endpoint string   `json:"endpoint"`
	Replay   string   `json:"replay"`
	Version  string   `json:"version"`
	Frames   []string `json:"frames"`
	Request  []string `json:"request"`
	Error    string   `json:"error"`
},
) {
	p.t.Helper()
	command := fields{"op": op}
	maps.Copy(command, f)
	if err := p.in.Encode(command); err != nil {
		p.t.Fatalf("%s: %v", op, err)
	}
	if err := p.out.Decode(&answer); err != nil {
		p.t.Fatalf("%s: %v", op, err)
	}
	if answer.Error != "" {
		p.t.Fatalf("%s: %s", op, answer.Error)
	}
	return answer
}

// open makes a socket called name and returns where it is.
func (p *libzmq) open(name, kind string, f fields) string {
	p.t.Helper()
	all := fields{"name": name, "type": kind}
	maps.Copy(all, f)
	return p.do("open", all).Endpoint
}

func (p *libzmq) send(name string, frames ...string) {
	p.t.Helper()
	var in []string
	for _, f := range frames {
		in = append(in, hex.EncodeToString([]byte(f)))
	}
	p.do("send", fields{"name": name, "frames": in})
}

// recv returns a message as text, its frames joined by |; "" if none comes within the time.
func (p *libzmq) recv(name string, within time.Duration) string {
	p.t.Helper()
	var out []string
	for _, f := range p.do("recv", fields{"name": name, "timeout": within.Milliseconds()}).Frames {
		b, err := hex.DecodeString(f)
		if err != nil {
			p.t.Fatal(err)
		}
		out = append(out, string(b))
	}
	return strings.Join(out, "|")
}

func zmqDial(t *testing.T, cfg zmtp.Config) *zmtp.Socket {
	t.Helper()
	cfg.ReconnectMin, cfg.ReconnectMax = 5*time.Millisecond, 50*time.Millisecond
	s, err := zmtp.Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func zmqListen(t *testing.T, cfg zmtp.Config) *zmtp.Socket {
	t.Helper()
	s, err := zmtp.Listen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func delivery(t *testing.T, s *zmtp.Socket) zmtp.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d, err := s.Recv(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// text is a delivery as text: frames joined by |, or the kind of event.
func text(d zmtp.Delivery) string {
	if d.Event != nil {
		return "<" + d.Event.Kind.String() + ">"
	}
	return string(bytes.Join(d.Message, []byte("|")))
}

func want(t *testing.T, s *zmtp.Socket, all ...string) {
	t.Helper()
	for _, w := range all {
		d := delivery(t, s)
		if got := text(d); got != w {
			t.Fatalf("got %.200q (%+v), want %.200q", got, d.Event, w)
		}
	}
}

// seq is the sequence number of a batch that burst sent.
func seq(t *testing.T, d zmtp.Delivery) int {
	t.Helper()
	if d.Event != nil || len(d.Message) != 3 || len(d.Message[1]) != 8 {
		t.Fatalf("got %.200q %+v, want a batch", d.Message, d.Event)
	}
	return int(binary.BigEndian.Uint64(d.Message[1]))
}

// TestZeroMQSubscribes: everything a publisher sends comes as it was sent, whoever binds, over both transports. XPUB says
// when a subscription has come.
func TestZeroMQSubscribes(t *testing.T) {
	p := startLibzmq(t)
	t.Logf("libzmq %s", p.do("version", nil).Version)
	for i, endpoint := range []string{"tcp://127.0.0.1:*", "tcp://[::1]:*", "ipc://" + filepath.Join(t.TempDir(), "s")} {
		for _, binds := range []bool{true, false} {
			name := fmt.Sprint("pub ", i, binds)
			options := fields{"IPV6": 1}
			var sub *zmtp.Socket
			if strings.HasPrefix(endpoint, "ipc") {
				endpoint = fmt.Sprint(endpoint, binds) // libzmq lets go of a path some time after close
			}
			cfg := zmtp.Config{Type: zmtp.SUB, Endpoint: endpoint, Topics: []string{"kv@"}}
			if binds {
				cfg.Endpoint = p.open(name, "XPUB", fields{"bind": endpoint, "options": options})
				sub = zmqDial(t, cfg)
			} else {
				sub = zmqListen(t, cfg)
				p.open(name, "XPUB", fields{"connect": sub.Endpoint(), "options": options})
			}
			if got := p.recv(name, patience); got != "\x01kv@" {
				t.Fatalf("%s: subscription %q", name, got)
			}
			short, long := strings.Repeat("s", 255), strings.Repeat("l", 256)
			p.send(name, "other", "x")
			p.send(name, "kv@a", "", short, long, "")
			p.do("burst", fields{"name": name, "topic": "kv@b", "first": 3, "count": 2, "size": 8 << 20})
			p.send(name, "kv@")
			want(t, sub, "<connected>", "kv@a||"+short+"|"+long+"|")
			for n := 3; n < 5; n++ {
				d := delivery(t, sub)
				if got := seq(t, d); got != n || len(d.Message[2]) != 8<<20 || len(bytes.Trim(d.Message[2], "x")) != 0 {
					t.Errorf("%s: batch %d of %d bytes, want %d of 8 MiB", name, got, len(d.Message[2]), n)
				}
			}
			want(t, sub, "kv@")
			sub.Close()
			if binds { // who connects keeps the wish for when we come back
				if got := p.recv(name, patience); got != "\x00kv@" {
					t.Errorf("%s: after we left: %q", name, got)
				}
			}
			p.do("close", fields{"name": name})
		}
	}
}

// TestZeroMQLosesAtItsHighWaterMark: beyond it the publisher drops in silence; the numbers jump, and come again.
func TestZeroMQLosesAtItsHighWaterMark(t *testing.T) {
	const all = 2000
	p := startLibzmq(t)
	sub := zmqDial(t, zmtp.Config{
		Type: zmtp.SUB, Endpoint: p.open("pub", "XPUB", fields{"bind": "tcp://127.0.0.1:*", "options": fields{"SNDHWM": 10}}), QueueMessages: 10,
	})
	p.recv("pub", patience)
	p.do("burst", fields{"name": "pub", "topic": "", "first": 0, "count": all, "size": 100_000})
	want(t, sub, "<connected>")
	// Whatever was lost at the end shows with the next number, which a queue that is still full drops as well.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	next, got := 0, 0
	for next < all {
		soon, stop := context.WithTimeout(ctx, 100*time.Millisecond)
		d, err := sub.Recv(soon)
		stop()
		if err != nil {
			if ctx.Err() != nil {
				t.Fatalf("%d came, the last is %d: %v", got, next-1, err)
			}
			p.do("burst", fields{"name": "pub", "topic": "", "first": all, "count": 1, "size": 100_000})
			continue
		}
		n := seq(t, d)
		if n < next || len(d.Message[2]) != 100_000 {
			t.Fatalf("got %d of %d bytes, want %d or later", n, len(d.Message[2]), next)
		}
		if got == 0 && n != 0 {
			t.Errorf("begins at %d", n)
		}
		next, got = n+1, got+1
	}
	if got >= all {
		t.Errorf("%d of %d came: nothing was lost", got, all)
	}
	st := sub.Stats()
	if st.Connects != 1 || st.Disconnects != 0 || st.Dropped != 0 {
		t.Errorf("%+v", st)
	}
	t.Logf("%d of %d came", got, all)
}

// TestZeroMQSlowJoiner: what was published before we came is gone, and from the first number on nothing is missing.
func TestZeroMQSlowJoiner(t *testing.T) {
	p := startLibzmq(t)
	at := p.open("pub", "PUB", fields{"bind": "tcp://127.0.0.1:*"})
	p.do("burst", fields{"name": "pub", "topic": "t", "first": 0, "count": 100, "size": 10})
	sub := zmqDial(t, zmtp.Config{Type: zmtp.SUB, Endpoint: at, Topics: []string{"t"}})
	want(t, sub, "<connected>")
	next := 100
	for sub.Stats().Received == 0 {
		p.do("burst", fields{"name": "pub", "topic": "t", "first": next, "count": 1, "size": 10})
		next++
	}
	p.do("burst", fields{"name": "pub", "topic": "t", "first": next, "count": 50, "size": 10})
	first := seq(t, delivery(t, sub))
	if first < 100 {
		t.Errorf("begins at %d, before we came", first)
	}
	for i := first + 1; i < next+50; i++ {
		if got := seq(t, delivery(t, sub)); got != i {
			t.Fatalf("got %d, want %d", got, i)
		}
	}
}

// TestZeroMQRestarts: a publisher that closes and binds again is told between its messages, with a new number.
func TestZeroMQRestarts(t *testing.T) {
	p := startLibzmq(t)
	at := p.open("pub", "XPUB", fields{"bind": "tcp://127.0.0.1:*"})
	sub := zmqDial(t, zmtp.Config{Type: zmtp.SUB, Endpoint: at})
	var conns []uint64
	for life := range 3 {
		p.recv("pub", patience)
		p.do("burst", fields{"name": "pub", "topic": "", "first": 0, "count": 5, "size": life})
		d := delivery(t, sub)
		for d.Event != nil && d.Event.Kind != zmtp.Connected {
			if d.Event.Kind != zmtp.Failed && d.Event.Kind != zmtp.Disconnected {
				t.Fatalf("life %d: %+v", life, d.Event)
			}
			d = delivery(t, sub)
		}
		for i := range 5 {
			d := delivery(t, sub)
			if got := seq(t, d); got != i || len(d.Message[2]) != life {
				t.Fatalf("life %d: batch %d of %d bytes, want %d", life, got, len(d.Message[2]), i)
			}
			if i == 0 {
				conns = append(conns, d.Conn)
			}
		}
		p.do("close", fields{"name": "pub"})
		want(t, sub, "<disconnected>")
		p.open("pub", "XPUB", fields{"bind": at})
	}
	if conns[0] >= conns[1] || conns[1] >= conns[2] {
		t.Errorf("connections %v", conns)
	}
}

// TestZeroMQReplay asks a ROUTER that answers as vLLM does, in both forms.
func TestZeroMQReplay(t *testing.T) {
	const end = "\xff\xff\xff\xff\xff\xff\xff\xff"
	p := startLibzmq(t)
	dealer := zmqDial(t, zmtp.Config{Type: zmtp.DEALER, Endpoint: p.open("router", "ROUTER", fields{"bind": "tcp://127.0.0.1:*"})})
	want(t, dealer, "<connected>")
	ask := func(start uint64) {
		t.Helper()
		if err := dealer.Send(t.Context(), [][]byte{{}, binary.BigEndian.AppendUint64(nil, start)}); err != nil {
			t.Fatal(err)
		}
	}
	number := func(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

	ask(7)
	if diff := cmp.Diff([]string{"", "0000000000000007"}, p.do("replay", fields{"name": "router", "first": 5, "last": 9}).Request); diff != "" {
		t.Error(diff)
	}
	for i := uint64(7); i <= 9; i++ {
		want(t, dealer, "|"+number(i)+"|batch "+fmt.Sprint(i))
	}
	want(t, dealer, "|"+end+"|")

	ask(0)
	p.do("replay", fields{"name": "router", "first": 100, "last": 999, "topic": "kv"}) // libzmq's queue holds 1,000
	for i := uint64(100); i <= 999; i++ {
		want(t, dealer, "|kv|"+number(i)+"|batch "+fmt.Sprint(i))
	}
	want(t, dealer, "||"+end+"|")
}

// TestZeroMQAsksUs: our ROUTER answers libzmq's DEALER, and its REQ, which takes nothing but an answer to its question.
func TestZeroMQAsksUs(t *testing.T) {
	p := startLibzmq(t)
	router := zmqListen(t, zmtp.Config{Type: zmtp.ROUTER, Endpoint: "tcp://127.0.0.1:*"})
	for _, kind := range []string{"DEALER", "REQ"} {
		p.open(kind, kind, fields{"connect": router.Endpoint()})
		want(t, router, "<connected>")
		question := []string{"question"}
		if kind == "DEALER" {
			question = []string{"", "question"} // which REQ does by itself
		}
		p.send(kind, question...)
		d := delivery(t, router)
		if len(d.Message) != 3 || len(d.Message[1]) != 0 || string(d.Message[2]) != "question" {
			t.Fatalf("%s: %q %+v", kind, d.Message, d.Event)
		}
		if err := router.Send(t.Context(), [][]byte{d.Message[0], {}, []byte("answer")}); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimPrefix(p.recv(kind, patience), "|"); got != "answer" {
			t.Errorf("%s: got %q", kind, got)
		}
		p.do("close", fields{"name": kind})
		want(t, router, "<disconnected>")
	}
}

// TestZeroMQSubscribesToUs: libzmq's SUB gets from our PUB what it asked for, and no more once it takes that back.
func TestZeroMQSubscribesToUs(t *testing.T) {
	p := startLibzmq(t)
	pub := zmqListen(t, zmtp.Config{Type: zmtp.PUB, Endpoint: "tcp://127.0.0.1:*"})
	p.open("sub", "SUB", fields{"connect": pub.Endpoint(), "topics": []string{"a", "b"}})
	send := func(frames ...string) {
		t.Helper()
		var m [][]byte
		for _, f := range frames {
			m = append(m, []byte(f))
		}
		if err := pub.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := pub.WaitPeers(ctx, 1); err != nil {
		t.Fatal(err)
	}
	// Its second subscription may be on its way: b is sent until it comes.
	for got := ""; got == ""; got = p.recv("sub", 20*time.Millisecond) {
		send("b")
	}
	large := strings.Repeat("x", 1<<20)
	send("c", "nothing")
	send("a1", "", large)
	for got := "b"; got == "b"; {
		if got = p.recv("sub", patience); got != "b" && got != "a1||"+large {
			t.Fatalf("got %.100q", got)
		}
	}
	p.do("unsubscribe", fields{"name": "sub", "topic": "a"})
	for before := pub.Stats().Sent; ; before = pub.Stats().Sent {
		send("a")
		if pub.Stats().Sent == before {
			break // it has been taken back
		}
		p.recv("sub", 20*time.Millisecond) // it drops what it no longer wants
	}
	send("b", "last")
	for got := "a"; got == "a"; {
		if got = p.recv("sub", patience); got != "a" && got != "b|last" {
			t.Fatalf("got %.100q", got)
		}
	}
}

// TestZeroMQHeartbeats: a publisher that asks for signs of life keeps us, and one whose process is stopped is noticed and
// found again.
func TestZeroMQHeartbeats(t *testing.T) {
	t.Parallel()
	p := startLibzmq(t)
	at := p.open("pub", "XPUB", fields{"bind": "tcp://127.0.0.1:*", "options": fields{
		"HEARTBEAT_IVL": 50, "HEARTBEAT_TIMEOUT": 5000, "HEARTBEAT_TTL": 20_000,
	}})
	sub := zmqDial(t, zmtp.Config{
		Type: zmtp.SUB, Endpoint: at, Heartbeat: 50 * time.Millisecond, HeartbeatTimeout: 6 * time.Second, HandshakeTimeout: 5 * time.Second,
	})
	want(t, sub, "<connected>")
	p.recv("pub", patience)
	// Longer than the publisher waits for an answer.
	if got := p.recv("pub", 7*time.Second); got != "" {
		t.Fatalf("publisher heard %q", got)
	}
	p.send("pub", "still here")
	want(t, sub, "still here")
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	want(t, sub, "<disconnected>")
	if st := sub.Stats(); st.Timeouts != 1 {
		t.Errorf("%+v", st)
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for got := ""; got != "<connected>"; {
		if got = text(delivery(t, sub)); got != "<connected>" && got != "<failed>" {
			t.Fatalf("got %q", got)
		}
	}
}

// TestZeroMQRefusals: a peer of the wrong kind, and one that wants a password, are told as what they are.
func TestZeroMQRefusals(t *testing.T) {
	p := startLibzmq(t)
	for kind, tt := range map[string]struct {
		options fields
		want    string
	}{
		"REP": {nil, "socket type"},
		"PUB": {fields{"PLAIN_SERVER": 1}, "hung up"}, // libzmq says nothing
	} {
		at := p.open(kind, kind, fields{"bind": "tcp://127.0.0.1:*", "options": tt.options})
		sub := zmqDial(t, zmtp.Config{Type: zmtp.SUB, Endpoint: at})
		d := delivery(t, sub)
		if d.Event == nil || d.Event.Kind != zmtp.Failed || !strings.Contains(d.Event.Err.Error(), tt.want) {
			t.Errorf("%s: got %q %+v, want a failure about %q", kind, d.Message, d.Event, tt.want)
		}
	}
}
