package zmtp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// stranger is the other end of a socket's connection, with the bytes in the test's hands. Time is the bubble's.
type stranger struct {
	t   *testing.T
	net net.Conn
	in  *frameReader
}

// meet gives s a connection whose other end is a stranger. Within a bubble there are no real sockets.
func meet(t *testing.T, s *Socket) *stranger {
	ours, theirs := net.Pipe()
	c := s.begin(s.number(), ours)
	s.tasks.Go(func() { _, _ = s.live(c) })
	return &stranger{t, theirs, newFrameReader(theirs, &Config{MaxMessage: 1 << 20, MaxFrame: 1 << 20, MaxFrames: 9})}
}

// unbound is a socket without an endpoint.
func unbound(t *testing.T, cfg Config) *Socket {
	t.Helper()
	cfg.Endpoint = "tcp://h:1"
	s, err := newSocket(cfg, false)
	if err != nil {
		t.Fatal(err)
	}
	s.unhook = func() bool { return true }
	return s
}

func (p *stranger) write(b ...byte) {
	p.t.Helper()
	if _, err := p.net.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// introduce goes through the introduction as a peer of that kind and minor version.
func (p *stranger) introduce(kind string, minor byte) {
	p.t.Helper()
	g := greeting()
	g[11] = minor
	p.write(g...)
	if m, err := p.in.greeting(); err != nil || m != 1 {
		p.t.Fatalf("greeting: %d, %v", m, err)
	}
	p.write(encodeCommand(cmdReady, appendProperty(nil, "Socket-Type", kind))...)
	if name, _ := p.command(); name != cmdReady {
		p.t.Fatalf("got %s, want READY", name)
	}
}

// command reads a command.
func (p *stranger) command() (name string, rest []byte) {
	p.t.Helper()
	m, _, b, err := p.in.next()
	if err != nil || m != nil {
		p.t.Fatalf("got message %q, error %v, want a command", m, err)
	}
	name, rest, err = splitCommand(b)
	if err != nil {
		p.t.Fatal(err)
	}
	return name, rest
}

// ended checks that the socket hangs up, and when: what it still says is read until then.
func (p *stranger) ended(after time.Duration) {
	p.t.Helper()
	start := time.Now()
	_ = p.net.SetReadDeadline(start.Add(time.Hour))
	_, _ = io.Copy(io.Discard, p.net)
	if took := time.Since(start); took != after {
		p.t.Errorf("hung up after %v, want %v", took, after)
	}
}

// TestOldAndNewSubscriptions: a publisher of version 3.0 gets messages, one of 3.1 commands; both forms are understood by PUB.
func TestOldAndNewSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := unbound(t, Config{Type: SUB, Topics: []string{"kv"}})
		defer sub.Close()
		old, young := meet(t, sub), meet(t, sub)
		old.introduce("PUB", 0)
		if m, _, _, err := old.in.next(); err != nil || len(m) != 1 || string(m[0]) != "\x01kv" {
			t.Errorf("3.0: %q, %v", m, err)
		}
		young.introduce("XPUB", 1)
		if name, topic := young.command(); name != cmdSubscribe || string(topic) != "kv" {
			t.Errorf("3.1: %s %q", name, topic)
		}

		pub := unbound(t, Config{Type: PUB})
		defer pub.Close()
		for minor, steps := range map[byte][]struct {
			wire []byte
			want bool // a message of topic kv comes through after it
		}{
			0: {{appendFrame(nil, 0, []byte("\x01k")), true}, {appendFrame(nil, 0, []byte("\x01kv")), true}, {appendFrame(nil, 0, []byte("\x00k")), true}, {appendFrame(nil, 0, []byte("\x00kv")), false}},
			1: {{encodeCommand(cmdSubscribe, []byte("kv")), true}, {encodeCommand(cmdSubscribe, []byte("kv")), true}, {encodeCommand(cmdCancel, []byte("x")), true}, {encodeCommand(cmdCancel, []byte("kv")), true}, {encodeCommand(cmdCancel, []byte("kv")), false}},
		} {
			p := meet(t, pub)
			p.introduce("SUB", minor)
			for i, step := range steps {
				p.write(step.wire...)
				synctest.Wait()
				before := pub.Stats().Sent
				send(t, pub, "kv", "x")
				if came := pub.Stats().Sent > before; came != step.want {
					t.Errorf("3.%d, step %d: message came through: %v, want %v", minor, i, came, step.want)
				}
				if step.want {
					if m, _, _, err := p.in.next(); err != nil || len(m) != 2 {
						t.Errorf("3.%d, step %d: %q, %v", minor, i, m, err)
					}
				}
			}
		}
	})
}

