package direct

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// rig is a server with net/http behind it. Its handler says in each answer who has served it and what it has got.
type rig struct {
	t   *testing.T
	s   *Server
	web *http.Server
	at  string

	other chan string // addresses of the clients of connections that net/http has got
	ended chan Ending
}

// wantEnd waits for the end of a connection.
func (r *rig) wantEnd(want Ending) {
	r.t.Helper()
	select {
	case got := <-r.ended:
		if got != want {
			r.t.Errorf("a connection is counted as %v, want %v", got, want)
		}
	case <-time.After(time.Minute):
		r.t.Errorf("no connection has ended, want %v", want)
	}
}

const (
	byUs    = "us"
	byOther = "net/http"
)

type whoKey struct{}

func handle(w http.ResponseWriter, r *http.Request) {
	who, _ := r.Context().Value(whoKey{}).(string)
	if r.Header.Get("X-Panic") != "" {
		panic("asked for")
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
	}
	w.Header().Set("X-By", who)
	names := make([]string, 0, len(r.Header))
	for name, values := range r.Header {
		names = append(names, name+"="+strings.Join(values, "|"))
	}
	slices.Sort(names)
	_, _ = fmt.Fprintf(w, "%s %s %s %q %d %q", r.Method, r.Host, r.URL.String(), names, r.ContentLength, body)
}

func start(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, lis, change)
}

