package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/kvoracle/kvoracle/server"
)

// rereadEvery is how often the file of the settings is looked at. It is as often as the server looks at its own files.
const rereadEvery = 2 * time.Second

// rereader follows the settings of a server that runs. All sources are read again, so a flag goes on winning over the file.
// It is used by one goroutine.
type rereader struct {
	args   []string
	env    lookup
	server *server.Server
	log    *slog.Logger
	level  *slog.LevelVar

	now  settings // in force
	last settings // read last, good or bad
	told string   // what was wrong with it; empty: nothing
}

// run looks at the file now and again, and at everything when asked, until ctx is done.
func (r *rereader) run(ctx context.Context, asked <-chan os.Signal) {
	tick := time.NewTicker(rereadEvery)
	defer tick.Stop()
	for {
		select {
		case <-asked:
			r.read(true)
		case <-tick.C:
			if r.now.configFile != "" {
				r.read(false)
			}
		case <-ctx.Done():
			return
		}
	}
}

// read puts in force what the sources say now. What says the same as the last time is left alone unless somebody asks: a
// fault that stays is told once.
func (r *rereader) read(isAsked bool) {
	next, err := parse(r.args, r.env)
	told := ""
	if err != nil {
		next, told = &r.last, err.Error()
	}
	if !isAsked && *next == r.last && told == r.told {
		return
	}
	r.last, r.told = *next, told
	err = r.server.Reload(func() (server.Config, error) {
		if err != nil {
			return server.Config{}, err
		}
		return next.Config, r.fixed(next)
	})
	if err != nil {
		return // the server has said so
	}
	if next.logLevel != r.now.logLevel {
		r.log.Log(context.Background(), max(r.now.logLevel, slog.LevelInfo), "log level", slog.String("level", next.logLevel.String()))
		r.level.Set(next.logLevel)
	}
	r.now = *next
}

// fixed says which of the program's own settings cannot be what they have become. --hint is over when it serves.
func (r *rereader) fixed(next *settings) error {
	if next.logFormat != r.now.logFormat {
		return errors.New("--log-format: it cannot change while the server runs; restart it")
	}
	return nil
}
