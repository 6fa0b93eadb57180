package bridge

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler is the operator's HTTP server: /metrics, /healthz, and a page that says how it is with each rank. It asks for no
// credentials and shows no tokens.
func (b *Bridge) Handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), b)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		all := b.Status()
		plain(w)
		if !healthy(all) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		writeStatus(w, all, time.Now())
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		plain(w)
		_, _ = io.WriteString(w, "kvoraclectl bridge\n\n/metrics   Prometheus text\n/healthz   200 while every rank is heard and told, else 503\n\n")
		writeStatus(w, b.Status(), time.Now())
	})
	return mux
}

func plain(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

func healthy(all []Status) bool {
	for i := range all {
		if all[i].State != Live {
			return false
		}
	}
	return len(all) > 0
}

func writeStatus(w io.Writer, all []Status, now time.Time) {
	for i := range all {
		s := &all[i]
		_, _ = fmt.Fprintf(w, "%s/%d  %s  trust %s  next batch %d  last event %s  load %s  held %d  gaps %d  lives %d", s.Worker, s.Rank, s.State,
			s.Trust, s.Next, age(s.LastEvent, now), age(s.LastLoad, now), s.Held, s.Gaps, s.Lives)
		if s.Wrong != "" {
			_, _ = fmt.Fprintf(w, "  (%s)", s.Wrong)
		}
		_, _ = io.WriteString(w, "\n")
	}
}

func age(at, now time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return now.Sub(at).Round(100 * time.Millisecond).String()
}

// column is one metric of a rank.
type column struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*Status, time.Time) float64
}

// columns lists what is exported of each rank.
func columns() []column {
	of := func(name, help string, kind prometheus.ValueType, value func(*Status, time.Time) float64) column {
		return column{prometheus.NewDesc("kvoracle_bridge_"+name, help, []string{"worker", "rank"}, nil), kind, value}
	}
	counter := func(name, help string, value func(*Status) uint64) column {
		return of(name+"_total", help, prometheus.CounterValue, func(s *Status, _ time.Time) float64 { return float64(value(s)) })
	}
	gauge := func(name, help string, value func(*Status, time.Time) float64) column {
		return of(name, help, prometheus.GaugeValue, value)
	}
	return []column{
		gauge("up", "1: the rank is heard and the oracle is told.", func(s *Status, _ time.Time) float64 {
			if s.State == Live {
				return 1
			}
			return 0
		}),
		gauge("last_event_age_seconds", "Time since the engine published anything; -1: never.", func(s *Status, now time.Time) float64 {
			return seconds(s.LastEvent, now)
		}),
		gauge("last_load_age_seconds", "Time since a load sample was taken; -1: never.", func(s *Status, now time.Time) float64 {
			return seconds(s.LastLoad, now)
		}),
		gauge("held_blocks", "Blocks the engine holds, by its events; all tiers.", func(s *Status, _ time.Time) float64 { return float64(s.Held) }),
		gauge("next_batch", "Number of the batch that is expected next.", func(s *Status, _ time.Time) float64 { return float64(s.Next) }),
		gauge("trust", "What is held is: 0 not heard of, 1 whole, 2 right but partial, 3 doubtful.", func(s *Status, _ time.Time) float64 { return float64(s.Trust) }),
		gauge("outbox_bytes", "Changes that the oracle has not acknowledged.", func(s *Status, _ time.Time) float64 { return float64(s.OutboxBytes) }),
		gauge("queued_batches", "Batches received and not yet read.", func(s *Status, _ time.Time) float64 { return float64(s.Queued) }),
		counter("batches", "Batches taken, live and replayed.", func(s *Status) uint64 { return s.Batches }),
		counter("events", "Events in them.", func(s *Status) uint64 { return s.Events }),
		counter("gaps", "Times events were missing.", func(s *Status) uint64 { return s.Gaps }),
		counter("replays", "Times the engine was asked to repeat events.", func(s *Status) uint64 { return s.Replays }),
		counter("missing_batches", "Batches that were never had.", func(s *Status) uint64 { return s.Missing }),
		counter("lives", "Lives of the engine process that were told to the oracle.", func(s *Status) uint64 { return s.Lives }),
		counter("load_samples", "Load samples taken, of the engine.", func(s *Status) uint64 { return s.LoadSamples }),
		counter("load_failures", "Looks at the load that failed, of the engine.", func(s *Status) uint64 { return s.LoadFailures }),
	}
}

func seconds(at, now time.Time) float64 {
	if at.IsZero() {
		return -1
	}
	return now.Sub(at).Seconds()
}

// Describe implements prometheus.Collector.
func (b *Bridge) Describe(to chan<- *prometheus.Desc) {
	for _, c := range b.columns {
		to <- c.desc
	}
	to <- b.dropped
}

// Collect implements prometheus.Collector.
func (b *Bridge) Collect(to chan<- prometheus.Metric) {
	now := time.Now()
	for _, s := range b.Status() {
		rank := strconv.Itoa(s.Rank)
		for _, c := range b.columns {
			to <- prometheus.MustNewConstMetric(c.desc, c.kind, c.value(&s, now), s.Worker, rank)
		}
		for reason, n := range s.Dropped {
			to <- prometheus.MustNewConstMetric(b.dropped, prometheus.CounterValue, float64(n), s.Worker, rank, reason)
		}
	}
}