func startOn(t *testing.T, lis net.Listener, change func(*Config)) *rig {
	t.Helper()
	ended := make(chan Ending, 1000)
	cfg := Config{
		Prefix: "/ours/", Handler: http.HandlerFunc(handle), MaxHead: 1000, MaxBody: 100_000,
		HeadTimeout: time.Minute, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context { return context.WithValue(ctx, whoKey{}, byUs) },
		Guard: func(_ context.Context, f func() error) (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("%v", p)
				}
			}()
			return f()
		},
		Ended: func(how Ending) { ended <- how },
	}
	if change != nil {
		change(&cfg)
	}
	r := &rig{t: t, s: New(lis, cfg), at: lis.Addr().String(), other: make(chan string, 1000), ended: ended}
	r.web = &http.Server{
		Handler: cfg.Handler, ReadHeaderTimeout: time.Minute,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, whoKey{}, byOther)
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateNew {
				r.other <- c.RemoteAddr().String()
			}
		},
	}
	served := make(chan error, 1)
	go func() { served <- r.web.Serve(r.s) }()
	t.Cleanup(func() {
		_ = r.web.Close()
		if err := r.s.Wait(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return r
}

// dial opens a connection, on which nothing takes longer than a minute.
func (r *rig) dial() *net.TCPConn {
	r.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(r.t.Context(), "tcp", r.at)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// waitOther waits until net/http has got a client's connection.
func (r *rig) waitOther(conn net.Conn) {
	r.t.Helper()
	for {
		select {
		case at := <-r.other:
			if at == conn.LocalAddr().String() {
				return
			}
		case <-time.After(30 * time.Second):
			r.t.Fatal("net/http has not got the connection")
		}
	}
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// answerOf reads the next answer: who gave it, its code and its body.
func answerOf(t *testing.T, in *bufio.Reader) (by string, code int, body string, isLast bool) {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Get("X-By"), resp.StatusCode, string(b), resp.Close
}

const ask = "POST /ours/a?b=c HTTP/1.1\r\nHost: h\r\nX-One: 1\r\nContent-Length: 4\r\n\r\nbody"

const asked = `POST h /ours/a?b=c ["Content-Length=4" "X-One=1"] 4 "body"`

// A connection is served for as long as its requests are ours, also those that have come together and bodies that come later; from
// the first other one on it is net/http's, with all that was read of it.
func TestConnectionIsOursUntilItIsNot(t *testing.T) {
	r := start(t, nil)
	conn := r.dial()
	in := bufio.NewReader(conn)
	next := func(wantBy, wantBody string) {
		t.Helper()
		by, code, body, isLast := answerOf(t, in)
		if by != wantBy || code != http.StatusOK || isLast {
			t.Errorf("got %d by %q, last: %v; want 200 by %q", code, by, isLast, wantBy)
		}
		if diff := cmp.Diff(wantBody, body); diff != "" {
			t.Error(diff)
		}
	}
	write(t, conn, ask)
	next(byUs, asked)
	write(t, conn, ask+ask)
	next(byUs, asked)
	next(byUs, asked)
	long := strings.Repeat("x", 50_000)
	write(t, conn, "PUT /ours/ HTTP/1.1\r\nhost: h\r\ncontent-length: 50000\r\n\r\n"+long[:20_000])
	write(t, conn, long[20_000:])
	next(byUs, fmt.Sprintf("PUT h /ours/ [\"Content-Length=50000\"] 50000 %q", long))
	write(t, conn, "GET /ours/none HTTP/1.1\r\nHost: h\r\n\r\n"+"GET /theirs HTTP/1.1\r\nHost: h\r\n\r\n"+ask)
	next(byUs, `GET h /ours/none [] 0 ""`)
	next(byOther, `GET h /theirs [] 0 ""`)
	next(byOther, asked)
	r.wantEnd(Handed)
	write(t, conn, ask)
	next(byOther, asked)
	conn = r.dial()
	in = bufio.NewReader(conn)
	write(t, conn, ask)
	next(byUs, asked)
	_ = conn.Close()
	r.wantEnd(Left)
}

// Of a connection that was handed on it can be asked whether the other side has left, as of any other.
func TestHandedConnectionHasItsFile(t *testing.T) {
	conn := start(t, nil).dial()
	raw, err := (&handed{Conn: conn}).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	hasFile := false
	if err := raw.Control(func(uintptr) { hasFile = true }); err != nil || !hasFile {
		t.Errorf("got %v, %v", hasFile, err)
	}
	one, other := net.Pipe()
	defer func() { _, _ = one.Close(), other.Close() }()
	if _, err := (&handed{Conn: one}).SyscallConn(); err == nil {
		t.Error("a pipe has a file")
	}
}

// What is not plain, or not there as a whole, is net/http's to judge.
func TestDoubtfulIsLeftToNetHTTP(t *testing.T) {
	r := start(t, nil)
	long := strings.Repeat("x", 100_001)
	for _, c := range []struct {
		name, text string
		want       int
	}{
		{"chunks", "POST /ours/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 200},
		{"both lengths", "POST /ours/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n1\r\na\r\n0\r\n\r\n", 200},
		{"two lengths", "POST /ours/ HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
		{"a signed length", "POST /ours/ HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\na", 400},
		{"no host", "POST /ours/ HTTP/1.1\r\nContent-Length: 1\r\n\r\na", 400},
		{"two hosts", "POST /ours/ HTTP/1.1\r\nHost: h\r\nHost: i\r\nContent-Length: 1\r\n\r\na", 400},
		{"an old version", "GET /ours/ HTTP/1.0\r\nHost: h\r\n\r\n", 200},
		{"a folded line", "GET /ours/ HTTP/1.1\r\nHost: h\r\nX-A: 1\r\n 2\r\n\r\n", 200},
		{"a space before the colon", "GET /ours/ HTTP/1.1\r\nHost: h\r\nX-A : 1\r\n\r\n", 400},
		{"bare line feeds", "GET /ours/ HTTP/1.1\nHost: h\n\n", 200},
		{"a body beyond the limit", "POST /ours/ HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\n\r\n" + long, 200},
		{"a head beyond the limit", "GET /ours/ HTTP/1.1\r\nHost: h\r\nX-A: " + long[:1000] + "\r\n\r\n", 200},
		{"a wish to close", "GET /ours/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200},
		{"a wish to be told to go on", "POST /ours/ HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na", 100},
		{"a wish for what is new", "GET /ours/ HTTP/1.1\r\nHost: h\r\nPragma: no-cache\r\n\r\n", 200},
		{"a byte that is no text", "GET /ours/ HTTP/1.1\r\nHost: h\r\nX-A: a\x00b\r\n\r\n", 400},
		{"a method that is none", "G(T /ours/ HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"no path", "GET * HTTP/1.1\r\nHost: h\r\n\r\n", 200},
		{"nonsense", "\x16\x03\x01\x00\x00\r\n\r\n", 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := r.dial()
			write(t, conn, c.text)
			by, code, _, _ := answerOf(t, bufio.NewReader(conn))
			if by == byUs || code != c.want {
				t.Errorf("got %d by %q, want %d by net/http", code, by, c.want)
			}
		})
	}
	t.Run("a head in two pieces", func(t *testing.T) {
		conn := r.dial()
		write(t, conn, ask[:20])
		r.waitOther(conn)
		write(t, conn, ask[20:])
		if by, code, body, _ := answerOf(t, bufio.NewReader(conn)); by != byOther || code != http.StatusOK || body != asked {
			t.Errorf("got %d by %q: %s", code, by, body)
		}
	})
}

// A body that ends early is an error to its handler, and the end of its connection.
func TestCutBody(t *testing.T) {
	r := start(t, nil)
	conn := r.dial()
	write(t, conn, ask[:len(ask)-2])
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if by, code, _, _ := answerOf(t, in); by != byUs || code != http.StatusBadRequest {
		t.Errorf("got %d by %q", code, by)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the connection's end", err)
	}
}

// What a handler leaves of a body is read, so that the next request is found.
func TestBodyThatIsNotRead(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	})
	conn := r.dial()
	in := bufio.NewReader(conn)
	for range 2 {
		write(t, conn, "POST /ours/ HTTP/1.1\r\nHost: h\r\nContent-Length: 50000\r\n\r\n"+strings.Repeat("x", 50_000))
		if _, code, _, _ := answerOf(t, in); code != http.StatusTeapot {
			t.Errorf("got %d", code)
		}
	}
}

// An answer goes out once: at the first flush, and what comes after it is refused. No header makes lines of its own.
func TestAnswerGoesOutOnce(t *testing.T) {
	late := make(chan error, 8)
	r := start(t, func(c *Config) {
		c.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-A", "1\r\nX-B: 2")
			w.Header().Set("Content-Length", "77")
			if r.Header.Get("X-One") != "" {
				w.Header()["Date"] = nil
			}
			_, _ = io.WriteString(w, "first")
			w.WriteHeader(http.StatusTeapot) // too late
			late <- http.NewResponseController(w).Flush()
			_, err := io.WriteString(w, "second")
			late <- err
		})
	})
	conn := r.dial()
	in := bufio.NewReader(conn)
	for _, hasDate := range []bool{false, true} {
		text := ask
		if hasDate {
			text = strings.Replace(ask, "X-One", "X-Two", 1)
		}
		write(t, conn, text)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "first" || resp.StatusCode != http.StatusOK {
			t.Errorf("got %d %q %v", resp.StatusCode, body, err)
		}
		if a, b := resp.Header.Get("X-A"), resp.Header.Get("X-B"); a != "1  X-B: 2" || b != "" {
			t.Errorf("got headers %q and %q", a, b)
		}
		if got := resp.Header.Get("Date") != ""; got != hasDate {
			t.Errorf("has a date: %v, want %v", got, hasDate)
		}
		if flush, more := <-late, <-late; flush != nil || !errors.Is(more, errSent) {
			t.Errorf("got %v and %v", flush, more)
		}
	}
	write(t, conn, "HEAD /ours/ HTTP/1.1\r\nHost: h\r\n\r\n"+ask)
	resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodHead})
	if err != nil || resp.ContentLength != 5 {
		t.Fatalf("got %v, %v", resp, err)
	}
	_ = resp.Body.Close()
	if _, code, body, _ := answerOf(t, in); code != http.StatusOK || body != "first" {
		t.Errorf("after HEAD came %d %q", code, body)
	}
}

// Connections that are silent for too long are closed: new ones, idle ones, and those of which a body does not come.
func TestSilence(t *testing.T) {
	short := 50 * time.Millisecond
	for name, c := range map[string]struct {
		change func(*Config)
		first  string
		want   int
		end    Ending
	}{
		"new":  {func(c *Config) { c.HeadTimeout = short }, "", 0, Silent},
		"idle": {func(c *Config) { c.IdleTimeout = short }, ask, http.StatusOK, Silent},
		"body": {func(c *Config) { c.ReadTimeout = short }, ask[:len(ask)-1], http.StatusBadRequest, Broken},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.change)
			conn := r.dial()
			in := bufio.NewReader(conn)
			write(t, conn, c.first)
			if c.want > 0 {
				if by, code, _, _ := answerOf(t, in); by != byUs || code != c.want {
					t.Errorf("got %d by %q, want %d", code, by, c.want)
				}
			}
			if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("got %v, want the connection's end", err)
			}
			r.wantEnd(c.end)
		})
	}
}

