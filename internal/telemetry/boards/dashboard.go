package boards

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kvoracle/kvoracle/internal/telemetry"
)

// panel is one graph of the table.
type panel struct {
	title, unit string // unit in Grafana's names
	queries     []query
}

type query struct{ expr, legend string }

// row is a heading with its panels.
type row struct {
	title  string
	panels []panel
}

// only narrows every expression to the instances that the reader has chosen.
const only = `instance=~"$instance"`

func rate(series, by string) string {
	sum := "sum"
	if by != "" {
		sum += " by (" + by + ")"
	}
	return sum + " (rate(" + series + "[$__rate_interval]))"
}

func quantile(q, family, by string) string {
	return "histogram_quantile(" + q + ", sum by (" + strings.TrimPrefix(by+", le", ", ") + ") (rate(" + family + "_bucket{" + only + "}[$__rate_interval])))"
}

// table is what people look at first, in the order in which they ask.
func table() []row {
	series := func(name string) string { return name + "{" + only + "}" }
	return []row{
		{"Is it well?", []panel{
			{"Decisions, by what decided", "reqps", []query{{rate(series("kvoracle_decisions_total"), "reason"), "{{reason}}"}}},
			{"Refusals", "reqps", []query{{rate(series("kvoracle_requests_refused_total"), "rpc, reason"), "{{rpc}} {{reason}}"}}},
			{"Time of a decision", "s", []query{
				{quantile("0.5", "kvoracle_decision_duration_seconds", ""), "p50"}, {quantile("0.99", "kvoracle_decision_duration_seconds", ""), "p99"},
			}},
			{"Workers", "short", []query{{"sum by (state) (" + series("kvoracle_workers") + ")", "{{state}}"}}},
			{"How far caches are known", "short", []query{{"sum by (confidence) (" + series("kvoracle_targets") + ")", "{{confidence}}"}}},
		}},
		{"Does it help?", []panel{
			{"Share of prompts found in caches", "percentunit", []query{
				{rate(series("kvoracle_matched_tokens_total"), "tier") + " / on () group_left " + rate(series("kvoracle_prompt_tokens_total"), ""), "{{tier}}"},
			}},
			{"Time to first token, as measured", "s", []query{
				{quantile("0.5", "kvoracle_first_token_duration_seconds", ""), "p50"}, {quantile("0.99", "kvoracle_first_token_duration_seconds", ""), "p99"},
			}},
			{"Predicted first token: mean distance", "s", []query{
				{rate(series("kvoracle_first_token_error_seconds_sum"), "direction") + " / " + rate(series("kvoracle_first_token_error_seconds_count"), "direction"), "{{direction}}"},
			}},
			{"Cached tokens: matched here, counted by engines", "short", []query{{rate(series("kvoracle_cached_tokens_total"), "source"), "{{source}}"}}},
			{"Cached tokens that engines lack of those matched, by worker", "percentunit", []query{{
				"topk(10, 1 - sum by (worker) (rate(kvoracle_worker_cached_tokens_total{" + only + `,source="counted"}[$__rate_interval])) / sum by (worker) (rate(kvoracle_worker_cached_tokens_total{` + only + `,source="matched"}[$__rate_interval])))`,
				"{{worker}}",
			}}},
			{"Requests with a time target", "reqps", []query{
				{rate(series("kvoracle_targets_predicted_total"), "outcome"), "predicted: {{outcome}}"}, {rate(series("kvoracle_targets_measured_total"), "outcome"), "measured: {{outcome}}"},
			}},
		}},
		{"Is it full?", []panel{
			{"Blocks in the index", "short", []query{
				{"sum (" + series("kvoracle_index_blocks") + ")", "once for each target"}, {"sum (" + series("kvoracle_index_distinct_blocks") + ")", "different ones"},
			}},
			{"Given up for want of room", "short", []query{
				{rate(series("kvoracle_index_evicted_total"), ""), "blocks"}, {rate(series("kvoracle_guesses_forgone_total"), ""), "prompts under way"},
			}},
			{"Requests under way", "short", []query{{"sum (" + series("kvoracle_bookings") + ")", "booked"}}},
		}},
		{"Do workers report well?", []panel{
			{"Blocks in reports", "short", []query{{rate(series("kvoracle_blocks_changes_total"), "change"), "{{change}}"}}},
			{"Digests", "short", []query{{rate(series("kvoracle_blocks_digests_total"), "outcome"), "{{outcome}}"}}},
			{"Snapshots asked for", "short", []query{{rate(series("kvoracle_blocks_resyncs_total"), "reason"), "{{reason}}"}}},
		}},
		{"Do replicas know the same?", []panel{
			{"The log is there, and how many replicas are heard", "short", []query{
				{"min by (instance) (" + series("kvoracle_replication_connected") + ")", "log {{instance}}"},
				{"min by (instance) (" + series("kvoracle_replication_replicas") + ")", "others {{instance}}"},
			}},
			{"Entries not applied yet", "short", []query{{"max by (instance) (" + series("kvoracle_replication_behind") + ")", "{{instance}}"}}},
			{"Log", "Bps", []query{{rate(series("kvoracle_replication_bytes_total"), "outcome"), "{{outcome}}"}}},
			{"Entries", "short", []query{{rate(series("kvoracle_replication_entries_total"), "outcome"), "{{outcome}}"}}},
			{"Differences found, announcements", "short", []query{
				{rate(series("kvoracle_replication_differences_total"), "reason"), "{{reason}}"},
				{rate(series("kvoracle_replication_announcements_total"), "outcome"), "announcements: {{outcome}}"},
			}},
			{"Targets, by how their reports come", "short", []query{{"sum by (state) (" + series("kvoracle_replication_targets") + ")", "{{state}}"}}},
			{"Bookings, steps and samples", "short", []query{{rate(series("kvoracle_replication_notices_total"), "outcome"), "{{outcome}}"}}},
		}},
	}
}

