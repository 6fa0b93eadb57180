package certs

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// maxFile bounds each file, in bytes: a bundle of all public authorities has a quarter of it.
const maxFile = 1 << 20

// Files names PEM files.
type Files struct {
	// Cert is the certificate with its chain, Key its private key. Both, or neither: then there is none to show.
	Cert, Key string
	// CA has the authorities whose certificates are accepted from peers. Empty: a client takes the system's, a server
	// accepts none.
	CA string
	// TLS12 accepts TLS 1.2 too.
	TLS12 bool
}

// Source is what Files say. Make it with Load.
type Source struct {
	files Files
	state atomic.Pointer[state]

	mu   sync.Mutex
	seen [sha256.Size]byte // of what was read last, good or bad
}

// state is one good set of files.
type state struct {
	cert *tls.Certificate // nil: none
	pool *x509.CertPool   // nil: none was named
}

// Load reads the files. They must be good now; later a bad set is only reported.
func Load(files Files, now time.Time) (*Source, error) {
	if (files.Cert == "") != (files.Key == "") {
		return nil, errors.New("a certificate needs its key, and a key its certificate: got one file of the two")
	}
	s := &Source{files: files}
	if _, err := s.Reload(now); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload reads the files again and says whether something new is in force. What cannot be used is an error, once for
// each thing that was read, and leaves everything as it was.
func (s *Source) Reload(now time.Time) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var texts [3][]byte
	sum := sha256.New()
	for i, path := range []string{s.files.Cert, s.files.Key, s.files.CA} {
		if path == "" {
			continue
		}
		text, e := ReadFile(path, maxFile)
		if e != nil {
			err = errors.Join(err, e)
			text = []byte(e.Error()) // a fault that stays the same is told once
		}
		texts[i] = text
		digest := sha256.Sum256(text)
		_, _ = sum.Write(digest[:]) // a hash takes everything
	}
	seen := [sha256.Size]byte(sum.Sum(nil))
	if seen == s.seen {
		return false, nil
	}
	s.seen = seen
	if err != nil {
		return false, err
	}
	next, err := parse(s.files, texts[0], texts[1], texts[2], now)
	if err != nil {
		return false, err
	}
	s.state.Store(next)
	return true, nil
}

// ReadFile reads a file of at most so many bytes.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(text)) > most:
		return nil, fmt.Errorf("%s: want at most %d bytes", path, most)
	default:
		return text, nil
	}
}

// parse makes a state of the files' contents. Its errors quote nothing of a key.
func parse(files Files, cert, key, ca []byte, now time.Time) (*state, error) {
	s := &state{}
	if files.Cert != "" {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", files.Cert, files.Key, err)
		}
		if pair.Leaf == nil {
			return nil, fmt.Errorf("%s: want a certificate", files.Cert)
		}
		if now.After(pair.Leaf.NotAfter) {
			return nil, fmt.Errorf("%s: the certificate ran out at %s", files.Cert, pair.Leaf.NotAfter.Format(time.RFC3339))
		}
		s.cert = &pair
	}
	if files.CA != "" {
		s.pool = x509.NewCertPool()
		if !s.pool.AppendCertsFromPEM(bytes.TrimSpace(ca)) {
			return nil, fmt.Errorf("%s: want certificates of authorities in PEM", files.CA)
		}
	}
	return s, nil
}

func (s *Source) least() uint16 {
	if s.files.TLS12 {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}

// Server is the configuration of a server that follows the source and speaks the given application protocols. clientAuth
// says what is asked of clients; it must not verify without Files.CA.
func (s *Source) Server(clientAuth tls.ClientAuthType, protocols ...string) *tls.Config {
	c := &tls.Config{MinVersion: s.least(), NextProtos: protocols, ClientAuth: clientAuth, SessionTicketsDisabled: true}
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := s.state.Load()
		one := &tls.Config{
			MinVersion: c.MinVersion, NextProtos: protocols, ClientAuth: clientAuth, SessionTicketsDisabled: true, ClientCAs: now.pool,
		}
		if now.cert == nil {
			return nil, errors.New("certs: there is no certificate to show")
		}
		one.Certificates = []tls.Certificate{*now.cert}
		return one, nil
	}
	return c
}

// Client is the configuration of a client for one handshake from now on. serverName is whom the server's certificate must
// name.
func (s *Source) Client(serverName string) *tls.Config {
	now := s.state.Load()
	c := &tls.Config{MinVersion: s.least(), RootCAs: now.pool, ServerName: serverName}
	if now.cert != nil {
		c.Certificates = []tls.Certificate{*now.cert}
	}
	return c
}

// NotAfter is when the certificate in force runs out; zero when there is none.
func (s *Source) NotAfter() time.Time {
	if c := s.state.Load().cert; c != nil {
		return c.Leaf.NotAfter
	}
	return time.Time{}
}
