package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/kvoracle/kvoracle/internal/bridge"
)

// bridgeCmd speaks for engines that know nothing of kvoracle. Flags are for one engine; a file takes any number.
type bridgeCmd struct {
	File string `help:"YAML file with any number of engines, instead of the flags about one; deploy/bridge.yaml shows its keys." type:"existingfile" placeholder:"FILE"`

	Worker     string            `name:"worker-id" help:"Name of the worker." placeholder:"NAME"`
	Address    string            `help:"Where gateways reach the engine." placeholder:"HOST:PORT"`
	Engine     string            `help:"auto, vllm, sglang or trtllm." default:"auto"`
	Events     string            `help:"Where rank 0 publishes KV events, rank r at port + r; or grpc:// or grpcs://HOST:PORT of the engine's gRPC servicer (SMG's), or http://HOST:PORT/kv_cache_events of TensorRT-LLM. Default: as the engine says." placeholder:"tcp://HOST:PORT"`
	EventsCA   string            `name:"events-ca" help:"PEM file with the authorities of a grpcs:// servicer's certificate; otherwise the system's." placeholder:"FILE"`
	EventsCert string            `help:"PEM file with a certificate to show to it, if it asks." placeholder:"FILE"`
	EventsKey  string            `help:"PEM file with that one's key." placeholder:"FILE"`
	Bind       bool              `help:"Wait at --events for an engine that connects by itself."`
	EventTopic string            `help:"Only events whose topic begins so." placeholder:"PREFIX"`
	Replay     string            `help:"Where rank 0 repeats events; rank r is at port + r." placeholder:"tcp://HOST:PORT"`
	Metrics    string            `help:"The engine's Prometheus address." placeholder:"http://HOST:PORT/metrics"`
	Load       string            `help:"Where rank 0 publishes its load, as SGLang does; rank r is at port + r. Default: as the engine says." placeholder:"tcp://HOST:PORT"`
	API        string            `name:"api" help:"Where the engine's other documents are. Default: host of --metrics." placeholder:"http://HOST:PORT"`
	ORCA       string            `name:"orca" help:"Where an ORCA service reports load out of band." placeholder:"HOST:PORT"`
	LoadEvery  time.Duration     `help:"Time between two looks at the load." default:"250ms"`
	BearerFile string            `help:"File with a token for --metrics and --api." placeholder:"FILE"`
	Model      string            `help:"Model, if the engine does not say it."`
	BlockSize  int               `help:"Tokens per KV block, if the engine does not say it."`
	Ranks      int               `help:"Data-parallel ranks, if the engine does not say it."`
	MaxRunning int               `help:"Requests a rank runs at once, if the engine does not say it."`
	Label      map[string]string `help:"Labels for Request.required_labels." placeholder:"KEY=VALUE"`
	Class      string            `help:"Performance class, for the oracle's cost prior."`

	Listen string `help:"Operator's port: /metrics, /healthz and a page. Empty: none." default:"127.0.0.1:7072"`
	Secret string `help:"The deployment's secret, equal to the oracle's; better by environment." env:"KVORACLE_SECRET"`
}

// Run bridges until interrupted.
func (c *bridgeCmd) Run(e *env) error {
	cfg, err := c.config(e.cli.Server)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		key, file string
		flag      *string
	}{{"token-file", cfg.TokenFile, &e.cli.Security.TokenFile}, {"tls-ca", cfg.TLSCA, &e.cli.Security.TLSCA}} {
		if x.file != "" && *x.flag != "" && x.file != *x.flag {
			return fmt.Errorf("%s: %s says %s, the flags or the environment say %s", x.key, c.File, x.file, *x.flag)
		}
		*x.flag = cmp.Or(*x.flag, x.file)
	}
	log := slog.New(slog.NewTextHandler(e.err, nil))
	conn, err := e.dialTo(cfg.Oracle)
	if err != nil {
		return err
	}
	b, err := bridge.New(cfg, conn, log)
	if err != nil {
		return err
	}
	return b.Run(e.ctx)
}

func (c *bridgeCmd) config(server string) (bridge.Config, error) {
	cfg := bridge.Config{}
	one := bridge.Engine{
		Worker: c.Worker, Address: c.Address, Kind: c.Engine, Events: c.Events,
		EventsCA: c.EventsCA, EventsCert: c.EventsCert, EventsKey: c.EventsKey, Bind: c.Bind, Topic: c.EventTopic, Replay: c.Replay,
		Metrics: c.Metrics, Load: c.Load, API: c.API, ORCA: c.ORCA, LoadEvery: bridge.Duration(c.LoadEvery), BearerFile: c.BearerFile,
		Model: c.Model, BlockSize: c.BlockSize, Ranks: c.Ranks, MaxRunning: c.MaxRunning, Labels: c.Label, Class: c.Class,
	}
	switch {
	case c.File == "":
		cfg.Engines = []bridge.Engine{one}
	case c.Worker != "" || c.Events != "" || c.Metrics != "" || c.API != "" || c.Load != "" || c.Replay != "" || c.ORCA != "":
		return cfg, errors.New("want --file or flags about one engine, not both")
	default:
		f, err := os.Open(c.File)
		if err != nil {
			return cfg, err
		}
		defer f.Close()
		if cfg, err = bridge.ReadConfig(f); err != nil {
			return cfg, fmt.Errorf("%s: %w", c.File, err)
		}
	}
	if cfg.Oracle == "" {
		cfg.Oracle = server
	}
	if cfg.Listen == "" {
		cfg.Listen = c.Listen
	}
	cfg.Secret = c.Secret
	return cfg, nil
}
