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

	"github.com/kvoracle/kvoracle/internal/journal"
	"github.com/kvoracle/kvoracle/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if _, isSet := os.LookupEnv("GOGC"); !isSet {
		debug.SetGCPercent(server.GCPercent)
	}
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	os.Exit(run(ctx, hangups, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}

// run is the program without the process around it; it returns the exit code. Each value of hangups makes it read its
// settings again.
func run(ctx context.Context, hangups <-chan os.Signal, args []string, env lookup, stdout, stderr io.Writer) int {
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
	level := &slog.LevelVar{}
	level.Set(set.logLevel)
	log := set.logger(stderr, level)
	// OpenTelemetry reports its own troubles, such as a collector that is away, through a global of the process.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("telemetry", slog.Any("error", err)) }))

	follow := &rereader{args: args, env: env, log: log, level: level, now: *set, last: *set}
	if err := serve(ctx, follow, hangups, stdout); err != nil {
		_, _ = fmt.Fprintf(stderr, "kvoracle: %v\n", err)
		return 1
	}
	return 0
}

// newJournal is where the log of --data-dir is.
func newJournal(dir string, maxBytes int64, log *slog.Logger) server.Journal {
	return journal.New(journal.Config{Dir: dir, MaxBytes: maxBytes, Log: log})
}

func serve(ctx context.Context, follow *rereader, hangups <-chan os.Signal, stdout io.Writer) error {
	set := follow.now
	s, err := server.New(set.Config, server.WithLogger(follow.log), server.WithJournal(newJournal)) //nolint:contextcheck // what it builds outlives ctx by its last export
	if err != nil {
		return err
	}
	if err := s.Listen(ctx); err != nil {
		return errors.Join(err, s.Close()) //nolint:contextcheck // the last export has a deadline of its own
	}
	_, _ = fmt.Fprintf(stdout, "kvoracle: serving on %s\n", server.AddressOf(s.Addr()))
	if a := s.HTTPAddr(); a != nil {
		_, _ = fmt.Fprintf(stdout, "kvoracle: serving HTTP on %s\n", server.AddressOf(a))
	}
	if set.hint {
		_, _ = fmt.Fprintf(stdout, "try: %s\n", hintLine(server.AddressOf(s.Addr())))
	}
	following, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	follow.server = s
	go func() {
		defer close(done)
		follow.run(following, hangups) //nolint:contextcheck // what it changes outlives ctx by the drain
	}()
	err = s.Run(ctx)
	stop()
	<-done
	return err
}
