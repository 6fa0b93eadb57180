package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Replication is what is measured of a replica; counts are since its start.
type Replication struct {
	Replicas                 int
	IsConnected              bool // the log is there
	Behind                   uint64
	Local, Followed, Lacking int // targets

	Entries       map[string]uint64 // by outcome: written, unwritten, failed, applied, own, overtaken, repeated, skipped, malformed, refused
	Written, Read uint64            // bytes
	Differences   map[string]uint64 // by reason: gap, hole, standing
	Announcements map[string]uint64 // by outcome: asked, received, written
	Snapshots     map[string]uint64 // by outcome: written, failed, loaded, refused, swept
	Notices       map[string]uint64 // by outcome: told, untold, heard, missed, refused, held, unheld
}

// WatchReplication reads the replica's instruments from stats whenever somebody collects, possibly several at once. Call it
// once; without it they are not measured.
func (t *Telemetry) WatchReplication(stats func() Replication) error {
	g := &t.replication
	_, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := stats()
		g.observe(o, &s)
		return nil
	}, g.replicas, g.there, g.behind, g.targets, g.entries, g.bytes, g.differences, g.announcements, g.snapshots, g.notices)
	return err
}

// replication are the instruments of it.
type replication struct {
	replicas, there, behind, targets                               metric.Int64ObservableGauge
	entries, bytes, differences, announcements, snapshots, notices metric.Int64ObservableCounter
}

func newReplication(b *builder) replication {
	return replication{
		replicas: b.gauge(mReplicas), there: b.gauge(mLogThere), behind: b.gauge(mLogBehind), targets: b.gauge(mReplicaTarget), entries: b.total(mLogEntries),
		bytes: b.total(mLogBytes), differences: b.total(mDifferences), announcements: b.total(mAnnouncements),
		snapshots: b.total(mCopies), notices: b.total(mNotices),
	}
}

func (g *replication) observe(o metric.Observer, s *Replication) {
	by := func(key, value string) metric.ObserveOption {
		return metric.WithAttributes(attribute.String(key, value))
	}
	o.ObserveInt64(g.replicas, int64(s.Replicas))
	there := int64(0)
	if s.IsConnected {
		there = 1
	}
	o.ObserveInt64(g.there, there)
	o.ObserveInt64(g.behind, asCount(s.Behind))
	o.ObserveInt64(g.targets, int64(s.Local), by(kState, "local"))
	o.ObserveInt64(g.targets, int64(s.Followed), by(kState, "followed"))
	o.ObserveInt64(g.targets, int64(s.Lacking), by(kState, "lacking"))
	o.ObserveInt64(g.bytes, asCount(s.Written), by(kOutcome, "written"))
	o.ObserveInt64(g.bytes, asCount(s.Read), by(kOutcome, "read"))
	for _, x := range []struct {
		counter metric.Int64ObservableCounter
		key     string
		values  map[string]uint64
	}{
		{g.entries, kOutcome, s.Entries},
		{g.differences, kReason, s.Differences},
		{g.announcements, kOutcome, s.Announcements},
		{g.snapshots, kOutcome, s.Snapshots},
		{g.notices, kOutcome, s.Notices},
	} {
		for name, n := range x.values {
			o.ObserveInt64(x.counter, asCount(n), by(x.key, name))
		}
	}
}