// TestPeersThatMisbehave are disconnected, counted, and told if they were connected.
func TestPeersThatMisbehave(t *testing.T) {
	cfg := Config{Type: SUB, MaxMessage: 100, MaxFrames: 3, HandshakeTimeout: 10 * time.Second}
	introduced := func(wire ...byte) func(*stranger) {
		return func(p *stranger) {
			p.introduce("PUB", 1)
			p.command()
			p.write(wire...)
		}
	}
	for _, tt := range []struct {
		what      string
		do        func(*stranger)
		after     time.Duration
		violation bool
		connected bool
	}{
		{"says nothing", func(*stranger) {}, 10 * time.Second, false, false},
		{"begins and says no more", func(p *stranger) { p.write(greeting()[:40]...) }, 10 * time.Second, false, false},
		{"greets and says no more", func(p *stranger) { p.write(greeting()...) }, 10 * time.Second, false, false},
		{"speaks HTTP", func(p *stranger) { p.write('G') }, 0, true, false},
		{"is no publisher", func(p *stranger) {
			p.write(append(greeting(), encodeReady(ROUTER)...)...)
		}, 0, true, false},
		{"refuses", func(p *stranger) {
			p.write(append(greeting(), encodeCommand(cmdError, []byte("\x02no"))...)...)
		}, 0, false, false},
		{"does not introduce itself", func(p *stranger) { p.write(append(greeting(), encodePing(1)...)...) }, 0, true, false},
		{"sends before it is ready", func(p *stranger) { p.write(append(greeting(), 0, 1, 'x')...) }, 0, true, false},
		{"sets unknown flags", introduced(8), 0, true, true},
		{"announces 3 GiB", introduced(2, 0, 0, 0, 0, 0xc0, 0, 0, 0), 0, true, true},
		{"announces 16 EiB", introduced(2, 255, 255, 255, 255, 255, 255, 255, 255), 0, true, true},
		{"sends a message too large", introduced(append(appendFrame(nil, flagMore, make([]byte, 60)), 0, 41)...), 0, true, true},
		{"sends too many frames", introduced(1, 0, 1, 0, 1, 0, 1, 0), 0, true, true},
		{"sends a command too large", introduced(6, 0, 0, 0, 0, 0, 0, 0x20, 1), 0, true, true},
		{"sends a command without a name", introduced(4, 0), 0, true, true},
		{"sends a PING cut short", introduced(4, 6, 4, 'P', 'I', 'N', 'G', 0), 0, true, true},
		{"introduces itself twice", introduced(encodeReady(PUB)...), 0, true, true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := unbound(t, cfg)
				defer s.Close()
				p := meet(t, s)
				go func() { // a pipe has no buffer: what the socket says must be read meanwhile
					<-s.closed
					_ = p.net.Close()
				}()
				done := make(chan struct{})
				go func() {
					defer close(done)
					tt.do(p)
				}()
				if !tt.connected {
					p.ended(tt.after)
					<-done
				} else {
					<-done
					p.ended(tt.after)
				}
				synctest.Wait()
				st := s.Stats()
				if tt.violation != (st.Violations == 1) || tt.connected != (st.Connects == 1 && st.Disconnects == 1) || tt.connected == (st.Failures == 1) {
					t.Errorf("%+v", st)
				}
				if tt.connected {
					expect(t, s, "<connected>", "<disconnected>")
				}
				if st := s.Stats(); st.Queued != 0 || st.Peers != 0 {
					t.Errorf("left: %+v", st)
				}
			})
		})
	}
}

