package main

import (
	"encoding"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvoracle/kvoracle/server"
)

// setting is one row of the table: a flag, and by its name an environment variable and a key of the file.
type setting struct {
	name, help string
	bind       func(f *flag.FlagSet, name, help string)
}

// group is a part of the table with a heading.
type group struct {
	title    string
	settings []setting
}

// The kinds of values. Each takes the present value, which is the default, as the one to show.
func str(p *string) func(*flag.FlagSet, string, string) {
	return func(f *flag.FlagSet, name, help string) { f.StringVar(p, name, *p, help) }
}

func number(p *int) func(*flag.FlagSet, string, string) {
	return func(f *flag.FlagSet, name, help string) { f.IntVar(p, name, *p, help) }
}

func fraction(p *float64) func(*flag.FlagSet, string, string) {
	return func(f *flag.FlagSet, name, help string) { f.Float64Var(p, name, *p, help) }
}

func yes(p *bool) func(*flag.FlagSet, string, string) {
	return func(f *flag.FlagSet, name, help string) { f.BoolVar(p, name, *p, help) }
}

func span(p *time.Duration) func(*flag.FlagSet, string, string) {
	return func(f *flag.FlagSet, name, help string) { f.DurationVar(p, name, *p, help) }
}

func text(p interface {
	encoding.TextMarshaler
	encoding.TextUnmarshaler
},
) func(*flag.FlagSet, string, string) {
	return func(f *flag.FlagSet, name, help string) { f.TextVar(p, name, p, help) }
}

// groups is the table of all settings, in the order of --help.
func (s *settings) groups() []group {
	return []group{
		{"Where it listens", []setting{
			{"listen", "host:port of the gRPC service, or unix:PATH; port 0 is any free one", str(&s.Listen)},
			{"ops-listen", "host:port for metrics, health and profiles; empty: none", str(&s.OpsListen)},
			{"http-listen", "host:port of the HTTP/JSON door, for gateways without gRPC; empty: none", str(&s.HTTPListen)},
			{"insecure", "allow addresses that other machines can reach, without TLS or access file", yes(&s.Insecure)},
			{"reflection", "show the schema to tools like grpcurl", yes(&s.Reflection)},
		}},
		{"Whom it trusts", []setting{
			{"tls-cert", "PEM file with the certificate, for all ports; empty: no TLS", str(&s.TLSCert)},
			{"tls-key", "PEM file with its key", str(&s.TLSKey)},
			{"tls-client-ca", "PEM file with the authorities of clients' certificates", str(&s.TLSClientCA)},
			{"tls-client-auth", "of clients where there are such: require, or optional", str(&s.TLSClientAuth)},
			{"tls12", "accept TLS 1.2 beside 1.3", yes(&s.TLS12)},
			{"access-file", "YAML file that says who may call what; empty: everybody everything", str(&s.AccessFile)},
		}},
		{"How it decides", []setting{
			{"policy", "how it chooses; others are for comparison, a wrong name lists them", str(&s.Policy)},
			{"shadow-policy", "a second one that books nothing, compared in metrics and traces", str(&s.ShadowPolicy)},
			{"expected-workers", "be ready once so many workers have reported; 0: at once", number(&s.ExpectedWorkers)},
			{"lease", "life of a booking without news from its gateway", span(&s.Lease)},
			{"report-fresh", "how long a load sample is believed", span(&s.ReportFresh)},
			{"guess-linger", "how long a finished request's blocks are expected unreported", span(&s.GuessLinger)},
			{"stream-grace", "how long blocks are trusted after a report stream was cut", span(&s.StreamGrace)},
			{"gateway-grace", "how long bookings are kept after their gateway's stream was cut", span(&s.GatewayGrace)},
			{"worker-lease", "how long a worker stays a candidate without a report stream", span(&s.WorkerLease)},
			{"secret", "mixed into block ids; better by environment or file than as a flag", str(&s.Secret)},
			{"stale-credit", "share of a target's blocks that counts while its reports are stale", fraction(&s.StaleCredit)},
		}},
		{"How much it takes", []setting{
			{"max-prompt-tokens", "longest prompt", number(&s.MaxPromptTokens)},
			{"max-message-bytes", "largest message; 0: what the longest prompt needs", number(&s.MaxMessageBytes)},
			{"max-concurrent-streams", "open calls on one connection", number(&s.MaxConcurrentStreams)},
			{"max-header-bytes", "size of a call's metadata", number(&s.MaxHeaderBytes)},
			{"max-connections", "open connections", number(&s.MaxConnections)},
			{"max-new-connections", "open connections that have made no call yet", number(&s.MaxNewConnections)},
			{"max-streams", "long streams of one identity, or host where there are none", number(&s.MaxStreams)},
			{"max-rate", "calls a second of one identity, or host; 0: any number", number(&s.MaxRate)},
			{"first-message-timeout", "how long the message of a call may take", span(&s.FirstMessageTimeout)},
			{"queue-target", "refuse some calls when they wait longer for a processor; -1s: never", span(&s.QueueTarget)},
			{"max-queued", "questions that may wait for a place when all workers are full; -1: none", number(&s.MaxQueued)},
			{"max-queued-tokens", "prompt tokens of those together", number(&s.MaxQueuedTokens)},
			{"max-workers", "workers in the fleet", number(&s.MaxWorkers)},
			{"max-blocks", "blocks in the index, each once per target, 12 to 16 bytes", number(&s.MaxBlocks)},
			{"max-engine-hashes", "engine hashes kept for workers that name blocks by them, 100 bytes", number(&s.MaxEngineHashes)},
		}},
		{"What outlives it", []setting{
			{"data-dir", "folder of its own to keep the index in over a restart; empty: none", str(&s.DataDir)},
			{"snapshot-interval", "how often the index is saved there, and by one of several replicas in NATS", span(&s.SnapshotInterval)},
			{"snapshots-only", "keep no log of reports there: cheaper, and a crash loses what came since", yes(&s.SnapshotsOnly)},
		}},
		{"Several replicas", []setting{
			{"nats-url", "NATS servers over which replicas are one service; empty: there is one", str(&s.NATSURL)},
			{"replica-id", "tells this replica from the others", str(&s.ReplicaID)},
			{"nats-prefix", "begins all subjects, so that services can share a NATS", str(&s.NATSPrefix)},
			{"nats-credentials", "file with NATS credentials", str(&s.NATSCredentials)},
			{"nats-ca", "PEM file with the authorities of NATS's certificates; makes TLS required", str(&s.NATSCA)},
			{"nats-cert", "PEM file with the certificate shown to NATS", str(&s.NATSCert)},
			{"nats-key", "PEM file with its key", str(&s.NATSKey)},
			{"nats-copies", "on how many NATS servers the log is kept, when it is made", number(&s.NATSCopies)},
		}},
		{"Envoy and other HTTP gateways", []setting{
			{"ext-proc-max-body", "longest body that Envoy may send; 0: what fits a message", number(&s.ExtProcMaxBody)},
			{"ext-proc-body-timeout", "how long a streamed body may take to come", span(&s.ExtProcBodyTimeout)},
			{"tokenize-url", "vLLM engine that turns text into tokens (/render or /tokenize); empty: none", str(&s.TokenizeURL)},
			{"tokenize-budget", "how long a decision waits for that", span(&s.TokenizeBudget)},
			{"gateway-max-queue", "how long a request of Envoy's or Dynamo's waits when all workers are full", span(&s.GatewayMaxQueue)},
			{"objectives", "priorities of objectives that requests name: name=priority,...", str(&s.Objectives)},
			{"first-byte-is-token", "engines send nothing before the first token, so access logs tell its time", yes(&s.FirstByteIsToken)},
			{"session-header", "HTTP header that names a request's session", str(&s.SessionHeader)},
			{"model-names", "what names in requests stand for: name=model+adapter@revision,...", str(&s.ModelNames)},
		}},
		{"Connections", []setting{
			{"keepalive-time", "ping a connection that was silent for so long", span(&s.KeepaliveTime)},
			{"keepalive-timeout", "give it up when the ping is not answered in this time", span(&s.KeepaliveTimeout)},
			{"keepalive-min-time", "send clients away that ping more often", span(&s.KeepaliveMinTime)},
			{"max-connection-age", "ask a connection to go after so long, so that clients spread", span(&s.MaxConnectionAge)},
			{"max-connection-age-grace", "how long its calls may go on then", span(&s.MaxConnectionAgeGrace)},
		}},
		{"Stopping", []setting{
			{"drain-delay", "go on serving after saying \"not ready\"; 5s behind a load balancer", span(&s.DrainDelay)},
			{"drain-timeout", "let calls end by themselves for so long", span(&s.DrainTimeout)},
		}},
		{"Logs", []setting{
			{"log-level", "debug, info, warn or error", text(&s.logLevel)},
			{"log-format", "text or json", str(&s.logFormat)},
			{"slow-call", "log calls that take longer; 0: none", span(&s.SlowCall)},
		}},
		{"The program", []setting{
			{flagConfig, "YAML file with settings, each under its flag's name", str(&s.configFile)},
			{"hint", "print a command to try, once it serves", yes(&s.hint)},
			{flagVersion, "print the version and end", yes(&s.showVersion)},
		}},
	}
}

