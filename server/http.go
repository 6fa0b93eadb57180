package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/kvoracle/kvoracle/internal/gateway/direct"
	"github.com/kvoracle/kvoracle/internal/gateway/dynamo"
	"github.com/kvoracle/kvoracle/internal/gateway/httpjson"
)

// HTTPHandler is the HTTP/JSON door as a handler, for programs that serve it on a port of their own. A call goes through
// the same shedding, hooks and handlers as over gRPC; its headers are the call's metadata.
func (s *Server) HTTPHandler() http.Handler { return s.door }

// newDoor makes the HTTP/JSON door, with those for callers of Dynamo's selection service and for Envoy's ext_authz beside it.
func (s *Server) newDoor() (http.Handler, error) {
	// A number takes 4 bytes in a message and up to 11 as text, with its comma.
	body := 3 * s.cfg.MaxMessageBytes
	door, err := httpjson.New(s.local, httpjson.Config{MaxBody: body, MaxHeld: max(4*body, 256<<20)})
	if err != nil {
		return nil, err
	}
	dynamo.Mount(door, s.local, s.cfg.GatewayMaxQueue)
	door.MountBelow(authzPath, s.authz(door))
	return door, nil
}

// newHTTP makes the server of the door: HTTP/1.1 and HTTP/2, without TLS by prior knowledge. Every timeout is set.
func (s *Server) newHTTP() *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           s.door,
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      20 * time.Second, // from the headers on
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    s.cfg.MaxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: min(s.cfg.MaxConcurrentStreams, 1000)},
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, httpConn{}, c) },
	}
}

// httpConn is where a call's context has its HTTP connection.
type httpConn struct{}

// hasLeft says whether the caller has gone. A gateway that speaks HTTP gives up a call by closing its connection, which Go's HTTP
// server finds out in a goroutine of its own: on a busy machine, where calls are given up, later than the call is answered.
func hasLeft(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	c, ok := ctx.Value(httpConn{}).(net.Conn)
	return ok && isClosed(c)
}

// picksAtOnce says that no request of Envoy's waits for anything but a processor: so it need not be noticed meanwhile that its
// caller leaves.
func (s *Server) picksAtOnce() bool { return s.cfg.GatewayMaxQueue <= 0 && s.cfg.TokenizeURL == "" }

// serveHTTP serves the door until the server is going, and then lets calls end, for as long as the drain may take.
func (s *Server) serveHTTP() error {
	door := s.newHTTP()
	lis, wait := s.secure(s.web, s.cfg.clientAuth(false), "h2", "http/1.1"), func(context.Context) error { return nil }
	if s.certs == nil && s.picksAtOnce() {
		quick := direct.New(lis, direct.Config{
			Prefix: authzPath, Handler: s.door, MaxHead: s.cfg.MaxHeaderBytes, MaxBody: s.cfg.ExtProcMaxBody,
			HeadTimeout: door.ReadHeaderTimeout, ReadTimeout: door.ReadTimeout, WriteTimeout: door.WriteTimeout, IdleTimeout: door.IdleTimeout,
			ConnContext: door.ConnContext, Guard: s.rescuedLoop,
			Ended: func(how direct.Ending) { s.tel.ConnectionEnded(how.String()) },
		})
		defer func() { _ = quick.Close() }()
		lis, wait = quick, quick.Wait
	}
	ended := make(chan error, 1)
	go func() { ended <- door.Serve(lis) }()
	select {
	case err := <-ended:
		return err
	case <-s.going:
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.current.Load().DrainTimeout)
	defer cancel()
	err := errors.Join(door.Shutdown(ctx), wait(ctx))
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("HTTP calls are cut: they did not end in time")
		err = door.Close()
	}
	if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}
