package certstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is an authority. Its methods fail the test when they cannot do what they are asked.
type CA struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
	// File is the authority's own certificate in PEM.
	File string
}

// Leaf says what a certificate is for.
type Leaf struct {
	// DNS and URIs are the names in it. With neither it is for localhost, 127.0.0.1 and ::1.
	DNS, URIs []string
	// NotAfter is when it runs out. Zero: in a day.
	NotAfter time.Time
}

// NewCA makes an authority whose files live as long as the test.
func NewCA(tb testing.TB) *CA {
	tb.Helper()
	ca := &CA{tb: tb, dir: tb.TempDir()}
	ca.key = ca.newKey()
	t := ca.template(time.Time{})
	t.Subject = pkix.Name{CommonName: "an authority"}
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, ca.key.Public(), ca.key)
	ca.must(err)
	ca.cert, err = x509.ParseCertificate(der)
	ca.must(err)
	ca.File = filepath.Join(ca.dir, "ca.pem")
	ca.write(ca.File, "CERTIFICATE", der)
	return ca
}

// Issue writes a certificate and its key into files by that name, over those that may be there.
func (ca *CA) Issue(name string, leaf Leaf) (certFile, keyFile string) {
	ca.tb.Helper()
	t := ca.template(leaf.NotAfter)
	t.DNSNames = leaf.DNS
	for _, u := range leaf.URIs {
		parsed, err := url.Parse(u)
		ca.must(err)
		t.URIs = append(t.URIs, parsed)
	}
	if len(leaf.DNS)+len(leaf.URIs) == 0 {
		t.DNSNames, t.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	}
	key := ca.newKey()
	der, err := x509.CreateCertificate(rand.Reader, t, ca.cert, key.Public(), ca.key)
	ca.must(err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	ca.must(err)
	certFile, keyFile = filepath.Join(ca.dir, name+".pem"), filepath.Join(ca.dir, name+"-key.pem")
	ca.write(certFile, "CERTIFICATE", der)
	ca.write(keyFile, "PRIVATE KEY", secret)
	return certFile, keyFile
}

// Pool has the authority and nobody else.
func (ca *CA) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.cert)
	return p
}

func (ca *CA) template(notAfter time.Time) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	ca.must(err)
	now := time.Now()
	if notAfter.IsZero() {
		notAfter = now.Add(24 * time.Hour)
	}
	return &x509.Certificate{
		SerialNumber: serial, NotBefore: now.Add(-48 * time.Hour), NotAfter: notAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func (ca *CA) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ca.must(err)
	return key
}

// write replaces a file at once, as tools that rotate certificates do.
func (ca *CA) write(path, kind string, der []byte) {
	ca.must(os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	ca.must(os.Rename(path+".new", path))
}

func (ca *CA) must(err error) {
	if err != nil {
		ca.tb.Helper()
		ca.tb.Fatalf("certstest: %v", err)
	}
}