// writeHelp explains all settings with their defaults.
func writeHelp(w io.Writer) {
	s := &settings{Config: server.DefaultConfig(), logFormat: "text"}
	flags := s.flagSet()
	_, _ = fmt.Fprintf(w, `kvoracle tells gateways which worker should take a prompt.

Usage: kvoracle [--setting=value ...]

Each setting is a flag, an environment variable (--drain-delay is %sDRAIN_DELAY) and a key of the --config file.
A flag wins over the environment, which wins over the file. Telemetry follows OpenTelemetry's OTEL_* variables; nothing
is exported unless they ask for it.
`, envPrefix)
	for _, g := range s.groups() {
		_, _ = fmt.Fprintf(w, "\n%s:\n", g.title)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, x := range g.settings {
			f := flags.Lookup(x.name)
			_, _ = fmt.Fprintf(t, "  --%s\t%s\t%s\n", f.Name, shownDefault(f.DefValue), f.Usage)
		}
		_ = t.Flush()
	}
}

// shownDefault is a default as a person wants to read it.
func shownDefault(v string) string {
	switch v {
	case "":
		return "(none)"
	case "false":
		return "off"
	case "true":
		return "on"
	}
	if short, ok := strings.CutSuffix(v, "m0s"); ok { // a time.Duration never says just 30m
		v = short + "m"
	}
	return strings.ToLower(v)
}

// hintLine is a command that asks the server at this address for a decision.
func hintLine(address string) string {
	return "go run ./client/cmd/kvoraclectl route --server " + address + " --model demo --tokens 1-64"
}
