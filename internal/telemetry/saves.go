package telemetry

import "time"

// What is kept over a restart.

// Saved counts one save of what is known of the fleet, and how long it took.
func (t *Telemetry) Saved(ok bool, bytes int64, took time.Duration) {
	o, outcome := t.observer, "failed"
	if ok {
		outcome = "written"
	}
	o.count(o.in.saves, o.outcome, outcome, 1)
	if ok {
		o.in.saveDuration.Record(o.bg, took.Seconds())
		o.in.saveBytes.Add(o.bg, bytes)
	}
}

// Loaded counts a file that was looked at to begin from: "loaded", "refused"; or "nothing" or "failed" where there was none.
func (t *Telemetry) Loaded(outcome string) {
	t.observer.count(t.observer.in.loads, t.observer.outcome, outcome, 1)
}
