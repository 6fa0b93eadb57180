package certs_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/certs"
	"github.com/kvoracle/kvoracle/internal/certs/certstest"
)

// serve answers every connection with one byte once the handshake is over.
func serve(t *testing.T, c *tls.Config) string {
	t.Helper()
	lis, err := tls.Listen("tcp", "127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = conn.Write([]byte{1})
				_ = conn.Close()
			}()
		}
	}()
	return lis.Addr().String()
}

// meet shakes hands and says which certificate the server showed.
func meet(t *testing.T, addr string, c *tls.Config) (serial string, err error) {
	t.Helper()
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Minute}, Config: c}
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil { // a client's certificate is looked at after its handshake
		return "", err
	}
	s, ok := conn.(*tls.Conn)
	if !ok {
		t.Fatal("no TLS")
	}
	return s.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

func load(t *testing.T, f certs.Files) *certs.Source {
	t.Helper()
	s, err := certs.Load(f, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRotationAndBadFiles(t *testing.T) {
	ca := certstest.NewCA(t)
	cert, key := ca.Issue("server", certstest.Leaf{})
	s := load(t, certs.Files{Cert: cert, Key: key})
	client := load(t, certs.Files{CA: ca.File})
	addr := serve(t, s.Server(tls.NoClientCert))

	shown := func() string {
		t.Helper()
		serial, err := meet(t, addr, client.Client("127.0.0.1"))
		if err != nil {
			t.Fatal(err)
		}
		return serial
	}
	reload := func(wantChanged, wantErr bool, at time.Time) {
		t.Helper()
		if changed, err := s.Reload(at); changed != wantChanged || (err != nil) != wantErr {
			t.Fatalf("changed %v, error %v; want %v, %v", changed, err, wantChanged, wantErr)
		}
	}
	first := shown()
	reload(false, false, time.Now())

	ca.Issue("server", certstest.Leaf{})
	if got := shown(); got != first {
		t.Error("a new certificate is in force before Reload")
	}
	reload(true, false, time.Now())
	second := shown()
	if second == first {
		t.Error("the new certificate is not in force")
	}

	// Each of these is told once, and the second certificate stays.
	good, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	_, foreign := ca.Issue("other", certstest.Leaf{})
	other, err := os.ReadFile(foreign)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"garbage": []byte("-----BEGIN nothing"), "another's key": other, "empty": nil, "huge": make([]byte, 2<<20)} {
		if err := os.WriteFile(key, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		reload(false, true, time.Now())
		reload(false, false, time.Now())
		if got := shown(); got != second {
			t.Errorf("%s: another certificate is in force", name)
		}
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	reload(false, true, time.Now())
	reload(false, false, time.Now())
	if err := os.WriteFile(key, good, 0o600); err != nil {
		t.Fatal(err)
	}
	reload(true, false, time.Now()) // what was good is good again
	ca.Issue("server", certstest.Leaf{NotAfter: time.Now().Add(-time.Hour)})
	reload(false, true, time.Now())
	if got := shown(); got != second {
		t.Error("the certificate in force gave way to one that had run out")
	}
}

func TestClientsAreCheckedAgainstTheAuthoritiesOfToday(t *testing.T) {
	ours, theirs := certstest.NewCA(t), certstest.NewCA(t)
	cert, key := ours.Issue("server", certstest.Leaf{})
	bundle := filepath.Join(t.TempDir(), "clients.pem")
	trust := func(from string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(bundle, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	trust(ours.File)
	s := load(t, certs.Files{Cert: cert, Key: key, CA: bundle})
	addr := serve(t, s.Server(tls.RequireAndVerifyClientCert))
	client := func(ca *certstest.CA) *tls.Config {
		c, k := ca.Issue("client", certstest.Leaf{DNS: []string{"client"}})
		return load(t, certs.Files{Cert: c, Key: k, CA: ours.File}).Client("127.0.0.1")
	}
	if _, err := meet(t, addr, client(ours)); err != nil {
		t.Error(err)
	}
	if _, err := meet(t, addr, client(theirs)); err == nil {
		t.Error("a stranger's certificate was accepted")
	}
	if _, err := meet(t, addr, load(t, certs.Files{CA: ours.File}).Client("127.0.0.1")); err == nil {
		t.Error("no certificate was accepted")
	}
	trust(theirs.File)
	if changed, err := s.Reload(time.Now()); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if _, err := meet(t, addr, client(theirs)); err != nil {
		t.Error(err)
	}
	if _, err := meet(t, addr, client(ours)); err == nil {
		t.Error("an authority that was taken out is still accepted")
	}
}

func TestOldVersionsOnlyWhenAsked(t *testing.T) {
	ca := certstest.NewCA(t)
	cert, key := ca.Issue("server", certstest.Leaf{})
	for _, tls12 := range []bool{false, true} {
		addr := serve(t, load(t, certs.Files{Cert: cert, Key: key, TLS12: tls12}).Server(tls.NoClientCert))
		_, err := meet(t, addr, &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MaxVersion: tls.VersionTLS12})
		if (err == nil) != tls12 {
			t.Errorf("TLS 1.2 asked for: %v, got %v", tls12, err)
		}
		_, err = meet(t, addr, &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10})
		if err == nil {
			t.Error("TLS 1.1 was spoken")
		}
	}
	server := serve(t, &tls.Config{Certificates: mustPair(t, cert, key), MaxVersion: tls.VersionTLS12})
	if _, err := meet(t, server, load(t, certs.Files{CA: ca.File}).Client("localhost")); err == nil {
		t.Error("a client spoke TLS 1.2 unasked")
	}
	if _, err := meet(t, server, load(t, certs.Files{CA: ca.File, TLS12: true}).Client("elsewhere")); err == nil {
		t.Error("a client accepted a certificate for another name")
	}
}

func mustPair(t *testing.T, cert, key string) []tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return []tls.Certificate{pair}
}

func TestLoadNamesWhatIsWrong(t *testing.T) {
	ca := certstest.NewCA(t)
	cert, key := ca.Issue("server", certstest.Leaf{})
	old, oldKey := ca.Issue("old", certstest.Leaf{NotAfter: time.Now().Add(-time.Minute)})
	missing := filepath.Join(t.TempDir(), "missing.pem")
	for name, c := range map[string]struct {
		files certs.Files
		want  string
	}{
		"no key":       {certs.Files{Cert: cert}, "one file of the two"},
		"no cert":      {certs.Files{Key: key}, "one file of the two"},
		"missing":      {certs.Files{Cert: missing, Key: key}, missing},
		"ran out":      {certs.Files{Cert: old, Key: oldKey}, "ran out"},
		"key as a CA":  {certs.Files{CA: key}, key},
		"swapped":      {certs.Files{Cert: key, Key: cert}, key},
		"wrong key":    {certs.Files{Cert: cert, Key: oldKey}, cert},
		"CA is absent": {certs.Files{Cert: cert, Key: key, CA: missing}, missing},
	} {
		_, err := certs.Load(c.files, time.Now())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want it to name %q", name, err, c.want)
		}
	}
	if _, err := certs.Load(certs.Files{Cert: missing, Key: missing}, time.Now()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if s := load(t, certs.Files{Cert: cert, Key: key}); time.Until(s.NotAfter()) <= 0 {
		t.Errorf("runs out at %v", s.NotAfter())
	}
	if s := load(t, certs.Files{}); !s.NotAfter().IsZero() {
		t.Error("nothing runs out")
	}
}
