package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

type topCmd struct {
	Model    string        `help:"Only workers of this model."`
	Interval time.Duration `help:"Time between two looks; rates are over it." default:"1s"`
	Sort     string        `help:"Order of the rows: ${enum}." enum:"load,decisions,name" default:"load"`
	Once     bool          `help:"Show one picture, after one interval, and end."`
	JSON     bool          `name:"json" help:"Write a JSON object for each look instead."`
	Metrics  string        `help:"Where the oracle's metrics are, for the share of prompts that is found in caches; none: without. By default port 7071 of --server." placeholder:"URL"`
}

// leastInterval keeps a tool for people from being a load.
const leastInterval = 100 * time.Millisecond

// Run shows the fleet until it is interrupted or somebody presses q.
func (c *topCmd) Run(e *env) error {
	if c.Interval < leastInterval {
		return fmt.Errorf("--interval: got %v, want at least %v", c.Interval, leastInterval)
	}
	conn, err := e.dial()
	if err != nil {
		return err
	}
	where := cmp.Or(c.Metrics, defaultMetrics(e.cli.Server, e.cli.Security.isTLS()))
	totals, err := newTotals(where, &e.cli.Security)
	if err != nil {
		return err
	}
	look := looker{fleet: kvoraclev1.NewFleetServiceClient(conn), totals: totals, model: c.Model, sort: c.Sort, timeout: e.cli.Timeout}
	ctx, stop := context.WithCancel(e.ctx)
	defer stop()
	var show display = plain{e.out}
	out, isTerminal := terminal(e.out)
	switch {
	case c.JSON:
		show = jsonLines{json.NewEncoder(e.out)}
	case isTerminal && !c.Once:
		screen, err := openScreen(os.Stdin, out, stop)
		if err != nil {
			return err
		}
		defer screen.close()
		show = screen
	}
	return c.loop(ctx, &look, show, e.cli.Server)
}

// display shows one look after the other.
type display interface{ show(f *frame) error }

// loop looks, and shows from the second look on, when there are rates. An oracle that is away for a while is a thing to show
// to people who watch; where one picture was asked for it is an error.
func (c *topCmd) loop(ctx context.Context, look *looker, show display, server string) error {
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	_, isScreen := show.(*screen)
	for n := 0; ; n++ {
		f, err := look.next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (!isScreen || n == 0):
			return err
		case err != nil:
			f = &frame{Trouble: explainError(err)}
		}
		f.Server = server
		if n > 0 || isScreen {
			if err := show.show(f); err != nil {
				return err
			}
			if c.Once {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// plain shows looks one below the other, for files and pipes.
type plain struct{ out io.Writer }

func (p plain) show(f *frame) error {
	for _, line := range f.lines() {
		if _, err := fmt.Fprintln(p.out, line.text); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(p.out)
	return err
}

// jsonLines shows them to programs.
type jsonLines struct{ to *json.Encoder }

func (j jsonLines) show(f *frame) error { return j.to.Encode(f) }

// looker looks at the fleet and keeps the look before.
type looker struct {
	fleet   kvoraclev1.FleetServiceClient
	totals  *totals
	model   string
	sort    string
	timeout time.Duration
	before  *look
}

// look is the fleet at one moment.
type look struct {
	at      time.Time
	workers []*kvoraclev1.Worker
	sums    *sums // nil: no metrics
}

// next looks again and compares with the look before; the first time there is nothing to compare with, and rates are 0.
func (l *looker) next(ctx context.Context) (*frame, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	m, err := l.fleet.ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{Model: l.model})
	if err != nil {
		return nil, err
	}
	now := &look{at: time.Now(), workers: m.GetWorkers()}
	f := compare(l.before, now)
	if now.sums, err = l.totals.read(ctx); err != nil {
		f.NoMetrics = err.Error()
	}
	f.addSums(l.before, now)
	f.order(l.sort)
	l.before = now
	return f, nil
}

// defaultMetrics is where the metrics of a server are unless it was told otherwise.
func defaultMetrics(server string, isTLS bool) string {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return noMetrics
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(host, "7071"), Path: "/metrics"}
	if isTLS {
		u.Scheme = "https"
	}
	return u.String()
}

// noMetrics says that none are wanted.
const noMetrics = "none"

var errNoMetrics = errors.New("not asked for")