// A panic takes its connection along, and nothing else.
func TestPanicEndsItsConnection(t *testing.T) {
	r := start(t, nil)
	conn := r.dial()
	write(t, conn, strings.Replace(ask, "X-One", "X-Panic", 1))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the connection's end", err)
	}
	r.wantEnd(Broken)
	conn = r.dial()
	write(t, conn, ask)
	if by, code, _, _ := answerOf(t, bufio.NewReader(conn)); by != byUs || code != http.StatusOK {
		t.Errorf("got %d by %q", code, by)
	}
}

// At the end idle connections are closed and nothing more is accepted; a request under way is answered, and said to be the last.
func TestCloseLetsRequestsEnd(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	r := start(t, func(c *Config) {
		c.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-One") != "" {
				close(begun)
				<-release
			}
			handle(w, r)
		})
	})
	idle, fresh, busy := r.dial(), r.dial(), r.dial()
	in := bufio.NewReader(idle)
	write(t, idle, "GET /ours/ HTTP/1.1\r\nHost: h\r\n\r\n")
	answerOf(t, in)
	write(t, busy, ask+"GET /ours/ HTTP/1.1\r\nHost: h\r\n\r\n") // whose second will not be answered
	<-begun
	if err := r.s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("an idle connection: got %v, want its end", err)
	}
	if _, err := fresh.Read(make([]byte, 1)); err == nil {
		t.Error("a new connection was answered")
	}
	if c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.at); err == nil {
		_ = c.Close()
		t.Error("a connection was accepted after the end")
	}
	r.wantEnd(Closing)
	if _, err := r.s.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: got %v, want net.ErrClosed", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- r.s.Wait(t.Context()) }()
	select {
	case err := <-waited:
		t.Errorf("waited for nothing: %v", err)
	default:
	}
	close(release)
	in = bufio.NewReader(busy)
	if by, code, body, isLast := answerOf(t, in); by != byUs || code != http.StatusOK || body != asked || !isLast {
		t.Errorf("got %d by %q, last: %v: %s", code, by, isLast, body)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the connection's end", err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	r.wantEnd(Closing)
}

