package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// patience is how long a test waits for what must come; only a failing test waits so long.
const patience = time.Minute

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func listen(t *testing.T, cfg Config) *Socket {
	t.Helper()
	if cfg.Endpoint == "" {
		cfg.Endpoint = "tcp://127.0.0.1:*"
	}
	s, err := Listen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, cfg Config) *Socket {
	t.Helper()
	cfg.ReconnectMin, cfg.ReconnectMax = time.Millisecond, 20*time.Millisecond
	s, err := Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func send(t *testing.T, s *Socket, frames ...string) {
	t.Helper()
	var m [][]byte
	for _, f := range frames {
		m = append(m, []byte(f))
	}
	if err := s.Send(within(t), m); err != nil {
		t.Fatal(err)
	}
}

// recv returns the next delivery as text: frames joined by |, or the kind of event.
func recv(t *testing.T, s *Socket) string {
	t.Helper()
	d, err := s.Recv(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if d.Event != nil {
		return "<" + d.Event.Kind.String() + ">"
	}
	var frames []string
	for _, f := range d.Message {
		frames = append(frames, string(f))
	}
	return strings.Join(frames, "|")
}

func peers(t *testing.T, s *Socket, n int) {
	t.Helper()
	if err := s.WaitPeers(within(t), n); err != nil {
		t.Fatalf("waiting for %d peers: %v", n, err)
	}
}

func expect(t *testing.T, s *Socket, want ...string) {
	t.Helper()
	var got []string
	for range want {
		got = append(got, recv(t, s))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

// endpoints are one of each transport.
func endpoints(t *testing.T) map[string]string {
	return map[string]string{
		"tcp":      "tcp://127.0.0.1:*",
		"tcp6":     "tcp://[::1]:*",
		"ipc":      "ipc://" + filepath.Join(t.TempDir(), "s"),
		"abstract": "ipc://@" + filepath.Join(t.TempDir(), "s"),
	}
}

func TestPublishAndSubscribe(t *testing.T) {
	leaksNothing(t)
	for transport, endpoint := range endpoints(t) {
		for _, binds := range []Type{PUB, SUB} {
			t.Run(fmt.Sprintf("%s, %v binds", transport, binds), func(t *testing.T) {
				topics := []string{"kv@a", "kv@b"}
				var pub, sub *Socket
				if binds == PUB {
					pub = listen(t, Config{Type: PUB, Endpoint: endpoint})
					sub = dial(t, Config{Type: SUB, Endpoint: pub.Endpoint(), Topics: topics})
				} else {
					sub = listen(t, Config{Type: SUB, Endpoint: endpoint, Topics: topics})
					pub = dial(t, Config{Type: PUB, Endpoint: sub.Endpoint()})
				}
				expect(t, sub, "<connected>")
				peers(t, pub, 1)
				// Commands come in order, so with the last topic all are there.
				if err := pub.until(within(t), func() (bool, error) {
					pub.mu.RLock()
					defer pub.mu.RUnlock()
					return pub.peers[0].topics.match([]byte("kv@b")), nil
				}); err != nil {
					t.Fatal(err)
				}
				send(t, pub, "other", "1")
				send(t, pub, "kv@a:8", "2", "")
				send(t, pub, "kv@", "3")
				send(t, pub, "kv@b")
				expect(t, sub, "kv@a:8|2|", "kv@b")
				if st := pub.Stats(); st.Sent != 2 || st.Peers != 1 || st.SendDropped != 0 {
					t.Errorf("publisher: %+v", st)
				}
				if st := sub.Stats(); st.Received != 2 || st.ReceivedBytes != 7+4 || st.Filtered != 0 || st.Connects != 1 {
					t.Errorf("subscriber: %+v", st)
				}
			})
		}
	}
}

// TestNoTopicsIsAll is where we differ from libzmq on purpose.
func TestNoTopicsIsAll(t *testing.T) {
	pub := listen(t, Config{Type: PUB})
	sub := dial(t, Config{Type: SUB, Endpoint: pub.Endpoint()})
	peers(t, pub, 1)
	send(t, pub, "", "x")
	send(t, pub, "y")
	expect(t, sub, "<connected>", "|x", "y")
}

// TestSlowSubscriberLosesAtThePublisher: the publisher never waits; what it drops is missing in the middle, and the
// subscriber's other end of the queue does not lose anything on its own.
func TestSlowSubscriberLosesAtThePublisher(t *testing.T) {
	leaksNothing(t)
	const all, size = 1000, 20_000
	pub := listen(t, Config{Type: PUB, SendMessages: 10})
	sub := dial(t, Config{Type: SUB, Endpoint: pub.Endpoint(), QueueMessages: 10})
	peers(t, pub, 1)
	filler := strings.Repeat("x", size)
	for i := range all {
		send(t, pub, fmt.Sprint(i), filler)
	}
	st := pub.Stats()
	if st.Sent+st.SendDropped != all || st.SendDropped == 0 {
		t.Fatalf("publisher: %+v", st)
	}
	expect(t, sub, "<connected>")
	last := -1
	for range st.Sent {
		n := 0
		if _, err := fmt.Sscanf(recv(t, sub), "%d|", &n); err != nil || n <= last {
			t.Fatalf("%d after %d: %v", n, last, err)
		}
		last = n
	}
	if got := sub.Stats(); got.Received != st.Sent || got.Dropped != 0 || got.Queued != 0 || got.QueuedBytes != 0 {
		t.Errorf("subscriber: %+v", got)
	}
	send(t, pub, "after")
	expect(t, sub, "after")
}

// TestDroppedIsToldInItsPlace: with DropWhenFull the numbers that are missing are exactly those that the events tell, each
// in its gap.
func TestDroppedIsToldInItsPlace(t *testing.T) {
	leaksNothing(t)
	const all = 5000
	pub := listen(t, Config{Type: PUB, SendMessages: all})
	sub := dial(t, Config{Type: SUB, Endpoint: pub.Endpoint(), QueueMessages: 8, DropWhenFull: true})
	peers(t, pub, 1)
	for i := range all {
		send(t, pub, fmt.Sprint(i))
	}
	expect(t, sub, "<connected>")
	next, events := 0, 0
	for next < all {
		d, err := sub.Recv(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if d.Event != nil {
			if d.Event.Kind != Dropped || d.Event.Dropped == 0 {
				t.Fatalf("event %+v", d.Event)
			}
			next += int(d.Event.Dropped)
			events++
			continue
		}
		if got := string(d.Message[0]); got != fmt.Sprint(next) {
			t.Fatalf("got %s, want %d", got, next)
		}
		next++
	}
	st := sub.Stats()
	if st.Received+st.Dropped != all || st.Queued != 0 {
		t.Errorf("%+v", st)
	}
	t.Logf("%d delivered, %d dropped, told by %d events", st.Received, st.Dropped, events)
}

// TestPublisherRestarts: the cut lies between the messages, and the new connection has a new number.
func TestPublisherRestarts(t *testing.T) {
	leaksNothing(t)
	for transport, endpoint := range endpoints(t) {
		t.Run(transport, func(t *testing.T) {
			pub := listen(t, Config{Type: PUB, Endpoint: endpoint})
			at := pub.Endpoint()
			sub := dial(t, Config{Type: SUB, Endpoint: at})
			var conns []uint64
			for life := range 3 {
				peers(t, pub, 1)
				send(t, pub, fmt.Sprint("life ", life))
				if err := pub.Flush(within(t)); err != nil {
					t.Fatal(err)
				}
				// A failed attempt may be told between two lives.
				for got := ""; got != "<connected>"; {
					if got = recv(t, sub); got != "<connected>" && got != "<failed>" {
						t.Fatalf("life %d: %s", life, got)
					}
				}
				d, err := sub.Recv(within(t))
				if err != nil || string(d.Message[0]) != fmt.Sprint("life ", life) {
					t.Fatalf("life %d: %+v, %v", life, d, err)
				}
				conns = append(conns, d.Conn)
				pub.Close()
				d, err = sub.Recv(within(t))
				if err != nil || d.Event == nil || d.Event.Kind != Disconnected || d.Event.Err == nil || d.Conn != conns[life] {
					t.Fatalf("life %d: %+v, %v", life, d, err)
				}
				pub = listen(t, Config{Type: PUB, Endpoint: at})
			}
			if conns[0] >= conns[1] || conns[1] >= conns[2] {
				t.Errorf("connections %v", conns)
			}
		})
	}
}

// TestReplay is the dialogue with an engine's replay socket, in both forms, end marker included.
func TestReplay(t *testing.T) {
	leaksNothing(t)
	const end = "\xff\xff\xff\xff\xff\xff\xff\xff"
	router := listen(t, Config{Type: ROUTER, SendMessages: 4})
	dealer := dial(t, Config{Type: DEALER, Endpoint: router.Endpoint()})
	send(t, dealer, "", "\x00\x00\x00\x00\x00\x00\x00\x05")
	expect(t, dealer, "<connected>")
	expect(t, router, "<connected>")
	d, err := router.Recv(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Message) != 3 || len(d.Message[0]) != 5 || d.Message[0][0] != 0 || string(d.Message[2]) != "\x00\x00\x00\x00\x00\x00\x00\x05" {
		t.Fatalf("request %q", d.Message)
	}
	who := string(d.Message[0])
	done := make(chan error, 1)
	go func() {
		for i := range 100 { // more than the queue holds: it waits for us
			if err := router.Send(t.Context(), [][]byte{[]byte(who), {}, {byte(i)}, []byte("payload")}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := range 100 {
		expect(t, dealer, "|"+string([]byte{byte(i)})+"|payload")
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	send(t, router, who, "", end, "")
	send(t, router, who, "", "topic", "seq", "payload")
	send(t, router, who, "", "", end, "")
	expect(t, dealer, "|"+end+"|", "|topic|seq|payload", "||"+end+"|")
	if err := router.Send(within(t), [][]byte{[]byte("nobody"), {}}); !errors.Is(err, ErrNoPeer) {
		t.Errorf("to nobody: %v", err)
	}
	dealer.Close()
	expect(t, router, "<disconnected>")
	if err := router.Send(within(t), [][]byte{[]byte(who), {}}); !errors.Is(err, ErrNoPeer) {
		t.Errorf("to who has left: %v", err)
	}
}

// TestDealerTakesTurns: a bound DEALER deals to its peers, and waits while there is none.
func TestDealerTakesTurns(t *testing.T) {
	leaksNothing(t)
	dealer := listen(t, Config{Type: DEALER})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := dealer.Send(ctx, [][]byte{{1}}); !errors.Is(err, context.Canceled) {
		t.Errorf("with nobody there: %v", err)
	}
	a := dial(t, Config{Type: ROUTER, Endpoint: dealer.Endpoint()})
	b := dial(t, Config{Type: ROUTER, Endpoint: dealer.Endpoint()})
	peers(t, dealer, 2)
	for range 4 {
		send(t, dealer, "job")
	}
	for _, s := range []*Socket{a, b} {
		expect(t, s, "<connected>")
		for range 2 {
			if got := recv(t, s); !strings.HasSuffix(got, "|job") {
				t.Errorf("got %q", got)
			}
		}
	}
}

func TestLargeMessages(t *testing.T) {
	leaksNothing(t)
	pub := listen(t, Config{Type: PUB})
	sub := dial(t, Config{Type: SUB, Endpoint: pub.Endpoint(), MaxMessage: 10 << 20})
	peers(t, pub, 1)
	large := strings.Repeat("0123456789abcdef", 512<<10) // 8 MiB
	send(t, pub, "kv", large, "end")
	expect(t, sub, "<connected>", "kv|"+large+"|end")

	// Above the limit the connection ends, and the next one works.
	send(t, pub, "kv", large, large)
	d, err := sub.Recv(within(t))
	if err != nil || d.Event == nil || d.Event.Kind != Disconnected || !errors.Is(d.Event.Err, errProtocol) {
		t.Fatalf("%+v, %v", d, err)
	}
	expect(t, sub, "<connected>")
	for got := ""; got != "small"; { // its first words may come before we are subscribed
		send(t, pub, "small")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if d, err := sub.Recv(ctx); err == nil {
			got = string(d.Message[0])
		}
		cancel()
	}
	if st := sub.Stats(); st.Violations != 1 || st.LastError == nil {
		t.Errorf("%+v", st)
	}
}

func TestClosedSockets(t *testing.T) {
	leaksNothing(t)
	ctx, cancel := context.WithCancel(t.Context())
	sub, err := Dial(ctx, Config{Type: SUB, Endpoint: "tcp://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	router, err := Listen(ctx, Config{Type: ROUTER, Endpoint: "tcp://127.0.0.1:*"})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, sub, "<failed>")
	waiting := make(chan error, 3)
	go func() { _, err := sub.Recv(context.Background()); waiting <- err }()
	go func() { _, err := router.Recv(context.Background()); waiting <- err }()
	go func() { waiting <- router.WaitPeers(context.Background(), 1) }()
	cancel()
	for range cap(waiting) {
		if err := <-waiting; !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want %v", err, ErrClosed)
		}
	}
	sub.Close()
	router.Close()
	router.Close()
	if err := router.Send(t.Context(), [][]byte{{1}, {2}}); !errors.Is(err, ErrClosed) {
		t.Errorf("Send: %v", err)
	}
}

func TestSendRefuses(t *testing.T) {
	pub := listen(t, Config{Type: PUB, MaxFrames: 2})
	sub := listen(t, Config{Type: SUB})
	if err := pub.Send(t.Context(), nil); !errors.Is(err, ErrMessage) {
		t.Errorf("no frames: %v", err)
	}
	if err := pub.Send(t.Context(), make([][]byte, 3)); !errors.Is(err, ErrMessage) {
		t.Errorf("too many frames: %v", err)
	}
	if err := sub.Send(t.Context(), make([][]byte, 1)); !errors.Is(err, ErrDirection) {
		t.Errorf("a SUB sends: %v", err)
	}
	if _, err := pub.Recv(t.Context()); !errors.Is(err, ErrDirection) {
		t.Errorf("a PUB receives: %v", err)
	}
}

// TestAbandonedSocketFile: a path left by a process that died is taken over, one in use is not, nor is another kind of file.
func TestAbandonedSocketFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first := listen(t, Config{Type: PUB, Endpoint: "ipc://" + path})
	if _, err := Listen(t.Context(), Config{Type: PUB, Endpoint: "ipc://" + path}); err == nil {
		t.Error("bound twice")
	}
	first.listener.(*net.UnixListener).SetUnlinkOnClose(false) // as if killed
	first.Close()
	second := listen(t, Config{Type: PUB, Endpoint: "ipc://" + path})
	sub := dial(t, Config{Type: SUB, Endpoint: second.Endpoint()})
	expect(t, sub, "<connected>")
}
