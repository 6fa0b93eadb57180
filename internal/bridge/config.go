package bridge

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/engine/metrics"
)

// Config is what a bridge connects. It is also the schema of the YAML file, whose keys are the names in the tags; a key that
// is none of them is refused.
type Config struct {
	// Oracle is where the oracle serves, "host:port".
	Oracle string `yaml:"oracle"`
	// Listen is the operator's port: /metrics, /healthz and a page. Empty: none.
	Listen string `yaml:"listen"`
	// TokenFile holds the token for the oracle, and TLSCA the authorities of its certificate, PEM. Empty: as the command's own
	// flags say.
	TokenFile string `yaml:"token-file"`
	TLSCA     string `yaml:"tls-ca"`
	// Engines are the engines to speak for, each a worker. At least one, at most MaxEngines.
	Engines []Engine `yaml:"engines"`

	// Secret is the deployment's secret, which must equal the oracle's. Not in the file: files are shown around.
	Secret string `yaml:"-"`
}

// Engine is one engine: a worker with its data-parallel ranks. What is left out is asked of the engine.
type Engine struct {
	// Worker is the worker's name at the oracle. Required.
	Worker string `yaml:"worker"`
	// Address is where gateways reach the engine, "host:port".
	Address string `yaml:"address"`
	// Kind is auto, vllm, sglang or trtllm.
	Kind string `yaml:"engine"`

	// Events is where rank 0 publishes KV events: tcp://host:port or ipc://path; rank r is at port + r. Or it is where they are
	// had for all ranks: grpc://host:port of the engine's gRPC servicer (SMG's), grpcs:// if that speaks TLS,
	// http://host:port/kv_cache_events of TensorRT-LLM's buffer, of which there may be one reader only. Empty: as the engine says (SGLang does).
	Events string `yaml:"events"`
	// EventsCA has the authorities of a grpcs:// servicer's certificate, PEM; empty: the system's. EventsCert and EventsKey are
	// what is shown to it, for a servicer that asks (SGLang's with --ssl-ca-certs); both or neither. The files are read at each
	// handshake, so that they may be renewed.
	EventsCA   string `yaml:"events-ca"`
	EventsCert string `yaml:"events-cert"`
	EventsKey  string `yaml:"events-key"`
	// Bind is set for an engine that connects to its collector instead of waiting for it: then Events is bound here.
	Bind bool `yaml:"bind"`
	// Replay is where rank 0 repeats its events on request; rank r is at port + r. Empty: nowhere.
	Replay string `yaml:"replay"`
	// Topic is a prefix of the events' topic frame. Empty: every topic.
	Topic string `yaml:"topic"`

	// Metrics is the engine's Prometheus address, http://host:port/metrics. Empty: the load is what the other addresses say.
	Metrics string `yaml:"metrics"`
	// Load is where rank 0 publishes its load, tcp://host:port (SGLang's --load-publish-endpoint); rank r is at port + r. Empty:
	// as the engine says.
	Load string `yaml:"load"`
	// API is where the engine's other documents are. Empty: scheme and host of Metrics.
	API string `yaml:"api"`
	// ORCA is where an ORCA service reports load out of band, "host:port". Empty: none.
	ORCA string `yaml:"orca"`
	// LoadEvery is the time between two looks at the load. 0: DefaultLoadEvery.
	LoadEvery Duration `yaml:"load-every"`
	// BearerFile holds a token for Metrics and API. It is read at each use, so that it may be renewed.
	BearerFile string `yaml:"bearer-file"`

	// Model, BlockSize, Ranks and MaxRunning are what the engine would say itself; what is given and what it says must
	// agree. Ranks that nobody says are 1.
	Model      string `yaml:"model"`
	BlockSize  int    `yaml:"block-size"`
	Ranks      int    `yaml:"ranks"`
	MaxRunning int    `yaml:"max-running"`

	// Labels and Class are handed on: for Request.RequiredLabels, and the oracle's cost prior.
	Labels map[string]string `yaml:"labels"`
	Class  string            `yaml:"class"`
}

const (
	// MaxEngines is how many engines one bridge takes.
	MaxEngines = 256
	// MaxRanks is how many data-parallel ranks an engine may have.
	MaxRanks = 256
	// DefaultLoadEvery is the time between two looks at the load: an engine's step takes some 20 ms, and the oracle knows
	// of its own bookings in between.
	DefaultLoadEvery = 250 * time.Millisecond
)

// Duration is a time.Duration that YAML writes as "250ms".
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: got %q, want a duration such as 250ms", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}

// ReadConfig reads a file. Unknown keys, and keys given twice, are errors that name them.
func ReadConfig(r io.Reader) (Config, error) {
	const most = 1 << 20
	body, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return Config{}, err
	}
	if len(body) > most {
		return Config{}, fmt.Errorf("bridge: the file has more than %d bytes", most)
	}
	d := yaml.NewDecoder(bytes.NewReader(body))
	d.KnownFields(true)
	var c Config
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return Config{}, fmt.Errorf("bridge: %w", err)
	}
	if err := d.Decode(new(Config)); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("bridge: the file has more than one document")
	}
	return c, nil
}

// Check refuses what cannot work, naming the engine and the key, and fills in defaults.
func (c *Config) Check() error {
	if len(c.Engines) == 0 || len(c.Engines) > MaxEngines {
		return fmt.Errorf("bridge: engines: got %d, want 1 to %d", len(c.Engines), MaxEngines)
	}
	if c.Oracle == "" {
		return errors.New("bridge: oracle: want host:port")
	}
	names := make(map[string]bool)
	for i := range c.Engines {
		e := &c.Engines[i]
		if err := e.check(); err != nil {
			name := e.Worker
			if name == "" {
				name = fmt.Sprintf("engines[%d]", i)
			}
			return fmt.Errorf("bridge: %s: %w", name, err)
		}
		if names[e.Worker] {
			return fmt.Errorf("bridge: worker %s is given twice", e.Worker)
		}
		names[e.Worker] = true
	}
	return nil
}

