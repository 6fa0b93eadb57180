package server

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// errUsed refuses a second life.
var errUsed = errors.New("server: it was run or closed already; make a new one")

// Listen opens the ports of the configuration. Run does it by itself; calling it before tells the caller that the ports
// are there, and which. Connections are accepted from now on and answered once Run is called.
func (s *Server) Listen(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUsed {
		return errUsed
	}
	if s.lis != nil {
		return nil
	}
	lis, err := open(ctx, "Listen", s.cfg.Listen)
	if err != nil {
		return err
	}
	if err := s.openOthers(ctx); err != nil {
		return errors.Join(err, lis.Close())
	}
	s.lis = lis
	return nil
}

// openOthers opens the ports besides gRPC's, if there are to be any. mu is held.
func (s *Server) openOthers(ctx context.Context) error {
	for _, p := range []struct {
		field, address string
		lis            *net.Listener
	}{{"OpsListen", s.cfg.OpsListen, &s.ops}, {"HTTPListen", s.cfg.HTTPListen, &s.web}} {
		if p.address == "" || *p.lis != nil {
			continue
		}
		lis, err := open(ctx, p.field, p.address)
		if err != nil {
			return err // what is open is closed by Close
		}
		*p.lis = lis
	}
	return nil
}

func open(ctx context.Context, field, address string) (net.Listener, error) {
	var lis net.Listener
	var err error
	if path, isUnix := socketPath(address); isUnix {
		lis, err = openSocket(ctx, path)
	} else {
		lis, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	}
	if err != nil {
		return nil, fmt.Errorf("server: %s: %w", field, err)
	}
	return lis, nil
}

// Addr is the address of the gRPC service; nil before it listens.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lis == nil {
		return nil
	}
	return s.lis.Addr()
}

// OpsAddr is the address of the operator's HTTP server; nil before it listens, and when there is none.
func (s *Server) OpsAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ops == nil {
		return nil
	}
	return s.ops.Addr()
}

// HTTPAddr is the address of the HTTP/JSON door; nil before it listens, and when there is none.
func (s *Server) HTTPAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.web == nil {
		return nil
	}
	return s.web.Addr()
}

// take gives the ports to the one call that may serve on them. A listener that is handed in is served instead of the
// configured port.
func (s *Server) take(ctx context.Context, lis net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUsed {
		return errUsed
	}
	if lis != nil {
		if err := s.openOthers(ctx); err != nil {
			return err
		}
		s.lis = lis
	}
	s.isUsed = true
	return nil
}

// Close gives up a server that was never run: its ports and its exporters. After Run or Serve it does nothing; those
// end by their context.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUsed {
		return nil
	}
	s.isUsed = true
	var errs []error
	for _, lis := range []net.Listener{s.lis, s.ops, s.web} {
		if lis != nil {
			errs = append(errs, lis.Close())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return errors.Join(append(errs, s.warm.close(), s.tel.Shutdown(ctx))...)
}
