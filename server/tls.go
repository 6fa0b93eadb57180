package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/internal/access"
	"github.com/kvoracle/kvoracle/internal/certs"
)

// reloadEvery is how often files are read again.
const reloadEvery = 2 * time.Second

// openFiles reads the certificate and the access file for the first time.
func (s *Server) openFiles() error {
	c, now := &s.cfg, time.Now()
	if c.TLSCert != "" {
		source, err := certs.Load(certs.Files{Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSClientCA, TLS12: c.TLS12}, now)
		if err != nil {
			return fmt.Errorf("server: TLSCert, TLSKey, TLSClientCA: %w", err)
		}
		s.certs = source
	}
	if c.AccessFile != "" {
		s.access = &access.File{Path: c.AccessFile}
		table, err := s.access.Read()
		if err != nil {
			return fmt.Errorf("server: AccessFile: %w", err)
		}
		s.guard.replace(table)
	}
	return nil
}

// reloader reads the files again and again until over. It has a goroutine of its own: a disk may hang.
func (s *Server) reloader(over <-chan struct{}) {
	if s.certs == nil && s.natsCerts == nil && s.access == nil {
		return
	}
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.reload(now)
		case <-over:
			return
		}
	}
}

// reload puts in force what has changed. What cannot be used is logged and counted once, and changes nothing.
func (s *Server) reload(now time.Time) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if s.certs != nil {
		changed, err := s.certs.Reload(now)
		s.reloaded("certificate", changed, err, slog.Time("not_after", s.certs.NotAfter()))
	}
	if s.natsCerts != nil { // for the next connection; the one there is goes on
		changed, err := s.natsCerts.Reload(now)
		s.reloaded("nats_certificate", changed, err, slog.Time("not_after", s.natsCerts.NotAfter()))
	}
	if s.access != nil {
		table, err := s.access.Read()
		if table != nil {
			s.guard.replace(table)
		}
		s.reloaded("access", table != nil, err, slog.Int("identities", table.Len()))
	}
}

func (s *Server) reloaded(file string, changed bool, err error, what slog.Attr) {
	switch {
	case err != nil:
		s.tel.Reloaded(file, false)
		s.log.LogAttrs(context.Background(), slog.LevelError, "a file that has changed cannot be used; the former stays in force",
			slog.String("file", file), slog.String("error", err.Error()))
	case changed:
		s.tel.Reloaded(file, true)
		s.log.LogAttrs(context.Background(), slog.LevelInfo, "a file that has changed is in force", slog.String("file", file), what)
	}
}

// clientAuth is what TLS asks of clients.
func (c *Config) clientAuth(isOptional bool) tls.ClientAuthType {
	switch {
	case c.TLSClientCA == "":
		return tls.NoClientCert
	case isOptional || c.TLSClientAuth == clientAuthOptional:
		return tls.VerifyClientCertIfGiven
	default:
		return tls.RequireAndVerifyClientCert
	}
}

// credentials are those of the gRPC port.
func (s *Server) credentials() credentials.TransportCredentials {
	if s.certs == nil {
		return greeter{insecure.NewCredentials()}
	}
	return greeter{credentials.NewTLS(s.certs.Server(s.cfg.clientAuth(false), "h2"))}
}

// greeter remembers of each connection what it proved.
type greeter struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (g greeter) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := g.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	l := &link{AuthInfo: info, host: hostOf(conn.RemoteAddr())}
	l.guest, _ = conn.(*guest)
	l.leaf = leafOf(info)
	return secure, l, nil
}

// leafOf is the certificate that a peer has shown; nil: none that was verified.
func leafOf(info credentials.AuthInfo) *x509.Certificate {
	if t, ok := info.(credentials.TLSInfo); ok && len(t.State.VerifiedChains) > 0 {
		return t.State.PeerCertificates[0]
	}
	return nil
}

// Clone implements credentials.TransportCredentials.
func (g greeter) Clone() credentials.TransportCredentials {
	return greeter{g.TransportCredentials.Clone()}
}
