package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kvoracle/kvoracle/internal/policy"
)

// maxSecret is the longest secret, in bytes: more than any key needs.
const maxSecret = 256

// faults collects what is wrong.
type faults []error

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

// Validate says everything that is wrong with the configuration at once, each fault by the names of the fields it is
// about.
func (c Config) Validate() error {
	c = c.withDefaults()
	var f faults
	f.addresses(&c)
	f.security(&c)
	f.counts(&c)
	f.replication(&c)
	f.durations(&c)
	if !slices.Contains(policy.Names(), c.Policy) {
		f.add("Policy: got %q, want one of %s", c.Policy, strings.Join(policy.Names(), ", "))
	}
	if u, err := url.Parse(c.TokenizeURL); c.TokenizeURL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		f.add("TokenizeURL: got %q, want http://host:port", c.TokenizeURL)
	}
	if _, err := parseModels(c.ModelNames); err != nil {
		f.add("ModelNames: %w", err)
	}
	if _, err := parseObjectives(c.Objectives); err != nil {
		f.add("Objectives: %w", err)
	}
	if c.ShadowPolicy != "" && !slices.Contains(policy.Names(), c.ShadowPolicy) {
		f.add("ShadowPolicy: got %q, want one of %s", c.ShadowPolicy, strings.Join(policy.Names(), ", "))
	}
	if !(c.StaleCredit > 0 && c.StaleCredit <= 1) {
		f.add("StaleCredit: got %v, want above 0, to 1", c.StaleCredit)
	}
	if n := len(c.Secret); n > maxSecret {
		f.add("Secret: got %d bytes, want at most %d", n, maxSecret) // its value is nobody's business
	}
	return errors.Join(f...)
}

func (f *faults) addresses(c *Config) {
	for _, a := range []struct{ field, address string }{{"Listen", c.Listen}, {"OpsListen", c.OpsListen}, {"HTTPListen", c.HTTPListen}} {
		if a.address == "" {
			continue
		}
		if path, isUnix := socketPath(a.address); isUnix {
			if path == "" || path[0] == '@' || len(path) > longestSocket {
				f.add("%s: got %q, want unix: and the path of a file, of at most %d bytes", a.field, a.address, longestSocket)
			}
		} else if _, port, err := net.SplitHostPort(a.address); err != nil || port == "" {
			f.add("%s: got %q, want host:port, or unix: and a path", a.field, a.address)
		} else if !c.Insecure && !isLoopback(a.address) && (c.TLSCert == "" || c.AccessFile == "") {
			f.add("%s: got %q, which other machines can reach: want TLSCert and AccessFile, or a loopback address, or Insecure",
				a.field, a.address)
		}
	}
	for _, two := range []struct{ a, b, both string }{
		{c.Listen, c.OpsListen, "Listen and OpsListen"},
		{c.Listen, c.HTTPListen, "Listen and HTTPListen"},
		{c.OpsListen, c.HTTPListen, "OpsListen and HTTPListen"},
	} {
		if two.a == two.b && two.a != "" && !strings.HasSuffix(two.a, ":0") {
			f.add("%s: both are %q, want two ports", two.both, two.a)
		}
	}
}

// What TLSClientAuth may be.
const (
	clientAuthRequire  = "require"
	clientAuthOptional = "optional"
)

func (f *faults) security(c *Config) {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		f.add("TLSCert and TLSKey: got one of the two files, want both or none")
	}
	if c.TLSClientCA != "" && c.TLSCert == "" {
		f.add("TLSClientCA and TLSCert: clients show certificates only over TLS, which wants a certificate of the server")
	}
	if c.TLSClientAuth != clientAuthRequire && c.TLSClientAuth != clientAuthOptional {
		f.add("TLSClientAuth: got %q, want %s or %s", c.TLSClientAuth, clientAuthRequire, clientAuthOptional)
	}
	if c.MaxNewConnections > c.MaxConnections {
		f.add("MaxNewConnections and MaxConnections: %d new ones are more than the %d of all", c.MaxNewConnections, c.MaxConnections)
	}
}

// replication checks what has to do with other replicas.
func (f *faults) replication(c *Config) {
	if (c.NATSCert == "") != (c.NATSKey == "") {
		f.add("NATSCert and NATSKey: got one of the two files, want both or none")
	}
	if c.NATSCopies < 1 || c.NATSCopies > 5 {
		f.add("NATSCopies: got %d, want 1 to 5", c.NATSCopies)
	}
	if c.NATSURL == "" {
		if c.ReplicaID != "" {
			f.add("ReplicaID and NATSURL: a replica is told from others over NATS, want its URL")
		}
		return
	}
	if err := c.replica().Validate(); err != nil {
		f.add("NATSURL, ReplicaID and NATSPrefix: %w", err)
	}
	for one := range strings.SplitSeq(c.NATSURL, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		switch {
		case err != nil || u.Host == "" || u.Scheme != "nats" && u.Scheme != "tls":
			f.add("NATSURL: want nats://host:port or tls://host:port, comma-separated") // it may have a password
		case !c.Insecure && u.Scheme != "tls" && c.NATSCA == "" && !isLoopback(u.Host):
			f.add("NATSURL: reports would cross the network in the clear: want tls:// or NATSCA, or a loopback address, or Insecure")
		}
	}
}

