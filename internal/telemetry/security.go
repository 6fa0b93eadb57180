package telemetry

// What the doors count: connections that were closed, and files that were read again.

type reloadKey struct{ file, outcome string }

// ConnectionEnded counts a connection to the HTTP port that has ended with those who answer ext_authz; how comes from a closed set.
func (t *Telemetry) ConnectionEnded(how string) {
	t.observer.count(t.observer.in.ended, t.observer.outcome, how, 1)
}

// Closed counts a connection that was closed because there were too many; why is "full" or "idle".
func (t *Telemetry) Closed(why string) {
	t.observer.count(t.observer.in.closed, t.observer.closed, why, 1)
}

// Reloaded counts a file that had changed ("certificate", "nats_certificate" or "access"), and whether it is in force now.
func (t *Telemetry) Reloaded(file string, applied bool) {
	outcome := "refused"
	if applied {
		outcome = "applied"
	}
	t.observer.in.reloads.Add(t.observer.bg, 1, t.observer.reloads.of(reloadKey{file, outcome}).add...)
}
