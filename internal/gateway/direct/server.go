package direct

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Config says what is served. All of it must be set.
type Config struct {
	// Prefix is what the paths of our requests begin with; it begins and ends with a slash.
	Prefix string
	// Handler answers our requests. It writes whole answers and does not wait; see the package comment.
	Handler http.Handler
	// MaxHead and MaxBody are the longest head and body of ours, in bytes; net/http gets what is longer, and a head of more than
	// 16 KiB.
	MaxHead, MaxBody int
	// HeadTimeout is how long a new connection may be silent, ReadTimeout how long a request may take to come, from its first byte,
	// WriteTimeout how long its answer may take to go, and IdleTimeout how long a connection may be idle.
	HeadTimeout, ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	// ConnContext gives the context of a connection's requests.
	ConnContext func(ctx context.Context, c net.Conn) context.Context
	// Guard runs a connection, and makes an error of a panic there.
	Guard func(ctx context.Context, f func() error) error
	// Ended is told how each connection has ended.
	Ended func(how Ending)
}

// Server is a listener in front of net/http's: it serves what is ours, and other connections come out of Accept. Make it with New.
// Its methods may be called concurrently.
type Server struct {
	cfg   Config
	lis   net.Listener
	other chan accepted
	done  chan struct{} // closed with it
	ended sync.WaitGroup

	mu        sync.Mutex
	isClosing bool
	idle      map[net.Conn]bool // whether a connection waits for a request; those that are not here are not ours any more
}

type accepted struct {
	conn net.Conn
	err  error
}

// New serves what comes by a listener, until Close.
func New(lis net.Listener, cfg Config) *Server {
	s := &Server{cfg: cfg, lis: lis, other: make(chan accepted), done: make(chan struct{}), idle: make(map[net.Conn]bool)}
	s.ended.Go(s.acceptAll)
	return s
}

// Accept implements net.Listener: it gives the connections that are not ours.
func (s *Server) Accept() (net.Conn, error) {
	select {
	case <-s.done:
		return nil, net.ErrClosed
	default:
	}
	select {
	case a := <-s.other:
		return a.conn, a.err
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (s *Server) Addr() net.Addr { return s.lis.Addr() }

// Close implements net.Listener: no connections are accepted from now on, idle ones are closed, and each busy one is when its
// request is answered. Wait waits for these.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosing {
		return nil
	}
	s.isClosing = true
	close(s.done)
	for conn, isIdle := range s.idle {
		if isIdle {
			_ = conn.Close()
		}
	}
	return s.lis.Close()
}

// Wait waits until all is closed, and closes what is still busy when the context ends.
func (s *Server) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for conn := range s.idle {
			_ = conn.Close()
		}
	})
	s.ended.Wait()
	if !stop() {
		return ctx.Err()
	}
	return nil
}

// acceptAll gives every connection a goroutine. An error goes to whoever calls Accept, and knows what to do about it.
func (s *Server) acceptAll() {
	for {
		conn, err := s.lis.Accept()
		switch {
		case err == nil:
			s.ended.Go(func() {
				// A panic is counted and logged by the guard, and takes its connection along.
				_ = s.cfg.Guard(context.Background(), func() error { return s.serve(conn) })
			})
		case errors.Is(err, net.ErrClosed):
			return
		default:
			if !s.pass(accepted{err: err}) {
				return
			}
		}
	}
}

// pass hands something to whoever calls Accept, if somebody still does.
func (s *Server) pass(a accepted) bool {
	select {
	case s.other <- a:
		return true
	case <-s.done:
		return false
	}
}

// mark notes that a connection is idle or busy. false: the server is closing, and it must not go on.
func (s *Server) mark(conn net.Conn, isIdle bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle[conn] = isIdle
	return !s.isClosing || !isIdle
}

// closes says whether the server is closing.
func (s *Server) closes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isClosing
}

func (s *Server) forget(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.idle, conn)
}

// buffered is what is read of a connection at once: a head, and most bodies with it.
const buffered = 16 << 10

// serve answers a connection's requests, or hands it on.
func (s *Server) serve(conn net.Conn) error {
	how := Broken
	defer func() {
		s.forget(conn)
		if how != Handed {
			_ = conn.Close()
		}
		s.cfg.Ended(how)
	}()
	ctx, cancel := context.WithCancel(s.cfg.ConnContext(context.Background(), conn))
	defer cancel()
	b := &bytesOf{conn: conn, buf: make([]byte, buffered)}
	a := &answer{s: s, conn: conn, timeout: s.cfg.WriteTimeout, header: make(http.Header)}
	remote, patience := conn.RemoteAddr().String(), s.cfg.HeadTimeout
	for {
		if b.from == b.to {
			b.from, b.to = 0, 0
			if !s.mark(conn, true) {
				how = Closing
				return nil
			}
			if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
				return err
			}
			if err := b.fill(); err != nil {
				how = s.whileIdle(err)
				return err
			}
		}
		s.mark(conn, false)
		if err := conn.SetReadDeadline(time.Now().Add(s.cfg.ReadTimeout)); err != nil {
			return err
		}
		r, n := head(b.buf[b.from:b.to], s.cfg.Prefix)
		if n == 0 || n > s.cfg.MaxHead || r.ContentLength > int64(s.cfg.MaxBody) {
			s.forget(conn)
			if err := conn.SetDeadline(time.Time{}); err != nil {
				return err
			}
			if how = Closing; s.pass(accepted{conn: &handed{Conn: conn, first: b.buf[b.from:b.to]}}) {
				how = Handed
			}
			return nil
		}
		b.from += n
		b.left = int(r.ContentLength)
		r.Body, r.RemoteAddr = b, remote
		if r.ContentLength == 0 {
			r.Body = http.NoBody
		}
		if err := s.answer(a, r.WithContext(ctx), b); err != nil {
			return err
		}
		if a.isLast {
			how = Closing
			return nil
		}
		patience = s.cfg.IdleTimeout
	}
}

// answer has a request answered, and what is left of its body read.
func (s *Server) answer(a *answer, r *http.Request, b *bytesOf) error {
	clear(a.header)
	a.code, a.body, a.isSent, a.err, a.isHead = 0, a.body[:0], false, nil, r.Method == http.MethodHead
	s.cfg.Handler.ServeHTTP(a, r)
	if err := a.FlushError(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, b)
	return err
}

// bytesOf are a connection's. As a reader it is the body of the request under way.
type bytesOf struct {
	conn     net.Conn
	buf      []byte
	from, to int // what was read and not taken
	left     int // of the body
}

// fill reads more; the buffer is empty.
func (b *bytesOf) fill() error {
	n, err := b.conn.Read(b.buf)
	b.from, b.to = 0, n
	if n > 0 {
		return nil
	}
	return err
}

// Read implements io.Reader.
func (b *bytesOf) Read(p []byte) (n int, err error) {
	switch {
	case b.left == 0:
		return 0, io.EOF
	case b.from < b.to:
		n = copy(p[:min(len(p), b.left)], b.buf[b.from:b.to])
		b.from += n
	default:
		if n, err = b.conn.Read(p[:min(len(p), b.left)]); n > 0 {
			err = nil
		}
	}
	b.left -= n
	switch {
	case b.left == 0:
		return n, io.EOF
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close implements io.Closer: what is left is read when the request is answered.
func (b *bytesOf) Close() error { return nil }
