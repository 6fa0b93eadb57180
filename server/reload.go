package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/kvoracle/kvoracle/internal/policy"
)

// A change puts one setting of a configuration in force in a server that runs. It cannot fail: the configuration is valid.
type change func(s *Server, c *Config)

// changes is the one table of what Reload can change, by the field of Config. Everything else is built into ports,
// connections or memory and wants a restart.
func changes() map[string]change {
	return map[string]change{
		"Policy": setPolicy, "ShadowPolicy": setPolicy,
		"ModelNames": func(s *Server, c *Config) {
			models, _ := parseModels(c.ModelNames)
			s.picker.SetModels(models)
		},
		"ExpectedWorkers":     func(s *Server, c *Config) { s.health.expect(c.ExpectedWorkers) },
		"MaxConnections":      setGuests,
		"MaxNewConnections":   setGuests,
		"MaxStreams":          setMeters,
		"MaxRate":             setMeters,
		"FirstMessageTimeout": func(s *Server, c *Config) { s.guard.wait.Store(int64(c.FirstMessageTimeout)) },
		"QueueTarget":         func(s *Server, c *Config) { s.shedder.target.Store(int64(c.QueueTarget)) },
		"SlowCall":            func(s *Server, c *Config) { s.watch.slow.Store(int64(c.SlowCall)) },
		// The drain reads these when it comes.
		"DrainDelay": func(*Server, *Config) {}, "DrainTimeout": func(*Server, *Config) {},
	}
}

func setPolicy(s *Server, c *Config) {
	p, _ := policy.ByName(c.Policy)
	shadow, _ := policy.ByName(c.ShadowPolicy)
	s.oracle.SetPolicy(p, shadow)
}

func setGuests(s *Server, c *Config) { s.guests.limit(c.MaxConnections, c.MaxNewConnections) }

func setMeters(s *Server, c *Config) { s.guard.meters.Limit(c.MaxRate, c.MaxStreams) }

// Reloadable says whether a running server can take another value for a field of Config; see Server.Reload. The contents of
// the files that a Config names are read again in any case.
func Reloadable(field string) bool {
	_, ok := changes()[field]
	return ok
}

// Reload puts another configuration in force while the server runs: the one that read gives, which must differ from the
// present one only in fields that are Reloadable. It is all or nothing: one that read could not give, that is not valid or
// that differs elsewhere changes nothing, is logged and counted (kvoracle.reloads, file "config"), and is the error. Calls,
// streams and connections that are there go on; limits that became smaller hold for those to come. Certificates and the
// access file are read again in any case.
func (s *Server) Reload(read func() (Config, error)) error {
	s.reload(time.Now())
	s.reloading.Lock()
	defer s.reloading.Unlock()
	next, err := read()
	if err == nil {
		err = next.Validate()
	}
	var changed []string
	if err == nil {
		next = next.withDefaults()
		changed, err = differences(s.current.Load(), &next)
	}
	if err != nil {
		s.reloaded("config", false, err, slog.Attr{})
		return err
	}
	if len(changed) == 0 {
		s.log.LogAttrs(context.Background(), slog.LevelInfo, "the settings of the server were read again, and are what they were")
		return nil
	}
	s.current.Store(&next)
	table, values := changes(), make([]any, len(changed))
	for i, field := range changed {
		table[field](s, &next)
		values[i] = slog.Any(field, reflect.ValueOf(next).FieldByName(field).Interface())
	}
	s.reloaded("config", true, nil, slog.Group("changed", values...))
	return nil
}

// differences lists the fields in which two configurations differ. That one of them cannot change is an error, which names
// all such and shows no value.
func differences(a, b *Config) (changed []string, err error) {
	table := changes()
	x, y := reflect.ValueOf(*a), reflect.ValueOf(*b)
	var errs []error
	for i := range x.NumField() {
		if x.Field(i).Interface() == y.Field(i).Interface() {
			continue
		}
		field := x.Type().Field(i).Name
		if _, ok := table[field]; !ok {
			errs = append(errs, fmt.Errorf("%s: it cannot change while the server runs; restart it", field))
		}
		changed = append(changed, field)
	}
	return changed, errors.Join(errs...)
}