// isLoopback says whether only this machine can reach the address. A host name other than localhost is not looked up:
// it may come to mean something else.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func (f *faults) counts(c *Config) {
	for _, n := range []struct {
		field       string
		value, most int
	}{
		{"ExpectedWorkers", c.ExpectedWorkers, 1 << 20},
		{"MaxPromptTokens", c.MaxPromptTokens, 1 << 28},
		{"MaxMessageBytes", c.MaxMessageBytes, 1<<31 - 1},
		{"MaxConcurrentStreams", c.MaxConcurrentStreams, 1<<31 - 1},
		{"MaxHeaderBytes", c.MaxHeaderBytes, 16 << 20},
		{"MaxConnections", c.MaxConnections, 1 << 20},
		{"MaxNewConnections", c.MaxNewConnections, 1 << 20},
		{"MaxStreams", c.MaxStreams, 1 << 30},
		{"MaxRate", c.MaxRate, 1 << 30},
		{"MaxQueuedTokens", c.MaxQueuedTokens, 1<<31 - 1},
		{"MaxWorkers", c.MaxWorkers, 1 << 20},
		{"MaxBlocks", c.MaxBlocks, 1<<31 - 1},
		{"MaxEngineHashes", c.MaxEngineHashes, 1<<31 - 1},
	} {
		if n.value < 0 || n.value > n.most {
			f.add("%s: got %d, want 0 to %d", n.field, n.value, n.most)
		}
	}
	if c.ExtProcMaxBody < 0 || c.ExtProcMaxBody > max(c.MaxMessageBytes-aroundBody, c.MaxMessageBytes/2) {
		f.add("ExtProcMaxBody and MaxMessageBytes: got %d, want 0 to %d, since a message of %d bytes has more than the body",
			c.ExtProcMaxBody, max(c.MaxMessageBytes-aroundBody, c.MaxMessageBytes/2), c.MaxMessageBytes)
	}
	if c.MaxQueued > 1<<20 {
		f.add("MaxQueued: got %d, want at most %d", c.MaxQueued, 1<<20)
	}
	if c.ExpectedWorkers > c.MaxWorkers {
		f.add("ExpectedWorkers and MaxWorkers: %d workers are more than the %d that fit, so the server would never be ready",
			c.ExpectedWorkers, c.MaxWorkers)
	}
	if c.MaxMessageBytes/4 < c.MaxPromptTokens {
		f.add("MaxMessageBytes and MaxPromptTokens: a message of %d bytes cannot hold %d tokens of 4 bytes",
			c.MaxMessageBytes, c.MaxPromptTokens)
	}
}

func (f *faults) durations(c *Config) {
	for _, d := range []struct {
		field string
		value time.Duration
		least time.Duration
	}{
		{"KeepaliveTime", c.KeepaliveTime, time.Second},
		{"SnapshotInterval", c.SnapshotInterval, time.Second},
		{"FirstMessageTimeout", c.FirstMessageTimeout, 0},
		{"KeepaliveTimeout", c.KeepaliveTimeout, 0},
		{"KeepaliveMinTime", c.KeepaliveMinTime, 0},
		{"MaxConnectionAge", c.MaxConnectionAge, 0},
		{"MaxConnectionAgeGrace", c.MaxConnectionAgeGrace, 0},
		{"DrainDelay", c.DrainDelay, 0},
		{"DrainTimeout", c.DrainTimeout, 0},
		{"SlowCall", c.SlowCall, 0},
		{"StreamGrace", c.StreamGrace, 0},
		{"GatewayGrace", c.GatewayGrace, 0},
		{"WorkerLease", c.WorkerLease, 0},
		{"Lease", c.Lease, 0},
		{"ReportFresh", c.ReportFresh, 0},
		{"GuessLinger", c.GuessLinger, 0},
		{"ExtProcBodyTimeout", c.ExtProcBodyTimeout, 0},
		{"GatewayMaxQueue", c.GatewayMaxQueue, 0},
		{"TokenizeBudget", c.TokenizeBudget, 0},
	} {
		if d.value < d.least {
			f.add("%s: got %v, want at least %v", d.field, d.value, d.least)
		}
	}
	if c.StreamGrace > c.WorkerLease {
		f.add("StreamGrace and WorkerLease: a worker is lost after %v, so its blocks cannot be trusted for %v",
			c.WorkerLease, c.StreamGrace)
	}
}
