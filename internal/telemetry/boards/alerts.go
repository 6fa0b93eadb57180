package boards

import (
	"fmt"
	"strings"
)

// Alert is one rule.
type Alert struct {
	Name     string
	Expr     string // PromQL; true for For raises it
	For      string // Prometheus duration
	Severity string // "critical": somebody gets up; "warning": somebody looks in the morning
	Summary  string // for people, with Prometheus' templates
}

const (
	critical = "critical"
	warning  = "warning"
)

// Alerts lists all rules. docs/operations.md says of each what causes it and what to do.
func Alerts() []Alert {
	return []Alert{
		{"KvoracleDown", `up{job=~".*kvoracle.*"} == 0`, "2m", critical, "{{ $labels.instance }} is not scraped"},
		{
			"KvoracleNobodyEligible", `sum by (instance) (rate(kvoracle_requests_refused_total{reason="NO_ELIGIBLE_WORKER"}[5m])) > 0`, "2m", critical,
			"requests find no worker that may take them",
		},
		{
			"KvoracleOverloaded", `sum by (instance) (rate(kvoracle_requests_refused_total{reason="OVERLOADED"}[5m])) > 1`, "5m", critical,
			"more is asked of {{ $labels.instance }} than it can answer",
		},
		{
			"KvoracleRefusing", `sum by (instance, rpc, reason) (rate(kvoracle_requests_refused_total{reason!~"OVERLOADED|NO_ELIGIBLE_WORKER|DRAINING"}[10m])) > 1`,
			"10m", warning, "{{ $labels.rpc }} is refused: {{ $labels.reason }}",
		},
		{"KvoraclePanicked", `increase(kvoracle_panics_total[1h]) > 0`, "0m", critical, "a handler panicked: {{ $labels.rpc }}"},
		{"KvoracleReloadRefused", `increase(kvoracle_reloads_total{outcome="refused"}[1h]) > 0`, "0m", warning, "a changed file cannot be used: {{ $labels.file }}"},
		{"KvoracleConnectionsClosed", `sum by (instance, reason) (increase(kvoracle_connections_closed_total[15m])) > 10`, "0m", warning, "connections are closed: {{ $labels.reason }}"},
		{"KvoracleWorkersLost", `kvoracle_workers{state="lost"} > 0`, "5m", warning, "{{ $value }} workers are lost"},
		{
			"KvoracleCachesUnknown", `sum by (instance) (kvoracle_targets{confidence!~"fresh|partial|approximate"}) / sum by (instance) (kvoracle_targets) > 0.2`,
			"10m", warning, "of a fifth of the targets nobody knows what they hold",
		},
		{"KvoracleUnmatched", `kvoracle_targets_unmatched > 0`, "10m", warning, "{{ $value }} targets hold blocks that no request begins with"},
		{
			"KvoracleReportsDrift", `sum by (instance) (increase(kvoracle_blocks_digests_total{outcome="mismatched"}[1h])) > 3`, "0m", warning,
			"what is believed of caches had drifted from what reporters say",
		},
		{"KvoracleResyncing", `sum by (instance, reason) (increase(kvoracle_blocks_resyncs_total[15m])) > 20`, "0m", warning, "snapshots are asked for again and again: {{ $labels.reason }}"},
		{
			"KvoracleReportsRefused", `sum by (instance, reason) (rate(kvoracle_blocks_refusals_total[10m])) > 1`, "10m", warning,
			"operations in block reports are refused: {{ $labels.reason }}",
		},
		{"KvoracleIndexFull", `increase(kvoracle_index_evicted_total[15m]) > 0`, "30m", warning, "the index is full and gives blocks up"},
		{"KvoracleGuessesForgone", `increase(kvoracle_guesses_forgone_total[15m]) > 0`, "15m", warning, "there is no room to remember prompts under way"},
		{
			"KvoracleBookingsExpire", `sum by (instance) (rate(kvoracle_bookings_released_total{cause="lease"}[15m])) / sum by (instance) (rate(kvoracle_decisions_total{booked="true"}[15m])) > 0.05`,
			"15m", warning, "gateways do not say how requests end",
		},
		{
			"KvoracleStepsUnknown", `sum by (instance) (rate(kvoracle_progress_events_total{outcome="unknown"}[15m])) / sum by (instance) (rate(kvoracle_progress_events_total[15m])) > 0.05`,
			"15m", warning, "gateways tell of requests that are not booked here",
		},
		{
			"KvoracleDecisionsSlow", `histogram_quantile(0.99, sum by (instance, le) (rate(kvoracle_decision_duration_seconds_bucket[5m]))) > 0.01`, "10m", warning,
			"a decision takes more than 10 ms",
		},
		{
			"KvoraclePredictionsOff", `sum by (instance) (rate(kvoracle_first_token_error_seconds_sum[30m])) / sum by (instance) (rate(kvoracle_first_token_duration_seconds_sum[30m])) > 0.5`,
			"30m", warning, "the first token is predicted wrong by half of its time",
		},
		{
			"KvoracleCachesOverrated", `sum by (instance) (rate(kvoracle_cached_tokens_total{source="counted"}[30m])) / sum by (instance) (rate(kvoracle_cached_tokens_total{source="matched"}[30m])) < 0.7`,
			"30m", warning, "engines find much less in their caches than was matched",
		},
		{
			"KvoracleTargetsMissed", `sum by (instance) (rate(kvoracle_targets_measured_total{outcome="missed"}[15m])) / sum by (instance) (rate(kvoracle_targets_measured_total[15m])) > 0.1`,
			"15m", warning, "a tenth of the requests with a time target miss it",
		},
		{
			"KvoracleProxyUndecided", `sum by (instance) (rate(kvoracle_extproc_requests_total{outcome!~"decided|in_turn|abandoned"}[10m])) / sum by (instance) (rate(kvoracle_extproc_requests_total[10m])) > 0.05`,
			"10m", warning, "requests pass the proxy without a decision",
		},
		{
			"KvoracleTokenizerAway", `sum by (instance) (rate(kvoracle_tokenize_requests_total{outcome=~"late|busy|failed"}[10m])) / sum by (instance) (rate(kvoracle_tokenize_requests_total[10m])) > 0.2`,
			"10m", warning, "texts are decided on without their tokens",
		},
		{"KvoracleLogAway", `kvoracle_replication_connected == 0`, "1m", critical, "{{ $labels.instance }} serves on without the replicas' log"},
		{
			"KvoracleNotLogged", `sum by (instance) (increase(kvoracle_replication_entries_total{outcome=~"unwritten|failed"}[5m])) > 0`, "5m", warning,
			"{{ $labels.instance }} acknowledges reports that are not in the log",
		},
		{"KvoracleReplicaAlone", `kvoracle_replication_replicas < on () group_left () max (kvoracle_replication_replicas)`, "2m", warning, "{{ $labels.instance }} hears fewer replicas than others do"},
		{"KvoracleReplicaLags", `kvoracle_replication_behind > 5000`, "2m", warning, "{{ $labels.instance }} is {{ $value }} entries behind the log"},
		{
			"KvoracleReplicasDiffer", `sum by (instance, reason) (increase(kvoracle_replication_differences_total[15m])) > 10`, "0m", warning,
			"what {{ $labels.instance }} knows differs from what was reported: {{ $labels.reason }}",
		},
		{"KvoracleReplicaLacks", `kvoracle_replication_targets{state="lacking"} > 0`, "5m", warning, "{{ $labels.instance }} misses something of {{ $value }} targets"},
		{
			"KvoracleBookingsUntold", `sum by (instance) (rate(kvoracle_replication_notices_total{outcome=~"untold|missed"}[5m])) > 10`, "5m", warning,
			"replicas do not hear of each other's bookings",
		},
		{
			"KvoracleLogShort", `sum (increase(kvoracle_replication_bytes_total{outcome="written"}[15m])) > 536870912`, "15m", warning,
			"half of a log of 1 GiB is written in a quarter of an hour: a replica that is away for longer has to be told everything",
		},
	}
}

// Rules is the file of alert rules for Prometheus.
func Rules() []byte {
	var b strings.Builder
	b.WriteString("# Made by `make generate` from internal/telemetry/boards. docs/operations.md says what to do about each.\n")
	b.WriteString("groups:\n  - name: kvoracle\n    rules:\n")
	for _, a := range Alerts() {
		fmt.Fprintf(&b, "      - alert: %s\n        expr: %s\n        for: %s\n        labels:\n          severity: %s\n        annotations:\n          summary: %s\n"+
			"          runbook: docs/operations.md\n", a.Name, quoted(a.Expr), a.For, a.Severity, quoted(a.Summary))
	}
	return []byte(b.String())
}

// quoted is a text as a single-quoted YAML scalar, which means what it says.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