// TestHeartbeats: PINGs are sent and answered; a peer that has answered once and then falls silent is dropped.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unbound(t, Config{Type: SUB, Heartbeat: 2 * time.Second})
		defer s.Close()
		p := meet(t, s)
		p.introduce("PUB", 1)
		p.command()
		start := time.Now()
		for i := range 3 {
			name, rest := p.command()
			if name != cmdPing || !bytes.Equal(rest, []byte{0, 60}) {
				t.Fatalf("%s %x", name, rest)
			}
			if at := time.Since(start); at != time.Duration(i+1)*2*time.Second {
				t.Errorf("PING %d after %v", i, at)
			}
			p.write(encodeCommand(cmdPong, nil)...)
		}
		// Between the frames of a message, too.
		p.write(1, 1, 'a')
		p.write(encodeCommand(cmdPing, []byte("\x00\x00context"))...)
		p.write(0, 1, 'b')
		if name, rest := p.command(); name != cmdPong || string(rest) != "context" {
			t.Errorf("%s %q", name, rest)
		}
		expect(t, s, "<connected>", "a|b")
		p.ended(6 * time.Second)
		expect(t, s, "<disconnected>")
		if st := s.Stats(); st.Timeouts != 1 || !errors.Is(st.LastError, errSilent) {
			t.Errorf("%+v", st)
		}
	})
}

// TestSilenceIsNoFault of a peer that never answered a PING, or that speaks 3.0 and is sent none, nor while we do not read.
func TestSilenceIsNoFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unbound(t, Config{Type: SUB, Heartbeat: time.Second, QueueMessages: 1})
		defer s.Close()
		old := meet(t, s)
		old.introduce("PUB", 0)
		if m, _, _, err := old.in.next(); err != nil || len(m) != 1 {
			t.Fatal(m, err)
		}
		expect(t, s, "<connected>")
		mute := meet(t, s)
		mute.introduce("PUB", 1)
		mute.command()
		expect(t, s, "<connected>")
		go func() { _, _ = io.Copy(io.Discard, mute.net) }() // PINGs
		<-time.After(time.Hour)                              // the bubble's hour
		synctest.Wait()
		old.write(0, 1, 'a')
		expect(t, s, "a")
		mute.write(encodeCommand(cmdPong, nil)...)
		mute.write(0, 1, 'b')
		mute.write(0, 1, 'c') // finds the queue full
		<-time.After(time.Hour)
		synctest.Wait()
		expect(t, s, "b", "c")
		mute.write(0, 1, 'd')
		expect(t, s, "d")
		if st := s.Stats(); st.Timeouts != 0 || st.Peers != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// TestTTL: a peer's PING can ask to be dropped when it falls silent; what comes after it in time lifts the wish.
func TestTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unbound(t, Config{Type: ROUTER})
		defer s.Close()
		p := meet(t, s)
		p.introduce("DEALER", 1)
		p.write(4, 7, 4, 'P', 'I', 'N', 'G', 0, 25)
		if name, _ := p.command(); name != cmdPong {
			t.Error(name)
		}
		p.write(0, 1, 'x')
		<-time.After(time.Minute)
		p.write(4, 7, 4, 'P', 'I', 'N', 'G', 0, 25)
		p.ended(2500 * time.Millisecond)
	})
}

// TestPeerThatOnlyPings gets no more PONGs into our memory than it reads.
func TestPeerThatOnlyPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unbound(t, Config{Type: ROUTER})
		defer s.Close()
		p := meet(t, s)
		p.introduce("DEALER", 1)
		for range 10_000 {
			p.write(encodePing(0)...)
		}
		synctest.Wait()
		s.mu.RLock()
		out := s.peers[0].out
		s.mu.RUnlock()
		out.mu.Lock()
		defer out.mu.Unlock()
		if len(out.urgent) > maxUrgent {
			t.Errorf("%d commands wait", len(out.urgent))
		}
	})
}

