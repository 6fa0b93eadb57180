package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/internal/certs"
)

// Security says how a connection to the oracle is protected, and who this end of it is. The zero value is TLS with the
// authorities that the system trusts, and nobody in particular.
//
// Files are read again as they change: certificates and authorities at the next handshake, a token within ten seconds. What
// cannot be read then is logged, and the former stays.
type Security struct {
	// Plaintext is no TLS at all: right for loopback. A token then travels in plain.
	Plaintext bool
	// CAFile is a PEM file with the authorities that may sign for the oracle. Empty: those of the system.
	CAFile string
	// CertFile and KeyFile are PEM files with this end's certificate and key, for an oracle that knows its callers by them.
	// Empty: none is shown.
	CertFile, KeyFile string
	// ServerName is whom the oracle's certificate must name. Empty: the host that is dialled.
	ServerName string
	// TLS12 accepts TLS 1.2 beside 1.3.
	TLS12 bool
	// Token is sent with every call. Empty: TokenFile's, or none.
	Token string
	// TokenFile is a file with a token and nothing else but white space around it. Not both.
	TokenFile string
	// Log hears of files that cannot be used. nil: nobody does.
	Log *slog.Logger
}

// DialOptions are for grpc.NewClient. The files must be good now.
func (s Security) DialOptions() ([]grpc.DialOption, error) {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	transport, err := s.transport()
	if err != nil {
		return nil, err
	}
	opts := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	if s.Token == "" && s.TokenFile == "" {
		return opts, nil
	}
	t, err := newToken(&s, time.Now())
	if err != nil {
		return nil, err
	}
	return append(opts, grpc.WithPerRPCCredentials(t)), nil
}

func (s *Security) transport() (credentials.TransportCredentials, error) {
	if s.Plaintext {
		if s.CAFile+s.CertFile+s.KeyFile+s.ServerName != "" || s.TLS12 {
			return nil, invalid("Security.Plaintext", "want no other field for TLS beside it")
		}
		return insecure.NewCredentials(), nil
	}
	source, err := certs.Load(certs.Files{Cert: s.CertFile, Key: s.KeyFile, CA: s.CAFile, TLS12: s.TLS12}, time.Now())
	if err != nil {
		return nil, invalid("Security", err.Error())
	}
	return &handshaker{source: source, serverName: s.ServerName, log: s.Log}, nil
}

// handshaker is TLS by what the files say at each handshake.
type handshaker struct {
	source     *certs.Source
	serverName string
	log        *slog.Logger
}

var _ credentials.TransportCredentials = (*handshaker)(nil)

// ClientHandshake implements credentials.TransportCredentials.
func (h *handshaker) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if _, err := h.source.Reload(time.Now()); err != nil {
		h.log.LogAttrs(ctx, slog.LevelError, "a file of TLS that has changed cannot be used; the former stays in force", slog.String("error", err.Error()))
	}
	return credentials.NewTLS(h.source.Client(h.serverName)).ClientHandshake(ctx, authority, conn)
}

// ServerHandshake implements credentials.TransportCredentials; this is no server.
func (*handshaker) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("kvoracle: credentials of a client")
}

// Info implements credentials.TransportCredentials.
func (h *handshaker) Info() credentials.ProtocolInfo {
	return credentials.NewTLS(h.source.Client(h.serverName)).Info()
}

// Clone implements credentials.TransportCredentials.
func (h *handshaker) Clone() credentials.TransportCredentials {
	c := *h
	return &c
}

// OverrideServerName implements credentials.TransportCredentials.
func (h *handshaker) OverrideServerName(name string) error {
	h.serverName = name
	return nil
}

// tokenEvery is how often a token's file is read at most.
const tokenEvery = 10 * time.Second

// token is a bearer token that follows its file.
type token struct {
	file        string
	isProtected bool
	log         *slog.Logger
	header      atomic.Pointer[map[string]string] // never changed: gRPC copies it

	mu   sync.Mutex
	next time.Time // when the file is read again
	bad  bool      // it could not be used, and that was told
}

func newToken(s *Security, now time.Time) (*token, error) {
	t := &token{file: s.TokenFile, isProtected: !s.Plaintext, log: s.Log, next: now.Add(tokenEvery)}
	text := s.Token
	switch {
	case s.Token != "" && s.TokenFile != "":
		return nil, invalid("Security.TokenFile", "want a token or a file with one, not both")
	case s.TokenFile != "":
		var err error
		if text, err = readToken(s.TokenFile); err != nil {
			return nil, invalid("Security.TokenFile", err.Error())
		}
	}
	t.set(text)
	return t, nil
}

func (t *token) set(text string) {
	t.header.Store(&map[string]string{"authorization": "Bearer " + text})
}

// readToken reads a file with one word in it. Errors do not quote it.
func readToken(path string) (string, error) {
	const most = 512 // bytes; the oracle knows no longer ones
	text, err := certs.ReadFile(path, 2*most)
	if err != nil {
		return "", err
	}
	words := bytes.Fields(text)
	if len(words) != 1 || len(words[0]) > most {
		return "", fmt.Errorf("%s: want one token of at most %d bytes", path, most)
	}
	return string(words[0]), nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t *token) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	if t.file != "" {
		t.follow(ctx, time.Now())
	}
	return *t.header.Load(), nil
}

// follow reads the file when it is time. One caller does; the others go on with what there is.
func (t *token) follow(ctx context.Context, now time.Time) {
	if !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	if now.Before(t.next) {
		return
	}
	t.next = now.Add(tokenEvery)
	text, err := readToken(t.file)
	if err == nil {
		t.set(text)
	} else if !t.bad {
		t.log.LogAttrs(ctx, slog.LevelError, "a token's file cannot be used; the former token stays", slog.String("error", err.Error()))
	}
	t.bad = err != nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (t *token) RequireTransportSecurity() bool { return t.isProtected }
