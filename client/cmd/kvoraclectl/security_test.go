package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvoracle/kvoracle/internal/certs/certstest"
	"github.com/kvoracle/kvoracle/server"
)

// TestSecuredServer asks a server that wants TLS and identities, in every way that the flags have.
func TestSecuredServer(t *testing.T) {
	ca := certstest.NewCA(t)
	cert, key := ca.Issue("server", certstest.Leaf{})
	mine, myKey := ca.Issue("op", certstest.Leaf{DNS: []string{"op.test"}})
	access := filepath.Join(t.TempDir(), "access.yaml")
	text := "identities:\n  - {name: op, roles: [operator], tokens: [token-of-an-operator], certificates: [op.test]}\n"
	if err := os.WriteFile(access, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte("token-of-an-operator\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := liveWith(t, server.Config{
		TLSCert: cert, TLSKey: key, TLSClientCA: ca.File, TLSClientAuth: "optional", AccessFile: access,
	})
	address := s.Addr().String()
	for _, c := range []struct {
		name  string
		flags []string
		code  int
		want  string
	}{
		{"token", []string{"--tls-ca", ca.File, "--token", "token-of-an-operator"}, 0, "no workers"},
		{"token's file", []string{"--tls-ca", ca.File, "--token-file", tokenFile}, 0, "no workers"},
		{"certificate", []string{"--tls-ca", ca.File, "--tls-cert", mine, "--tls-key", myKey}, 0, "no workers"},
		{"name", []string{"--tls-ca", ca.File, "--tls-server-name", "localhost", "--token-file", tokenFile}, 0, "no workers"},
		{"nobody", []string{"--tls-ca", ca.File}, 1, "Unauthenticated"},
		{"wrong token", []string{"--tls-ca", ca.File, "--token", "token-of-nobody-here"}, 1, "Unauthenticated"},
		{"wrong name", []string{"--tls-ca", ca.File, "--tls-server-name", "elsewhere", "--token-file", tokenFile, "--timeout", "1s"}, 1, "Unavailable"},
		{"no key", []string{"--tls-cert", mine}, 1, "one file of the two"},
	} {
		code, out, errs := ctl(t, append(append([]string{"--server", address}, c.flags...), "workers")...)
		if code != c.code || !strings.Contains(out+errs, c.want) || strings.Contains(errs, "token-of") {
			t.Errorf("%s: code %d, %s%s; want %d and %q", c.name, code, out, errs, c.code, c.want)
		}
	}
	if code, _, errs := ctl(t, "--server", "192.0.2.1:7070", "--token", "token-of-an-operator", "workers"); code != 1 || !strings.Contains(errs, "in plain") {
		t.Errorf("a token in plain to another machine: %d, %s", code, errs)
	}
}