// TestSubscriberOfEverythingIsBounded: a subscriber cannot have us remember topics without end.
func TestSubscriberOfEverythingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unbound(t, Config{Type: PUB})
		defer s.Close()
		p := meet(t, s)
		p.introduce("SUB", 1)
		var err error
		n := 0
		for ; n < 3*maxTopics && err == nil; n++ {
			_, err = p.net.Write(encodeSubscribe(strings.Repeat("x", n), 1))
		}
		synctest.Wait()
		if st := s.Stats(); st.Violations != 1 || n > maxTopics+2 {
			t.Errorf("%d topics: %+v", n, st)
		}
	})
}

// TestRefusedBeyondMaxPeers: who is one too many is hung up on at once.
func TestRefusedBeyondMaxPeers(t *testing.T) {
	leaksNothing(t)
	pub := listen(t, Config{Type: PUB, MaxPeers: 2})
	for range 2 {
		expect(t, dial(t, Config{Type: SUB, Endpoint: pub.Endpoint()}), "<connected>")
	}
	peers(t, pub, 2)
	third := dial(t, Config{Type: SUB, Endpoint: pub.Endpoint()})
	expect(t, third, "<failed>")
	if st := pub.Stats(); st.Refused == 0 || st.Peers != 2 {
		t.Errorf("%+v", st)
	}
}

// tape is a connection that plays bytes and then ends.
type tape struct {
	net.Conn
	r io.Reader
}

func (c tape) Read(p []byte) (int, error)      { return c.r.Read(p) }
func (c tape) Write(p []byte) (int, error)     { return len(p), nil }
func (c tape) Close() error                    { return nil }
func (c tape) SetDeadline(time.Time) error     { return nil }
func (c tape) SetReadDeadline(time.Time) error { return nil }
func (c tape) RemoteAddr() net.Addr            { return &net.UnixAddr{} }

// FuzzPeer plays anything to a socket of every type: it ends, with the counts in order, and every delivery is in order.
func FuzzPeer(f *testing.F) {
	hello := func(kind Type, more ...byte) []byte {
		return append(append(greeting(), encodeReady(kind)...), more...)
	}
	f.Add(uint8(SUB), hello(PUB, encodeMessage([][]byte{[]byte("kv"), {1}})...))
	f.Add(uint8(DEALER), hello(ROUTER, 1, 0, 0, 0))
	f.Add(uint8(PUB), hello(SUB, append(encodeSubscribe("kv", 1), encodeSubscribe("kv", 0)...)...))
	f.Add(uint8(ROUTER), hello(DEALER, encodePing(3)...))
	f.Add(uint8(SUB), []byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		s := unbound(t, Config{Type: SUB + Type(kind-1)%4, MaxMessage: 1 << 12, DropWhenFull: kind > 128, QueueMessages: 1 << 16})
		introduced, err := s.live(s.begin(s.number(), tape{r: bytes.NewReader(b)}))
		if err == nil {
			t.Error("ended without a reason")
		}
		st := s.Stats()
		if introduced != (st.Connects == 1) || introduced != (st.Disconnects == 1) || introduced == (st.Failures == 1) || st.Peers != 0 || len(s.identities) != 0 || len(s.open) != 0 {
			t.Errorf("introduced %v: %+v", introduced, st)
		}
		if introduced && s.cfg.Type != PUB {
			want := int(st.Received) + 2
			if st.Queued != want {
				t.Errorf("%d deliveries, want %d", st.Queued, want)
			}
			for i := range want {
				d, _ := s.in.poll()
				switch {
				case i == 0:
					if d.Event == nil || d.Event.Kind != Connected {
						t.Errorf("begins with %+v", d)
					}
				case i == want-1:
					if d.Event == nil || d.Event.Kind != Disconnected {
						t.Errorf("ends with %+v", d)
					}
				case len(d.Message) == 0:
					t.Errorf("message %d has no frames", i)
				}
			}
		}
		s.Close()
	})
}
