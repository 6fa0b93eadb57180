package server

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestDefaultsRun(t *testing.T) {
	for name, c := range map[string]Config{"zero": {}, "default": DefaultConfig()} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s configuration: %v", name, err)
		}
		filled := reflect.ValueOf(c.withDefaults())
		for _, f := range reflect.VisibleFields(filled.Type()) {
			switch f.Name {
			case "OpsListen", "HTTPListen", "Insecure", "ExpectedWorkers", "DrainDelay", "Reflection", "SlowCall", "Secret", "ShadowPolicy",
				"ModelNames", "TokenizeURL", "GatewayMaxQueue", "Objectives", "FirstByteIsToken",
				"TLSCert", "TLSKey", "TLSClientCA", "TLS12", "AccessFile", "MaxRate", "DataDir", "SnapshotsOnly",
				"NATSURL", "ReplicaID", "NATSCredentials", "NATSCA", "NATSCert", "NATSKey":
				continue // zero means none or off
			}
			if filled.FieldByIndex(f.Index).IsZero() {
				t.Errorf("%s configuration: %s has no default", name, f.Name)
			}
		}
	}
}

func TestLongestPromptFitsTheDefaultMessage(t *testing.T) {
	for _, tokens := range []int{0, 1000, 1 << 22} {
		c := Config{MaxPromptTokens: tokens}.withDefaults()
		if c.MaxMessageBytes < 4*c.MaxPromptTokens+1024 {
			t.Errorf("%d tokens: messages of %d bytes", c.MaxPromptTokens, c.MaxMessageBytes)
		}
		if err := (Config{MaxPromptTokens: tokens}).Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestContradictionsAreNamed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"not loopback", func(c *Config) { c.Listen = "0.0.0.0:7070" }, []string{"Listen", "0.0.0.0:7070", "Insecure", "TLS"}},
		{"all interfaces", func(c *Config) { c.Listen = ":7070" }, []string{"Listen", "Insecure"}},
		{"a host name", func(c *Config) { c.OpsListen = "oracle.example:7071" }, []string{"OpsListen", "Insecure"}},
		{"TLS and nobody known", func(c *Config) { c.Listen, c.TLSCert, c.TLSKey = ":7070", "c", "k" }, []string{"Listen", "AccessFile"}},
		{"credentials in plain", func(c *Config) { c.OpsListen, c.AccessFile = ":7071", "f" }, []string{"OpsListen", "TLSCert"}},
		{"no key", func(c *Config) { c.TLSCert = "c" }, []string{"TLSCert", "TLSKey"}},
		{"clients' authorities", func(c *Config) { c.TLSClientCA = "c" }, []string{"TLSClientCA", "TLSCert"}},
		{"client auth", func(c *Config) { c.TLSClientAuth = "maybe" }, []string{"TLSClientAuth", "maybe", "optional"}},
		{"new connections", func(c *Config) { c.MaxNewConnections = 1 << 20 }, []string{"MaxNewConnections", "MaxConnections"}},
		{"no port", func(c *Config) { c.Listen = "127.0.0.1" }, []string{"Listen", "host:port", "unix:"}},
		{"a socket without a path", func(c *Config) { c.Listen = "unix:" }, []string{"Listen", "path"}},
		{"a socket without a file", func(c *Config) { c.Listen = "unix:@kvoracle" }, []string{"Listen", "@kvoracle"}},
		{"too long a path", func(c *Config) { c.HTTPListen = "unix:/" + strings.Repeat("p", 103) }, []string{"HTTPListen", "103"}},
		{"the same socket", func(c *Config) { c.Listen, c.HTTPListen = "unix:/run/k", "unix:/run/k" }, []string{"Listen and HTTPListen"}},
		{"the same port", func(c *Config) { c.OpsListen = c.Listen }, []string{"Listen", "OpsListen"}},
		{"HTTP not loopback", func(c *Config) { c.HTTPListen = "0.0.0.0:7072" }, []string{"HTTPListen", "Insecure"}},
		{"the same port for HTTP", func(c *Config) { c.HTTPListen = c.OpsListen }, []string{"HTTPListen", "OpsListen"}},
		{"policy", func(c *Config) { c.Policy = "magic" }, []string{"Policy", "magic", "least_time"}},
		{"shadow policy", func(c *Config) { c.ShadowPolicy = "magic" }, []string{"ShadowPolicy", "magic", "block_cost"}},
		{"message too small", func(c *Config) { c.MaxMessageBytes = 1000 }, []string{"MaxMessageBytes", "MaxPromptTokens"}},
		{"never ready", func(c *Config) { c.ExpectedWorkers, c.MaxWorkers = 5, 4 }, []string{"ExpectedWorkers", "MaxWorkers", "5", "4"}},
		{"grace over lease", func(c *Config) { c.StreamGrace = 2 * time.Minute }, []string{"StreamGrace", "WorkerLease", "2m0s", "1m0s"}},
		{"negative", func(c *Config) { c.DrainTimeout = -1 }, []string{"DrainTimeout", "-1ns"}},
		{"negative count", func(c *Config) { c.MaxBlocks = -3 }, []string{"MaxBlocks", "-3"}},
		{"pings too fast", func(c *Config) { c.KeepaliveTime = time.Millisecond }, []string{"KeepaliveTime", "1ms", "1s"}},
		{"gateway grace", func(c *Config) { c.GatewayGrace = -time.Second }, []string{"GatewayGrace", "-1s"}},
		{"body over message", func(c *Config) { c.ExtProcMaxBody = 4<<20 + 1 }, []string{"ExtProcMaxBody", "4194305", "MaxMessageBytes"}},
		{"an objective without priority", func(c *Config) { c.Objectives = "premium" }, []string{"Objectives", "premium", "name=priority"}},
		{"an objective of too high a priority", func(c *Config) { c.Objectives = "a=1,b=2147483648" }, []string{"Objectives", "b=2147483648"}},
		{"an objective twice", func(c *Config) { c.Objectives = "a=1,a=2" }, []string{"Objectives", "twice"}},
		{"a wait into the past", func(c *Config) { c.GatewayMaxQueue = -1 }, []string{"GatewayMaxQueue"}},
		{"no URL", func(c *Config) { c.TokenizeURL = "127.0.0.1:8000" }, []string{"TokenizeURL", "127.0.0.1:8000", "http://"}},
		{"model names", func(c *Config) { c.ModelNames = "a=m,b" }, []string{"ModelNames", `"b"`}},
		{"an adapter without a name", func(c *Config) { c.ModelNames = "a=m+" }, []string{"ModelNames", `"a=m+"`}},
		{"a name twice", func(c *Config) { c.ModelNames = "a=m,a=n" }, []string{"ModelNames", `"a"`}},
		{"guess linger", func(c *Config) { c.GuessLinger = -time.Second }, []string{"GuessLinger", "-1s"}},
		{"long secret", func(c *Config) { c.Secret = strings.Repeat("s", 257) }, []string{"Secret", "257", "256"}},
		{"credit", func(c *Config) { c.StaleCredit = 1.5 }, []string{"StaleCredit", "1.5"}},
		{"no credit", func(c *Config) { c.StaleCredit = -0.1 }, []string{"StaleCredit", "-0.1"}},
		{"queue", func(c *Config) { c.MaxQueued = 1<<20 + 1 }, []string{"MaxQueued", "1048577"}},
		{"queued tokens", func(c *Config) { c.MaxQueuedTokens = -1 }, []string{"MaxQueuedTokens", "-1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			c.change(&cfg)
			err := cfg.Validate()
			if err == nil {
				t.Fatal("no error")
			}
			if n := strings.Count(err.Error(), "\n") + 1; n != 1 {
				t.Errorf("%d faults, want 1: %v", n, err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %q", err, want)
				}
			}
			if _, err := New(cfg); err == nil {
				t.Error("New accepted it")
			}
		})
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	c := Config{Listen: "x", Policy: "y", StaleCredit: -1, MaxWorkers: -1}
	if err := c.Validate(); err == nil || strings.Count(err.Error(), "\n") < 3 {
		t.Errorf("want four faults or more, got %v", err)
	}
}

func TestLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.8.8.8:1": true, "[::1]:1": true, "localhost:1": true,
		"0.0.0.0:1": false, ":1": false, "[::]:1": false, "10.0.0.1:1": false, "example.org:1": false, "bad": false,
	} {
		if got := isLoopback(address); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
	if err := (Config{Listen: "0.0.0.0:0", OpsListen: "[::]:7071", Insecure: true}).Validate(); err != nil {
		t.Errorf("Insecure must allow it: %v", err)
	}
}

func TestTheOracleGetsWhatIsSet(t *testing.T) {
	got := Config{Secret: "s", GatewayGrace: 3 * time.Second, GuessLinger: 4 * time.Second}.withDefaults().oracle()
	if got.Secret != "s" || got.GatewayGrace != 3*time.Second || got.GuessLinger != 4*time.Second {
		t.Errorf("secret %q, gateway grace %v, guess linger %v", got.Secret, got.GatewayGrace, got.GuessLinger)
	}
}

func TestALongSecretIsNotShown(t *testing.T) {
	secret := strings.Repeat("hush", 100)
	if err := (Config{Secret: secret}).Validate(); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("got %v", err)
	}
}
