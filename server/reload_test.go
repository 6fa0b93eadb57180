package server

import (
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// set is a reload to what the server has, changed.
func (r *rig) set(edit func(c *Config)) error {
	return r.s.Reload(func() (Config, error) {
		c := *r.s.current.Load()
		edit(&c)
		return c, nil
	})
}

func (r *rig) mustSet(edit func(c *Config)) {
	r.t.Helper()
	before := r.counted("kvoracle.reloads", "file=config", "outcome=applied")
	if err := r.set(edit); err != nil {
		r.t.Fatal(err)
	}
	if n := r.counted("kvoracle.reloads", "file=config", "outcome=applied") - before; n != 1 {
		r.t.Errorf("%d reloads counted, want 1", n)
	}
}

// TestReload changes every setting that can change, each alone, and looks at what it does.
func TestReload(t *testing.T) {
	ask := func(t *testing.T, r *rig) *kvoraclev1.RouteResponse {
		t.Helper()
		m, err := r.route.Route(t.Context(), prompt(1, 2, 3))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	left := changes()
	for field, check := range map[string]func(t *testing.T, r *rig){
		"Policy": func(t *testing.T, r *rig) {
			if p := ask(t, r).GetPolicy(); p != "least_time" {
				t.Errorf("before: %s", p)
			}
			r.mustSet(func(c *Config) { c.Policy = "round_robin" })
			if p := ask(t, r).GetPolicy(); p != "round_robin" {
				t.Errorf("after: %s", p)
			}
		},
		"ShadowPolicy": func(t *testing.T, r *rig) {
			ask(t, r)
			r.mustSet(func(c *Config) { c.ShadowPolicy = "random" })
			ask(t, r)
			r.mustSet(func(c *Config) { c.ShadowPolicy = "" })
			ask(t, r)
			if n := r.counted("kvoracle.shadow.decisions", "shadow=random"); n != 1 {
				t.Errorf("%d decisions with a shadow, want that in between", n)
			}
		},
		"ModelNames": func(t *testing.T, r *rig) {
			r.mustSet(func(c *Config) { c.ModelNames = "alias=demo" })
			if got := r.s.current.Load().ModelNames; got != "alias=demo" {
				t.Errorf("%q", got)
			}
		},
		"ExpectedWorkers": func(t *testing.T, r *rig) {
			r.mustSet(func(c *Config) { c.ExpectedWorkers = 5 })
			if up, _ := r.s.health.check(healthReadiness); !up {
				t.Error("one that was ready is not any more")
			}
		},
		"MaxConnections": func(t *testing.T, r *rig) {
			r.mustSet(func(c *Config) { c.MaxConnections, c.MaxNewConnections = 7, 7 })
			if r.s.guests.most != 7 || r.s.guests.mostNew != 7 {
				t.Errorf("%d, %d", r.s.guests.most, r.s.guests.mostNew)
			}
		},
		"MaxNewConnections": func(t *testing.T, r *rig) {
			r.mustSet(func(c *Config) { c.MaxNewConnections = 3 })
			if r.s.guests.mostNew != 3 {
				t.Errorf("%d", r.s.guests.mostNew)
			}
		},
		"MaxStreams": func(t *testing.T, r *rig) {
			open := func() error {
				s, err := r.fleet.WatchWorkers(t.Context(), &kvoraclev1.WatchWorkersRequest{})
				if err != nil {
					return err
				}
				_, err = s.Recv()
				return err
			}
			if err := open(); err != nil {
				t.Fatal(err)
			}
			r.mustSet(func(c *Config) { c.MaxStreams = 1 })
			if err := open(); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a second stream: %v", err)
			}
			r.mustSet(func(c *Config) { c.MaxStreams = 2 })
			if err := open(); err != nil {
				t.Errorf("a second stream of two: %v", err)
			}
		},
		"MaxRate": func(t *testing.T, r *rig) {
			r.mustSet(func(c *Config) { c.MaxRate = 1 })
			ask(t, r)
			if _, err := r.route.Route(t.Context(), prompt(1)); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a second call: %v", err)
			}
			r.mustSet(func(c *Config) { c.MaxRate = 0 })
			ask(t, r)
		},
		"FirstMessageTimeout": func(t *testing.T, r *rig) {
			r.mustSet(func(c *Config) { c.FirstMessageTimeout = time.Minute })
			s, err := r.route.ReportBlocks(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if _, err := s.Recv(); err == nil || time.Since(start) != time.Minute {
				t.Errorf("ended after %v with %v", time.Since(start), err)
			}
		},
		"QueueTarget": func(t *testing.T, r *rig) {
			r.mustSet(func(c *Config) { c.QueueTarget = -1 })
			r.s.shedder.share.Store(mostShares) // as if it had been shedding
			r.s.shedder.waited(time.Hour, time.Now().Add(time.Hour))
			if share := r.s.shedder.share.Load(); share != 0 {
				t.Errorf("it goes on shedding %d", share)
			}
			ask(t, r)
		},
		"SlowCall": func(t *testing.T, r *rig) {
			ask(t, r)
			r.s.watch.done(t.Context(), "/x/y", nil, time.Second)
			r.mustSet(func(c *Config) { c.SlowCall = time.Second })
			r.s.watch.done(t.Context(), "/x/y", nil, time.Second)
			if n := len(r.logs.lines(t, "slow call")); n != 1 {
				t.Errorf("%d lines", n)
			}
		},
		"DrainDelay": func(t *testing.T, r *rig) {
			r.mustSet(func(c *Config) { c.DrainDelay = 7 * time.Second })
			if took := r.stop(); took != 7*time.Second {
				t.Errorf("stopping took %v", took)
			}
		},
		"DrainTimeout": func(t *testing.T, r *rig) {
			r.flood()
			r.mustSet(func(c *Config) { c.DrainTimeout = 3 * time.Second })
			if took := r.stop(); took != 3*time.Second {
				t.Errorf("stopping took %v", took)
			}
		},
	} {
		t.Run(field, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := up(t, Config{})
				r.worker("w1")
				check(t, r)
				lines := r.logs.lines(t, "a file that has changed is in force")
				if len(lines) == 0 || lines[0]["changed"] == nil {
					t.Errorf("no line says what has changed: %v", lines)
				}
			})
		})
		if !Reloadable(field) {
			t.Errorf("%s is said not to be reloadable", field)
		}
		delete(left, field)
	}
	for field := range left {
		t.Errorf("nothing here changes %s", field)
	}
	for field := range changes() {
		if _, ok := reflect.TypeFor[Config]().FieldByName(field); !ok {
			t.Errorf("the table has %s, and a Config has not", field)
		}
	}
}