func (e *Engine) check() error {
	if e.Worker == "" {
		return errors.New("worker: want a name")
	}
	kind, ok := kvevents.ParseEngine(cmp.Or(e.Kind, "auto"))
	if !ok || kind == kvevents.EngineMooncake { // a pool is no worker
		return fmt.Errorf("engine: got %q, want auto, vllm, sglang or trtllm", e.Kind)
	}
	if err := e.checkWay(kind); err != nil {
		return err
	}
	if e.Metrics != "" {
		base, err := metrics.Base(e.Metrics)
		if err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
		if e.API == "" {
			e.API = base
		}
	}
	if e.API == "" && wayOf(e.Events) == overHTTP {
		e.API = e.Events
	}
	if e.API != "" {
		base, err := metrics.Base(e.API)
		if err != nil {
			return errors.New("api: want http://host:port")
		}
		e.API = base
	}
	for _, n := range []struct {
		key             string
		got, from, upTo int
	}{
		{"ranks", e.Ranks, 0, MaxRanks},
		{"block-size", e.BlockSize, 0, 1 << 20},
		{"max-running", e.MaxRunning, 0, 1 << 30},
	} {
		if n.got < n.from || n.got > n.upTo {
			return fmt.Errorf("%s: got %d, want %d to %d", n.key, n.got, n.from, n.upTo)
		}
	}
	switch every := time.Duration(e.LoadEvery); {
	case every == 0:
		e.LoadEvery = Duration(DefaultLoadEvery)
	case every < 10*time.Millisecond || every > time.Minute:
		return fmt.Errorf("load-every: got %v, want 10ms to 1m", every)
	}
	if e.Events == "" && e.API == "" {
		return errors.New("events: want tcp://host:port, or api to ask the engine for it")
	}
	for _, a := range []struct{ key, address string }{{"replay", e.Replay}, {"load", e.Load}} {
		if a.address == "" {
			continue
		}
		if _, err := rankEndpoint(a.address, max(e.Ranks, 1)-1); err != nil {
			return fmt.Errorf("%s: %w", a.key, err)
		}
	}
	if e.Events != "" {
		if err := checkAddress(e.Events, e.Ranks); err != nil {
			return fmt.Errorf("events: %w", err)
		}
	}
	if e.Replay != "" && e.Ranks > 1 {
		// The engine's own defaults do this: rank 1 publishes where rank 0 repeats.
		if apart, same := distance(e.Events, e.Replay); same && apart < e.Ranks {
			return fmt.Errorf("replay: %d ports from events, want at least ranks, %d, apart", apart, e.Ranks)
		}
	}
	return nil
}

// checkWay refuses what a way of having events has no use for, and notes what it says of the engine.
func (e *Engine) checkWay(kind kvevents.Engine) error {
	x := wayOf(e.Events)
	if !isTLS(e.Events) {
		for _, k := range []struct{ key, file string }{{"events-ca", e.EventsCA}, {"events-cert", e.EventsCert}, {"events-key", e.EventsKey}} {
			if k.file != "" {
				return fmt.Errorf("%s: it is for grpcs://, and events is %q", k.key, e.Events)
			}
		}
	}
	if (e.EventsCert == "") != (e.EventsKey == "") {
		return errors.New("events-cert and events-key: want both or neither")
	}
	if x == overZeroMQ {
		return nil
	}
	for _, k := range []struct {
		key   string
		isSet bool
	}{{"bind", e.Bind}, {"replay", e.Replay != ""}, {"topic", e.Topic != ""}} {
		if k.isSet {
			return fmt.Errorf("%s: it is for ZeroMQ, and events is %s", k.key, e.Events)
		}
	}
	if x == overHTTP {
		if kind != kvevents.EngineUnknown && kind != kvevents.EngineTRTLLM {
			return fmt.Errorf("engine: %s has no events at %s, trtllm has", kind, e.Events)
		}
		e.Kind = kvevents.EngineTRTLLM.String()
	}
	return nil
}

// rankEndpoint is where a rank is, given where rank 0 is: ports count up with ranks.
func rankEndpoint(base string, rank int) (string, error) {
	if path, ok := strings.CutPrefix(base, "ipc://"); ok {
		if path == "" || rank > 0 {
			return "", fmt.Errorf("got %q, want ipc://path and one rank", base)
		}
		return base, nil
	}
	host, port, err := splitTCP(base)
	if err != nil || port+rank >= 1<<16 {
		return "", fmt.Errorf("got %q, want tcp://host:port or ipc://path", base)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port+rank)), nil
}

func splitTCP(endpoint string) (host string, port int, err error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", 0, errors.New("want tcp://host:port")
	}
	host, text, err := net.SplitHostPort(rest)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 1 || port >= 1<<16 || host == "" {
		return "", 0, errors.New("want tcp://host:port")
	}
	return host, port, nil
}

// distance is how many ports two endpoints of one host are apart.
func distance(a, b string) (ports int, sameHost bool) {
	hostA, portA, errA := splitTCP(a)
	hostB, portB, errB := splitTCP(b)
	if errA != nil || errB != nil || hostA != hostB {
		return 0, false
	}
	return max(portA-portB, portB-portA), true
}
