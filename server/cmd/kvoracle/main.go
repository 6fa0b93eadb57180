package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"go.opentelemetry.io/otel"

	"github.com/kvoracle/kvoracle/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if _, isSet := os.LookupEnv("GOGC"); !isSet {
		debug.SetGCPercent(server.GCPercent)
	}
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}

// run is the program without the process around it; it returns the exit code.
func run(ctx context.Context, args []string, env lookup, stdout, stderr io.Writer) int {
	set, err := parse(args, env)
	switch {
	case errors.Is(err, flag.ErrHelp):
		writeHelp(stdout)
		return 0
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "kvoracle: %v\n(kvoracle --help lists the settings)\n", err)
		return 2
	case set.showVersion:
		_, _ = fmt.Fprintf(stdout, "kvoracle %s\n", server.Version())
		return 0
	}
	log := set.logger(stderr)
	// OpenTelemetry reports its own troubles, such as a collector that is away, through a global of the process.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("telemetry", slog.Any("error", err)) }))

	if err := serve(ctx, set, log, stdout); err != nil {
		_, _ = fmt.Fprintf(stderr, "kvoracle: %v\n", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, set *settings, log *slog.Logger, stdout io.Writer) error {
	s, err := server.New(set.Config, server.WithLogger(log)) //nolint:contextcheck // what it builds outlives ctx by its last export
	if err != nil {
		return err
	}
	if err := s.Listen(ctx); err != nil {
		return errors.Join(err, s.Close()) //nolint:contextcheck // the last export has a deadline of its own
	}
	_, _ = fmt.Fprintf(stdout, "kvoracle: serving on %s\n", s.Addr())
	if a := s.HTTPAddr(); a != nil {
		_, _ = fmt.Fprintf(stdout, "kvoracle: serving HTTP on %s\n", a)
	}
	if set.hint {
		_, _ = fmt.Fprintf(stdout, "try: %s\n", hintLine(s.Addr().String()))
	}
	return s.Run(ctx)
}
