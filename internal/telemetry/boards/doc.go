// Package boards makes what watches a kvoracle from outside: Prometheus alert rules and a Grafana dashboard. Both are made
// from tables in this package and from telemetry.Instruments, and `make generate` writes them to deploy/monitoring.
//
// Invariants, held by tests:
//   - every metric and label in an expression is one of an instrument, or one of the few that Prometheus itself makes;
//   - every instrument is on the dashboard: one that no panel of the table shows gets a panel of its own;
//   - every alert has a row in docs/operations.md;
//   - the files in deploy/monitoring are the ones that this package makes.
//
// Whether expressions are PromQL is not checked here beyond that: Prometheus' own parser would be a large dependency.
//
// Everything here is a pure function of the tables; it may be called concurrently.
package boards

// Names of the files in deploy/monitoring.
const (
	RulesFile     = "alerts.yaml"
	DashboardFile = "dashboard.json"
)
