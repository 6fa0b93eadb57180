package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/kvoracle/kvoracle/internal/discovery"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// discoverCmd keeps the oracle's fleet as a directory says it is. Exactly one directory is named.
type discoverCmd struct {
	File    string `help:"YAML or JSON file that lists workers; read again when it changes." placeholder:"FILE" xor:"source" required:""`
	DNS     string `name:"dns" help:"Name with a port, or a name of SRV records." placeholder:"NAME:PORT" xor:"source" required:""`
	Service string `help:"Kubernetes Service, [NAMESPACE/]NAME, whose EndpointSlices are followed." placeholder:"NAME" xor:"source" required:""`
	Pool    string `help:"Kubernetes InferencePool, [NAMESPACE/]NAME, whose pods are followed." placeholder:"NAME" xor:"source" required:""`

	Port      string            `help:"Name or number of the Service's port. Default: its first." placeholder:"PORT"`
	KubeAPI   string            `name:"kube-api" help:"Kubernetes API server, without credentials (kubectl proxy). Default: as a pod is told." placeholder:"URL"`
	Model     string            `help:"Model of the workers found; not with --file."`
	BlockSize uint32            `help:"Tokens per KV block of the workers found; not with --file."`
	Class     string            `help:"Performance class of the workers found."`
	Label     map[string]string `help:"Labels of the workers found." placeholder:"KEY=VALUE"`

	Name   string        `help:"Tells this agent's workers from those of others; the same after a restart." default:"discovery"`
	Every  time.Duration `help:"Longest time between two looks." default:"5s"`
	Forget time.Duration `help:"How long a worker is kept, drained, that is not listed any more." default:"1m"`
	Listen string        `help:"host:port of /metrics. Empty: none." placeholder:"HOST:PORT"`
}

// Run follows the directory until interrupted.
func (c *discoverCmd) Run(e *env) error {
	source, err := c.source()
	if err != nil {
		return err
	}
	conn, err := e.dial()
	if err != nil {
		return err
	}
	agent := discovery.New(discovery.Config{
		Fleet: kvoraclev1.NewFleetServiceClient(conn), Source: source, Name: c.Name, Every: c.Every, Forget: c.Forget,
		Timeout: e.cli.Timeout, Log: slog.New(slog.NewTextHandler(e.err, nil)),
	})
	if c.Listen != "" {
		stop, err := serveStats(e.ctx, c.Listen, agent)
		if err != nil {
			return err
		}
		defer stop()
	}
	agent.Run(e.ctx)
	return nil
}

func (c *discoverCmd) source() (discovery.Source, error) {
	if c.File != "" {
		if c.Model != "" || c.BlockSize != 0 || c.Class != "" || len(c.Label) > 0 {
			return nil, errors.New("with --file, model, block size, class and labels are in the file")
		}
		return &discovery.File{Path: c.File}, nil
	}
	if c.Model == "" || c.BlockSize == 0 {
		return nil, errors.New("want --model and --block-size: no directory knows them")
	}
	template := &kvoraclev1.WorkerSpec{Model: c.Model, BlockSize: c.BlockSize, PerformanceClass: c.Class, Labels: c.Label}
	if c.DNS != "" {
		return &discovery.DNS{Name: c.DNS, Template: template}, nil
	}
	k := &discovery.Kube{API: c.KubeAPI, Port: c.Port, Template: template}
	name := c.Service + c.Pool
	namespace, rest, ok := strings.Cut(name, "/")
	if ok {
		k.Namespace, name = namespace, rest
	}
	if c.Service != "" {
		k.Service = name
	} else {
		k.Pool = name
	}
	switch {
	case c.KubeAPI == "":
		if err := k.InCluster(); err != nil {
			return nil, err
		}
	case k.Namespace == "":
		k.Namespace = "default"
	}
	return k, nil
}

// serveStats shows an agent's counts to Prometheus.
func serveStats(ctx context.Context, listen string, agent *discovery.Agent) (stop func(), err error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		s := agent.Stats()
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		for _, m := range []struct {
			name, kind, help string
			value            uint64
		}{
			{"looks_total", "counter", "Looks at the directory.", s.Looks},
			{"failed_looks_total", "counter", "Looks that failed; they change nothing.", s.FailedLooks},
			{"failed_calls_total", "counter", "Calls that the oracle refused or did not answer.", s.FailedCalls},
			{"registered_total", "counter", "Workers registered.", s.Registered},
			{"drained_total", "counter", "Workers drained.", s.Drained},
			{"let_in_total", "counter", "Workers let back in.", s.LetIn},
			{"removed_total", "counter", "Workers removed.", s.Removed},
			{"endpoints", "gauge", "Endpoints at the last look that did not fail.", uint64(s.Listed)},
		} {
			_, _ = fmt.Fprintf(w, "# HELP kvoracle_discovery_%[1]s %[2]s\n# TYPE kvoracle_discovery_%[1]s %[3]s\nkvoracle_discovery_%[1]s %[4]d\n", m.name, m.help, m.kind, m.value)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lis) }()
	return func() {
		_ = server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, err)
		}
	}, nil
}
