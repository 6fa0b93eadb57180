// Command kvoraclectl talks to a kvoracle: ask for a route, see why it was chosen, watch the fleet, run a transcript, or
// see the whole thing at work on a simulated fleet.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// cli is every command and flag.
type cli struct {
	Config   kong.ConfigFlag `help:"YAML file with flags, each under its name; those of a command under the command's name." env:"KVORACLECTL_CONFIG" placeholder:"FILE"`
	Server   string          `help:"Address of the oracle." default:"127.0.0.1:7070" env:"KVORACLE_SERVER" placeholder:"HOST:PORT"`
	Security securityFlags   `embed:""`
	Timeout  time.Duration   `help:"Longest wait for one answer." default:"5s" env:"KVORACLE_TIMEOUT"`

	Route    routeCmd    `cmd:"" help:"Ask which worker should serve a prompt."`
	Explain  explainCmd  `cmd:"" help:"Show why a recent decision was made, candidate by candidate."`
	Workers  workersCmd  `cmd:"" help:"List the workers and what the oracle believes of them."`
	Watch    watchCmd    `cmd:"" help:"List the workers again whenever something changes."`
	Top      topCmd      `cmd:"" help:"Watch the fleet: load, caches, decisions a second, the share of prompts found in caches."`
	Verify   verifyCmd   `cmd:"" help:"Show what a worker is believed to hold, to compare it with the engine."`
	Drain    drainCmd    `cmd:"" help:"Take a worker out of new choices, or back in."`
	Remove   removeCmd   `cmd:"" help:"Forget a worker."`
	Script   scriptCmd   `cmd:"" help:"Run a protocol transcript and compare the answers."`
	Bench    benchCmd    `cmd:"" help:"Measure a deployment: calls at a fixed rate, and the percentiles of what they take."`
	Demo     demoCmd     `cmd:"" help:"Route a real trace on a simulated fleet, live, and compare policies."`
	Record   recordCmd   `cmd:"" help:"Write a log of live requests for a replay: lengths, times and scrambled block hashes, no tokens. With --endpoint: what an engine publishes."`
	Bridge   bridgeCmd   `cmd:"" help:"Speak for engines: their KV events and load, reported to the oracle."`
	Discover discoverCmd `cmd:"" help:"Keep the fleet as a file, DNS or Kubernetes says it is."`
	Replay   replayCmd   `cmd:"" help:"Serve your own request log with every policy in virtual time, and plot the difference."`
	Capture  captureCmd  `cmd:"" help:"Write what an engine publishes about its cache to a file. It holds token ids."`
	Play     playCmd     `cmd:"" help:"Publish such a file again, as the engine did."`
}

// env is what a command works with.
type env struct {
	ctx  context.Context
	out  io.Writer
	err  io.Writer
	cli  *cli
	conn *grpc.ClientConn
}

// dial connects lazily: the first call finds out whether anybody is there.
func (e *env) dial() (*grpc.ClientConn, error) { return e.dialTo(e.cli.Server) }

// dialTo is dial for a server that is named elsewhere.
func (e *env) dialTo(server string) (*grpc.ClientConn, error) {
	if e.conn != nil {
		return e.conn, nil
	}
	opts, err := e.cli.Security.dialOptions(server)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(server, append(opts, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))...)
	if err != nil {
		return nil, err
	}
	e.conn = conn
	return conn, nil
}

func (e *env) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(e.ctx, e.cli.Timeout)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process around it.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	var c cli
	exit, code := false, 0
	parser, err := kong.New(&c,
		kong.Name("kvoraclectl"),
		kong.Description("Talks to a kvoracle, the routing oracle for LLM gateways."),
		kong.Writers(out, errs),
		kong.Exit(func(n int) { exit, code = true, n }),
		kong.UsageOnError(),
		kong.Configuration(readConfig),
	)
	if err != nil {
		fmt.Fprintln(errs, "kvoraclectl:", err)
		return 1
	}
	parsed, err := parser.Parse(args)
	if exit {
		return code
	}
	if err != nil {
		fmt.Fprintln(errs, "kvoraclectl:", err)
		return 2
	}
	e := &env{ctx: ctx, out: out, err: errs, cli: &c}
	err = parsed.Run(e)
	if e.conn != nil {
		e.conn.Close()
	}
	if err != nil {
		fmt.Fprintln(errs, "kvoraclectl:", explainError(err))
		return 1
	}
	return 0
}

// explainError says an error of the oracle the way it said it, without gRPC's wrapping.
func explainError(err error) string {
	if errors.Is(err, context.Canceled) {
		return "interrupted"
	}
	var said interface {
		error
		GRPCStatus() *status.Status
	}
	if errors.As(err, &said) { // whatever wraps it repeats its text
		st := said.GRPCStatus()
		return strings.Replace(err.Error(), said.Error(), fmt.Sprintf("%s: %s", st.Code(), st.Message()), 1)
	}
	return err.Error()
}
