package server

import (
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/kvoracle/kvoracle/internal/admit"
	"github.com/kvoracle/kvoracle/internal/index"
	"github.com/kvoracle/kvoracle/internal/load"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/policy"
	"github.com/kvoracle/kvoracle/internal/wire"
)

// GCPercent is the collector's target (GOGC) that cmd/kvoracle sets where the environment says none; a program that embeds
// the server should too. The index lies outside the heap, so what is left is small and its garbage, the messages of
// reports, comes fast: at Go's default a collection runs every second or so, and the decisions of that moment wait for it.
const GCPercent = 400

// Config is everything a Server can be told. The zero value runs: a field that is zero has the default named beside it.
// DefaultConfig is what the program kvoracle starts from; it also turns on what costs a port or shows the schema.
type Config struct {
	// Listen is the "host:port" of the gRPC service. Empty: 127.0.0.1:7070. Port 0: any free one, see Server.Addr. This and
	// the other addresses may also be "unix:" and the path of a socket, for a gateway on the same machine: who may write that file
	// may connect, which are its owner and group (mode 0660). A socket that a dead process has left is replaced.
	Listen string
	// OpsListen is the "host:port" of the operator's HTTP server: metrics, health, profiles. Empty: none.
	OpsListen string
	// HTTPListen is the "host:port" of the HTTP/JSON door, see docs/http.md. Empty: none.
	HTTPListen string
	// Insecure allows addresses that other machines can reach without TLS, or without knowing who calls. Otherwise such
	// addresses want TLSCert and AccessFile.
	Insecure bool

	// TLSCert and TLSKey are PEM files with the server's certificate (and its chain) and key, for all ports. They are read
	// again every 2 s; a bad pair is logged and counted, and the former stays. Empty: no TLS.
	TLSCert, TLSKey string
	// TLSClientCA is a PEM file with the authorities of clients' certificates, read again like TLSCert. Empty: clients
	// show none.
	TLSClientCA string
	// TLSClientAuth says what is asked of clients where TLSClientCA is given: "require" a certificate, or "optional", for
	// fleets in which some have tokens instead. The operator's port never requires one. Empty: "require".
	TLSClientAuth string
	// TLS12 accepts TLS 1.2 beside 1.3.
	TLS12 bool
	// AccessFile says who may call what, by bearer token or client certificate; package internal/access has the format, and
	// docs/security.md the roles. It is read again every 2 s, and holds for connections that are there already. With it
	// every call but a health check wants an identity. Empty: whoever can connect may call everything.
	AccessFile string

	// Policy decides; one of policy.Names. Empty: "least_time".
	Policy string
	// ShadowPolicy decides beside it on the same facts, books nothing, and is compared in metrics and spans. It takes
	// each booked decision its own time once more. Empty: none.
	ShadowPolicy string
	// ExpectedWorkers is how many workers must have fresh block reports before the server says it is ready; then it
	// stays ready. 0: ready at once. At most MaxWorkers.
	ExpectedWorkers int

	// MaxPromptTokens is the longest prompt. 0: 1,048,576. A prompt of that length takes about 10 bytes of
	// memory a token while it is decided.
	MaxPromptTokens int
	// MaxMessageBytes is the largest message read from a peer. 0: 4 bytes for each of MaxPromptTokens, and 64 KiB for
	// the rest of the request. A peer can make the server hold that much for each open call.
	MaxMessageBytes int
	// MaxConcurrentStreams is the number of calls one connection may have open. 0: 10,000. Each has a goroutine.
	MaxConcurrentStreams int
	// MaxHeaderBytes is the size of a call's metadata, as HTTP/2 counts it. 0: 16 KiB.
	MaxHeaderBytes int

	// MaxConnections is how many connections may be open. 0: 16,384. Further ones are closed at once.
	MaxConnections int
	// MaxNewConnections is how many connections may be open that have made no call yet (of those, where credentials are
	// wanted, that had them). 0: 1,024. Beyond it the oldest of the host that has most is closed.
	MaxNewConnections int
	// MaxStreams is how many long streams one identity may have open; one host, where nobody has to say who it is. 0: 8,192.
	// A worker has two for each rank, and each takes some 20 KiB.
	MaxStreams int
	// MaxRate is how many calls a second one identity (or host) may make, with a burst of one second's. Questions of a
	// RouteStream count too, messages of reports do not. 0: any number.
	MaxRate int
	// FirstMessageTimeout is how long the message of a call, or the first one of a stream, may take to arrive. RouteStream
	// may wait as long as it likes. 0: 10 s.
	FirstMessageTimeout time.Duration

	// QueueTarget is how long Route calls may wait for a processor before some are refused with RESOURCE_EXHAUSTED, so
	// that the others are answered in time. 0: 5 ms. Negative: none are ever refused.
	QueueTarget time.Duration

	// MaxQueued is how many questions may wait for a place while all workers that could take them are at their limits; only
	// those do that say so (RouteRequest.max_queue_seconds), further ones are refused. 0: 1,024. Negative: none may wait.
	MaxQueued int
	// MaxQueuedTokens is how many prompt tokens they may have together, since each keeps its prompt, of 4 bytes a token.
	// 0: 16,777,216.
	MaxQueuedTokens int

	// KeepaliveTime is how long a connection may be silent before the server pings it. 0: 30 s; at least 1 s.
	KeepaliveTime time.Duration
	// KeepaliveTimeout is how long the answer to a ping may take before the connection is given up. 0: 10 s. With
	// KeepaliveTime it is how long a dead peer is believed to live.
	KeepaliveTimeout time.Duration
	// KeepaliveMinTime is how often a client may ping, with or without open calls. 0: 10 s. One that pings more often
	// is sent away.
	KeepaliveMinTime time.Duration
	// MaxConnectionAge is when a connection is asked to go, give or take a tenth, so that clients spread over new
	// replicas. 0: 30 min. Long streams are cut then and resume on another connection.
	MaxConnectionAge time.Duration
	// MaxConnectionAgeGrace is how long calls may go on on a connection that was asked to go. 0: 30 s.
	MaxConnectionAgeGrace time.Duration

	// DrainDelay is how long the server goes on serving after it said that it is not ready, so that load balancers
	// notice before calls are refused. 0: none, right for loopback; about 5 s behind a load balancer.
	DrainDelay time.Duration
	// DrainTimeout is how long calls in flight may take to end before they are cut. 0: 10 s. Stopping takes at most
	// DrainDelay + DrainTimeout and a few seconds for the last telemetry.
	DrainTimeout time.Duration

	// ExtProcMaxBody is the longest body of an HTTP request that Envoy's ext_proc filter may send for a decision, in bytes; a
	// longer one is answered with 413. 0: MaxMessageBytes less 64 KiB, which is also the most.
	ExtProcMaxBody int
	// ExtProcBodyTimeout is how long such a body may take to come where Envoy does not bound it (FULL_DUPLEX_STREAMED);
	// then the request goes on without a decision. 0: 30 s.
	ExtProcBodyTimeout time.Duration
	// TokenizeURL is an engine (vLLM) that is asked, by /render or /tokenize, for the token ids of prompts that come as text over
	// HTTP, "http://host:port"; so they can be matched with what engines report. Empty: none, text is matched with text.
	TokenizeURL string
	// TokenizeBudget is how long such an answer may take; a decision does without a later one. 0: 20 ms.
	TokenizeBudget time.Duration
	// SessionHeader names the session in HTTP requests. Empty: "x-session-id".
	SessionHeader string
	// ModelNames says what names of models in HTTP requests stand for: "name=model", or "name=model+adapter@revision" for a
	// LoRA adapter (the revision may be left out), separated by commas. A name that is not here stands for itself. Empty: none.
	ModelNames string

	// GatewayMaxQueue is how long a request that Envoy or a caller of Dynamo's paths asks about waits for a place while all workers
	// that could take it are at their limits; its headers may ask for less. Set Envoy's message_timeout longer; Dynamo's callers
	// wait for 15 s at most. 0: it is answered with 429 at once.
	GatewayMaxQueue time.Duration
	// Objectives are the priorities of the objectives that requests name (x-gateway-inference-objective): "name=priority",
	// separated by commas; the higher goes first, one that is not here has 0. Empty: none.
	Objectives string
	// FirstByteIsToken says that engines send nothing of a streamed answer before its first token, so that Envoy's access log
	// tells when that came. vLLM and SGLang send their headers at once: false.
	FirstByteIsToken bool

	// Reflection shows the schema to tools like grpcurl.
	Reflection bool
	// SlowCall is the time from which a unary call is logged as slow. 0: never.
	SlowCall time.Duration

	// StreamGrace is how long a target's blocks are trusted after its report stream was cut. 0: 10 s. At most
	// WorkerLease.
	StreamGrace time.Duration
	// GatewayGrace is how long a gateway's bookings are kept after its last progress stream was cut. 0: 10 s. A gateway
	// that comes back in time goes on where it was.
	GatewayGrace time.Duration
	// WorkerLease is how long a worker that has reported stays a candidate with no report stream open. 0: 60 s.
	WorkerLease time.Duration
	// Lease is how long a booking lives without news from its gateway. 0: 60 s. Shorter forgets live requests of gateways
	// that report seldom; longer keeps the load of gateways that died.
	Lease time.Duration
	// ReportFresh is how long a load sample is believed. 0: 10 s. It should be several reporting intervals.
	ReportFresh time.Duration
	// GuessLinger is how long what a prompt has left in its target's cache is expected there after its request has
	// finished, for block reports to arrive. 0: 2 s. It should cover the reporters' delay.
	GuessLinger time.Duration
	// MaxWorkers bounds the fleet. 0: 16,384.
	MaxWorkers int
	// MaxBlocks bounds the index, counting each block once per target that holds it. 0: 67,108,864. Each takes
	// about 12 bytes where prefixes are shared and 16 where they are not.
	MaxBlocks int
	// MaxEngineHashes bounds the engine hashes kept for ranks that name their blocks by them (BlocksHello.engine_hashes),
	// up to 100 bytes each. 0: 8,388,608. Each rank is bounded by its declared capacities as well.
	MaxEngineHashes int
	// Secret is mixed into every block id, so that ids mean nothing outside this deployment; at most 256 bytes. Reporters
	// that compute ids need the same one (client.WithSecret); those that send tokens do not. Empty: none. It is never
	// logged or shown.
	Secret string
	// DataDir is a folder of this process's own, in which what is known of the fleet and its blocks is kept over a restart:
	// the server is ready once it has loaded that, and restored workers are STALE until they have spoken. Without NATSURL, and
	// with WithJournal, it has a log, too, by a NATS server within the process: what was acknowledged to reporters and
	// operators is in it before, and outlives the process however that ends. Empty: nothing is kept.
	DataDir string
	// SnapshotInterval is how often all of it is saved; an orderly end saves it once more. What was reported since then is in
	// the log. With NATSURL it is how often one of the replicas keeps a copy of the index in NATS, with or without DataDir.
	// 0: 1 min; at least 1 s.
	SnapshotInterval time.Duration
	// SnapshotsOnly leaves the log out: reports cost less, and those since the last save are lost in a crash, until reporters
	// have told them again.
	SnapshotsOnly bool
	// NATSURL lists the NATS servers (with JetStream) over which several replicas are one service, "nats://host:port",
	// comma-separated; see docs/cluster.md. Empty: this process is the service.
	NATSURL string
	// ReplicaID tells this replica from others: 1 to 64 letters, digits, '-' or '_'; wanted with NATSURL.
	ReplicaID string
	// NATSPrefix begins all subjects and names the log, so that services can share a NATS. Empty: "kvoracle".
	NATSPrefix string
	// NATSCredentials is a file with NATS credentials (JWT and seed). Empty: none.
	NATSCredentials string
	// NATSCA is a PEM file with the authorities of the NATS servers' certificates, and makes TLS required. Empty: the
	// system's, where the URL says tls://.
	NATSCA string
	// NATSCert and NATSKey are PEM files with the certificate shown to NATS. Empty: none.
	NATSCert, NATSKey string
	// NATSCopies is on how many NATS servers the log is kept when this replica is the one to make it. 0: 1; at most 5.
	NATSCopies int
	// StaleCredit is the share of a target's blocks that still counts when its reports are stale, above 0 to 1.
	// 0: 0.5.
	StaleCredit float64
}