// noticed tells when its connections are about to be handed on.
type noticed struct {
	net.Listener
	told chan struct{}
}

// Accept implements net.Listener.
func (l noticed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &noticedConn{c, l.told}, err
}

type noticedConn struct {
	net.Conn
	told chan struct{}
}

// SetDeadline implements net.Conn.
func (c *noticedConn) SetDeadline(t time.Time) error {
	close(c.told)
	return c.Conn.SetDeadline(t)
}

// A connection that nobody takes any more is closed with the server.
func TestCloseEndsWhatIsHandedToNobody(t *testing.T) {
	r := start(t, nil)
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := noticed{lis, make(chan struct{})}
	s := New(l, r.s.cfg) // of which nobody accepts
	r.at = lis.Addr().String()
	conn := r.dial()
	write(t, conn, "GET /theirs HTTP/1.1\r\nHost: h\r\n\r\n")
	<-l.told
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("it was answered")
	}
	r.wantEnd(Closing)
	if err := s.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// Who waits no longer cuts what is still busy.
func TestWaitCuts(t *testing.T) {
	begun := make(chan struct{})
	r := start(t, func(c *Config) {
		c.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(begun)
			_, _ = io.Copy(io.Discard, r.Body)
		})
	})
	conn := r.dial()
	write(t, conn, ask[:len(ask)-1])
	<-begun
	_ = r.s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.s.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// flaky accepts nothing at first.
type flaky struct {
	net.Listener
	errs chan error
}

func (f flaky) Accept() (net.Conn, error) {
	select {
	case err := <-f.errs:
		return nil, err
	default:
		return f.Listener.Accept()
	}
}

// tired is what a process out of files gets.
type tired struct{ error }

func (tired) Timeout() bool   { return false }
func (tired) Temporary() bool { return true }

// An error of the listener goes to net/http, which waits and goes on.
func TestAcceptErrorIsPassedOn(t *testing.T) {
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := flaky{lis, make(chan error, 2)}
	f.errs <- tired{errors.New("no files")}
	f.errs <- tired{errors.New("no files")}
	r := startOn(t, f, nil)
	conn := r.dial()
	write(t, conn, ask)
	if by, code, _, _ := answerOf(t, bufio.NewReader(conn)); by != byUs || code != http.StatusOK {
		t.Errorf("got %d by %q", code, by)
	}
	if n := len(f.errs); n != 0 {
		t.Errorf("%d errors were not heard", n)
	}
}
