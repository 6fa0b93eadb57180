package replica_test

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	nats "github.com/nats-io/nats-server/v2/server"

	"github.com/kvoracle/kvoracle/internal/certs/certstest"
	"github.com/kvoracle/kvoracle/server"
)

// TestNATSCertificatesRotate: NATS wants TLS with a certificate of the client. Then it comes back with certificates of another
// authority, who signs the replica's too from now on: the replica follows its files without a restart.
func TestNATSCertificatesRotate(t *testing.T) {
	t.Parallel() // most of it is waiting
	address, store := quietAddress(t), t.TempDir()
	_, p, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	start := func(ca *certstest.CA) (end func()) {
		t.Helper()
		pair, err := tls.LoadX509KeyPair(ca.Issue("nats", certstest.Leaf{}))
		if err != nil {
			t.Fatal(err)
		}
		s, err := nats.NewServer(&nats.Options{
			Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: store, NoLog: true, NoSigs: true, TLSTimeout: 60,
			TLSConfig: &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		if !s.ReadyForConnections(time.Minute) {
			t.Fatal("NATS does not start")
		}
		return func() {
			s.Shutdown()
			s.WaitForShutdown()
		}
	}
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	rotate := func(ca *certstest.CA) {
		t.Helper()
		cert, key := ca.Issue("replica", certstest.Leaf{})
		for from, to := range map[string]string{ca.File: "ca.pem", cert: "cert.pem", key: "key.pem"} {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file(to), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}

	first, second := certstest.NewCA(t), certstest.NewCA(t)
	rotate(first)
	end := start(first)
	r := up(t, server.Config{
		Listen: "127.0.0.1:0", ReplicaID: "a", NATSURL: "tls://" + address, NATSCA: file("ca.pem"), NATSCert: file("cert.pem"), NATSKey: file("key.pem"),
	})
	waitFor(t, "it is there", func() bool { return r.is(healthReplication) })
	end()
	waitFor(t, "it is away", func() bool { return !r.is(healthReplication) })
	rotate(second)
	end = start(second)
	t.Cleanup(end)
	waitFor(t, "it is there again", func() bool { return r.is(healthReplication) })
}