// own is a panel for one instrument that the table does not show.
func own(i *telemetry.Instrument) panel {
	name, by := i.Prometheus(), strings.Join(i.Attributes, ", ")
	legend := i.Name
	if len(i.Attributes) > 0 {
		legend = "{{" + strings.Join(i.Attributes, "}} {{") + "}}"
	}
	p := panel{title: i.Name, unit: "short"}
	if i.Unit == "s" {
		p.unit = "s"
	}
	switch i.Kind {
	case telemetry.Counter:
		p.queries = []query{{rate(name+"{"+only+"}", by), legend}}
	case telemetry.Histogram:
		p.queries = []query{{quantile("0.5", name, by), "p50 " + legend}, {quantile("0.99", name, by), "p99 " + legend}}
	case telemetry.Gauge:
		sum := "sum"
		if by != "" {
			sum += " by (" + by + ")"
		}
		p.queries = []query{{sum + " (" + name + "{" + only + "})", legend}}
	}
	return p
}

// rows is the table with a last row for what it does not show.
func rows() []row {
	out := table()
	var shown strings.Builder
	for _, r := range out {
		for _, p := range r.panels {
			for _, q := range p.queries {
				shown.WriteString(q.expr + "\n")
			}
		}
	}
	rest := row{title: "Everything else"}
	for _, i := range telemetry.Instruments() {
		if !mentions(shown.String(), &i) {
			rest.panels = append(rest.panels, own(&i))
		}
	}
	return append(out, rest)
}

// mentions says whether an expression has a series of an instrument.
func mentions(expr string, i *telemetry.Instrument) bool {
	for _, m := range metricsOf(expr) {
		if m.instrument == i.Prometheus() {
			return true
		}
	}
	return false
}

// Dashboard is the dashboard for Grafana, as JSON that can be imported or provisioned.
func Dashboard() ([]byte, error) {
	type object = map[string]any
	datasource := object{"type": "prometheus", "uid": "${datasource}"}
	meaning := make(map[string]string)
	for _, i := range telemetry.Instruments() {
		meaning[i.Name] = i.Meaning
	}
	var panels []object
	id, y := 1, 0
	for _, r := range rows() {
		panels = append(panels, object{"id": id, "type": "row", "title": r.title, "collapsed": false, "gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		id, y = id+1, y+1
		const width, height, each = 8, 8, 3
		for n, p := range r.panels {
			var targets []object
			for k, q := range p.queries {
				targets = append(targets, object{"refId": string(rune('A' + k)), "expr": q.expr, "legendFormat": q.legend, "datasource": datasource})
			}
			panels = append(panels, object{
				"id": id, "type": "timeseries", "title": p.title, "description": meaning[p.title], "datasource": datasource, "targets": targets,
				"gridPos":     object{"x": width * (n % each), "y": y + height*(n/each), "w": width, "h": height},
				"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []object{}},
			})
			id++
		}
		y += height * ((len(r.panels) + each - 1) / each)
	}
	out, err := json.MarshalIndent(object{
		"uid": "kvoracle", "title": "kvoracle", "tags": []string{"kvoracle"}, "schemaVersion": 39, "refresh": "10s", "editable": true,
		"time": object{"from": "now-1h", "to": "now"}, "panels": panels,
		"templating": object{"list": []object{
			{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
			{
				"name": "instance", "type": "query", "label": "Instance", "datasource": datasource, "includeAll": true, "multi": true, "refresh": 2,
				"query": "label_values(kvoracle_workers, instance)", "current": object{"text": "All", "value": "$__all"}, "allValue": ".*",
			},
		}},
	}, "", " ")
	if err != nil {
		return nil, fmt.Errorf("boards: %w", err)
	}
	return append(out, '\n'), nil
}
