//go:build unix

package server

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/certs/certstest"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// BenchmarkRouteAs is BenchmarkRoute by callers of whom more and more is known: what a call costs for being asked who it is,
// by a token among a thousand identities, over TLS, and by the connection's certificate.
func BenchmarkRouteAs(b *testing.B) {
	ca := certstest.NewCA(b)
	cert, key := ca.Issue("server", certstest.Leaf{})
	var text strings.Builder
	text.WriteString(people + "  - {name: east, roles: [gateway], certificates: [\"east.gateways.test\"]}\n")
	for i := range 1000 {
		text.WriteString(fmt.Sprintf("  - {name: p%d, roles: [worker], tokens: [token-of-somebody-%d], certificates: [\"p%d.workers.test\"]}\n", i, i, i))
	}
	file := write(b, filepath.Join(b.TempDir(), "access.yaml"), text.String())
	open := Config{SlowCall: time.Second}
	asked := Config{SlowCall: time.Second, AccessFile: file}
	secure := Config{SlowCall: time.Second, TLSCert: cert, TLSKey: key}
	whole := Config{SlowCall: time.Second, TLSCert: cert, TLSKey: key, AccessFile: file, TLSClientCA: ca.File, TLSClientAuth: clientAuthOptional}
	plainTLS, mutual := clientTLS(b, ca, nil), clientTLS(b, ca, &certstest.Leaf{DNS: []string{"east.gateways.test"}})
	for _, c := range []struct {
		name  string
		cfg   Config
		token string
		tls   *tls.Config
	}{
		{"anybody", open, "", nil},
		{"token", asked, "token-of-the-gateway", nil},
		{"TLS, anybody", secure, "", plainTLS},
		{"TLS, token", whole, "token-of-the-gateway", plainTLS},
		{"TLS, certificate", whole, "", mutual},
	} {
		b.Run(c.name, func(b *testing.B) {
			clearEnv(b)
			r := onSocket(b, c.cfg)
			operator := kvoraclev1.NewFleetServiceClient(r.as("token-of-an-operator", c.tls))
			for _, name := range []string{"w1", "w2", "w3", "w4"} {
				if _, err := operator.RegisterWorker(b.Context(), &kvoraclev1.RegisterWorkerRequest{
					Spec: &kvoraclev1.WorkerSpec{WorkerId: name, Address: name + ":8000", Model: "demo", BlockSize: 16},
				}); err != nil {
					b.Fatal(err)
				}
			}
			route := kvoraclev1.NewRouteServiceClient(r.as(c.token, c.tls))
			m := prompt(make([]uint32, 512)...)
			m.DryRun = true // bookings would pile up
			if _, err := route.Route(b.Context(), m); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				if _, err := route.Route(b.Context(), m); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}