// aroundBody is what a message may have besides the body of a request.
const aroundBody = 64 << 10

const (
	defaultListen    = "127.0.0.1:7070"
	defaultOpsListen = "127.0.0.1:7071"
)

// DefaultConfig is the configuration of a server nobody configured: the operator's port and reflection on, and every
// default written out, but for MaxMessageBytes, which follows MaxPromptTokens, and ExtProcMaxBody, which follows that.
func DefaultConfig() Config {
	c := Config{OpsListen: defaultOpsListen, Reflection: true, SlowCall: 100 * time.Millisecond}.withDefaults()
	c.MaxMessageBytes, c.ExtProcMaxBody = 0, 0
	return c
}

// withDefaults fills in the zeros.
func (c Config) withDefaults() Config {
	setDefault(&c.Listen, defaultListen)
	setDefault(&c.Policy, policy.Names()[0])
	setDefault(&c.MaxPromptTokens, 1<<20)
	setDefault(&c.MaxMessageBytes, wire.Limits{MaxPromptTokens: c.MaxPromptTokens}.WithDefaults().MaxMessageBytes)
	setDefault(&c.ExtProcMaxBody, max(c.MaxMessageBytes-aroundBody, c.MaxMessageBytes/2))
	setDefault(&c.ExtProcBodyTimeout, 30*time.Second)
	setDefault(&c.TokenizeBudget, 20*time.Millisecond)
	setDefault(&c.SessionHeader, "x-session-id")
	setDefault(&c.MaxConcurrentStreams, 10_000)
	setDefault(&c.MaxHeaderBytes, 16<<10)
	setDefault(&c.TLSClientAuth, clientAuthRequire)
	setDefault(&c.MaxConnections, 16_384)
	setDefault(&c.MaxNewConnections, 1024)
	setDefault(&c.MaxStreams, 8192)
	setDefault(&c.FirstMessageTimeout, 10*time.Second)
	setDefault(&c.QueueTarget, 5*time.Millisecond)
	setDefault(&c.MaxQueued, 1024)
	setDefault(&c.MaxQueuedTokens, 16<<20)
	setDefault(&c.KeepaliveTime, 30*time.Second)
	setDefault(&c.KeepaliveTimeout, 10*time.Second)
	setDefault(&c.KeepaliveMinTime, 10*time.Second)
	setDefault(&c.MaxConnectionAge, 30*time.Minute)
	setDefault(&c.MaxConnectionAgeGrace, 30*time.Second)
	setDefault(&c.DrainTimeout, 10*time.Second)
	setDefault(&c.StreamGrace, 10*time.Second)
	setDefault(&c.GatewayGrace, 10*time.Second)
	setDefault(&c.WorkerLease, time.Minute)
	setDefault(&c.Lease, time.Minute)
	setDefault(&c.ReportFresh, 10*time.Second)
	setDefault(&c.GuessLinger, 2*time.Second)
	setDefault(&c.MaxWorkers, 16_384)
	setDefault(&c.MaxBlocks, 64<<20)
	setDefault(&c.MaxEngineHashes, 8<<20)
	setDefault(&c.SnapshotInterval, time.Minute)
	setDefault(&c.NATSPrefix, "kvoracle")
	setDefault(&c.NATSCopies, 1)
	setDefault(&c.StaleCredit, 0.5)
	return c
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// hasLog says whether reports are kept in a log of the process's own.
func (c *Config) hasLog() bool { return c.DataDir != "" && c.NATSURL == "" && !c.SnapshotsOnly }

// logDir is where.
func (c *Config) logDir() string { return filepath.Join(c.DataDir, "log") }

// limits are what messages may hold.
func (c Config) limits() wire.Limits {
	return wire.Limits{MaxPromptTokens: c.MaxPromptTokens, MaxMessageBytes: c.MaxMessageBytes}.WithDefaults()
}

// oracle is the part that the oracle itself wants. The configuration is valid and has its defaults.
func (c Config) oracle() oracle.Config {
	p, _ := policy.ByName(c.Policy)
	shadow, _ := policy.ByName(c.ShadowPolicy)
	return oracle.Config{
		Policy:       p,
		Shadow:       shadow,
		Secret:       c.Secret,
		MaxWorkers:   c.MaxWorkers,
		EngineHashes: c.MaxEngineHashes,
		Queue:        admit.Config{MaxItems: c.MaxQueued, MaxTokens: c.MaxQueuedTokens},
		Index:        index.Config{MaxBlocks: c.MaxBlocks, Key: rand.Uint64()},
		Load:         load.Config{Lease: c.Lease, MaxReportAge: c.ReportFresh},
		StaleCredit:  c.StaleCredit,
		StreamGrace:  c.StreamGrace,
		GatewayGrace: c.GatewayGrace,
		WorkerLease:  c.WorkerLease,
		GuessLinger:  c.GuessLinger,
	}
}
