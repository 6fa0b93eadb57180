package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"time"

	"github.com/kvoracle/kvoracle/internal/certs"
	"github.com/kvoracle/kvoracle/internal/replica"
	"github.com/kvoracle/kvoracle/internal/snapshot"
	"github.com/kvoracle/kvoracle/internal/telemetry"
)

// journalBytes bounds the log in DataDir. What a save shows leaves it, so it has the reports of two intervals: at 50,000 blocks
// a second and a minute some 70 MB.
const journalBytes = 1 << 30

// replica is the part of the configuration that other replicas have to do with.
func (c *Config) replica() *replica.Config {
	return &replica.Config{
		URL: c.NATSURL, Name: c.ReplicaID, Prefix: c.NATSPrefix, CredsFile: c.NATSCredentials, LogCopies: c.NATSCopies,
		MaxMessageBytes: c.MaxMessageBytes, MaxTargets: 4 * c.MaxWorkers, Grace: c.StreamGrace,
	}
}

// newReplica makes this process one of several, if it is to be.
func (s *Server) newReplica() (*replica.Node, error) {
	c := s.cfg.replica()
	c.Seed = s.printSeed
	switch {
	case s.journal != nil:
		c.Server, c.Name, c.LogCopies, c.LogBytes = s.journal, "self", 1, journalBytes
	case s.cfg.NATSURL == "":
		return nil, nil //nolint:nilnil // a nil node stands for a service of one
	default:
		c.SaveEvery = s.cfg.SnapshotInterval
		c.Save = func(ctx context.Context, to io.Writer) error {
			_, err := snapshot.Write(ctx, to, s.cfg.Secret, s.oracle, time.Now())
			return err
		}
		c.Load = func(open func() (io.ReadCloser, error)) error {
			_, err := snapshot.Load(open, s.cfg.Secret, s.oracle, time.Now())
			return err
		}
	}
	if s.cfg.NATSURL != "" && (s.cfg.NATSCA != "" || s.cfg.NATSCert != "") {
		var err error
		s.natsCerts, err = certs.Load(certs.Files{Cert: s.cfg.NATSCert, Key: s.cfg.NATSKey, CA: s.cfg.NATSCA}, time.Now())
		if err != nil {
			return nil, fmt.Errorf("server: NATSCA, NATSCert: %w", err)
		}
		c.TLS = func() *tls.Config { return s.natsCerts.Client("") }
	}
	n, err := replica.New(*c, s.oracle, s.log)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	return n, s.tel.WatchReplication(func() telemetry.Replication { return measured(n.Stats()) })
}

// measured puts a node's state into the instruments' terms.
func measured(st replica.Stats) telemetry.Replication {
	return telemetry.Replication{
		Replicas: st.Replicas, IsConnected: st.IsConnected && st.IsFollowing, Behind: st.Behind, Local: st.Streams, Followed: st.Followed, Lacking: st.Lacking,
		Written: st.PublishedBytes, Read: st.FollowedBytes,
		Entries: map[string]uint64{
			"written": st.Published, "unwritten": st.Unpublished, "failed": st.PublishFailures, "applied": st.Entries, "own": st.Own,
			"overtaken": st.Overtaken, "repeated": st.Repeated, "skipped": st.Skipped, "malformed": st.Malformed + st.MalformedNotices,
			"refused": st.Refused,
		},
		Differences:   map[string]uint64{"gap": st.Gaps, "hole": st.Holes, "standing": st.Differences},
		Announcements: map[string]uint64{"asked": st.Asked, "received": st.Answered, "written": st.Announced},
		Snapshots:     map[string]uint64{"written": st.Kept, "failed": st.Unkept, "loaded": st.Loaded, "refused": st.Unloaded, "swept": st.Swept},
		Notices: map[string]uint64{
			"told": st.Told, "untold": st.Untold, "heard": st.Heard, "missed": st.Missed, "refused": st.RefusedNotices,
			"held": st.Held, "unheld": st.Unheld,
		},
	}
}

// replicate takes part until over, when the streams here have said that they end.
func (s *Server) replicate(over <-chan struct{}) error {
	if s.replica == nil {
		return nil
	}
	if s.journal != nil {
		select {
		case <-s.warm.filed: // what the log has comes after it
		case <-over:
			return nil
		}
		if err := s.journal.Start(); err != nil {
			return fmt.Errorf("server: DataDir: %w", err)
		}
		defer s.journal.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-over
		if s.journal != nil {
			<-s.warm.ended // the last save trims the log
		}
		cancel()
	}()
	return s.replica.Run(ctx)
}

// lookAtReplicas feeds the replication component.
func (s *Server) lookAtReplicas() {
	if s.replica == nil {
		return
	}
	st := s.replica.Stats()
	s.health.replication(st.IsJoined, st.IsConnected && st.IsFollowing && !st.IsDegraded)
}