// TestRefusedReload: all or nothing, with the names of what stands in the way and without values, which may be secret.
func TestRefusedReload(t *testing.T) {
	r := up(t, Config{Secret: "hush-before"})
	r.worker("w1")
	for name, x := range map[string]struct {
		edit func(c *Config)
		want []string
	}{
		"fixed":      {func(c *Config) { c.MaxBlocks, c.Secret = 77, "hush-after" }, []string{"MaxBlocks", "Secret", "restart"}},
		"not valid":  {func(c *Config) { c.MaxRate, c.MaxStreams = -1, -2 }, []string{"MaxRate", "MaxStreams", "-2"}},
		"no address": {func(c *Config) { c.Listen = "0.0.0.0:1" }, []string{"Listen", "Insecure"}},
	} {
		err := r.set(func(c *Config) { c.Policy = "random"; c.SlowCall = time.Hour; x.edit(c) })
		for _, want := range x.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want it to name %s", name, err, want)
			}
		}
	}
	if err := r.s.Reload(func() (Config, error) { return Config{}, errors.New("not readable") }); err == nil {
		t.Error("what cannot be read was put in force")
	}
	m, err := r.route.Route(t.Context(), prompt(1, 2, 3))
	if err != nil || m.GetPolicy() != "least_time" || *r.s.current.Load() != r.s.cfg {
		t.Errorf("something of a refused configuration is in force: %v, %v", m, err)
	}
	if n := r.counted("kvoracle.reloads", "file=config", "outcome=refused"); n != 4 {
		t.Errorf("%d counted", n)
	}
	if n := r.counted("kvoracle.reloads", "file=config", "outcome=applied"); n != 0 {
		t.Errorf("%d applied", n)
	}
	if strings.Contains(r.logs.String(), "hush") {
		t.Error("the log shows the secret")
	}
	if err := r.set(func(*Config) {}); err != nil {
		t.Error(err)
	}
	if n := r.counted("kvoracle.reloads", "file=config"); n != 4 || len(r.logs.lines(t, "the settings of the server were read again, and are what they were")) != 1 {
		t.Errorf("one that changes nothing: %d counted", n)
	}
}

// TestReloadWhileDeciding is for the race detector.
func TestReloadWhileDeciding(t *testing.T) {
	r := up(t, Config{})
	r.worker("w1")
	r.worker("w2")
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 100 {
				if _, err := r.route.Route(t.Context(), prompt(1, 2, 3)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 100 {
		r.mustSet(func(c *Config) {
			c.Policy = []string{"least_time", "round_robin"}[i%2]
			c.ShadowPolicy = []string{"", "random", "least_time"}[i%3]
			c.SlowCall, c.MaxRate, c.QueueTarget = time.Duration(i), 1_000_000+i, time.Hour+time.Duration(i)
			c.FirstMessageTimeout, c.MaxConnections = time.Minute+time.Duration(i), 10_000+i
		})
	}
	all.Wait()
}
