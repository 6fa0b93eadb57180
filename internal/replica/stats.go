package replica

import "sync/atomic"

// counters are what a node has done and refused, ever.
type counters struct {
	published, unpublished, publishFailures, publishedBytes atomic.Uint64
	followed, followedBytes, own                            atomic.Uint64
	malformed, refused, overtaken, repeated, skippedEntries atomic.Uint64
	gaps, holes, differences, lacking                       atomic.Uint64
	digestsMatched                                          atomic.Uint64
	asked, answered, announced, announcedBlocks             atomic.Uint64
	claims, takeovers, lateHellos                           atomic.Uint64
	restarts, newLogs, unheard, forgotten                   atomic.Uint64
	malformedNotices                                        atomic.Uint64
	told, untold, heard, refusedNotices, missed             atomic.Uint64
	held, unheld                                            atomic.Uint64
	kept, keptBytes, unkept, loaded, unloaded, swept        atomic.Uint64
}

// Stats is a node's state and what it has done, ever.
type Stats struct {
	// IsConnected: NATS is there. IsFollowing: the log is, too. IsJoined: what others had told before the start is known.
	// IsDegraded: something that was acknowledged here is not in the log.
	IsConnected, IsFollowing, IsJoined, IsDegraded bool
	// Position is the last entry of the log that was applied, Behind how many more there were a moment ago.
	Position, Behind uint64
	// Streams are open here, Targets are known, of which Followed are heard by way of others and Lacking miss something.
	Streams, Targets, Followed, Lacking int
	// Replicas are the others that give signs of life.
	Replicas int

	// Entries in the log: written with so many bytes; not written since NATS was away; failed on the way.
	Published, PublishedBytes, Unpublished, PublishFailures uint64
	// Entries from the log: of others with so many bytes, our own, and by what became of them otherwise.
	Entries, FollowedBytes, Own                       uint64
	Malformed, Refused, Overtaken, Repeated, Skipped  uint64
	MalformedNotices                                  uint64 // of core NATS
	Gaps, Holes, Differences, LackedTotal, DigestsOK  uint64 // what was found missing: in a session, in the log, in a standing; by target; digests that agreed
	Asked, Answered, Announced, AnnouncedBlocks       uint64 // announcements: wanted here, wanted of us, written, blocks in them
	Claims, Takeovers, LateHellos                     uint64 // targets taken over by this replica, from it; hellos that did not wait for the tail
	Restarts, NewLogs, UnheardOrigins, ForgottenEnded uint64

	// Notices of load: told; not told, since there was no room or no NATS; heard; of those that came refused, as of a worker,
	// a request or a life that is not known here, or known already. Missed are messages of them that did not come.
	Told, Untold, Heard, RefusedNotices, Missed uint64
	// Steps that were kept for a booking to come, and those of them for which none came.
	Held, Unheld uint64

	// Copies of the index in NATS: written, and the bytes of them; that could not be written, or looked at to be; begun with;
	// refused; and remains of some that were removed.
	Kept, KeptBytes, Unkept, Loaded, Unloaded, Swept uint64
}

// Stats looks at the node. A nil node has none.
func (n *Node) Stats() Stats {
	if n == nil {
		return Stats{}
	}
	c := &n.count
	s := Stats{
		IsConnected: n.isConnected(), IsJoined: n.joined.Load(), IsFollowing: n.following.Load(),
		Published: c.published.Load(), PublishedBytes: c.publishedBytes.Load(), Unpublished: c.unpublished.Load(),
		PublishFailures: c.publishFailures.Load(), Entries: c.followed.Load(), FollowedBytes: c.followedBytes.Load(), Own: c.own.Load(),
		Malformed: c.malformed.Load(), Refused: c.refused.Load(), Overtaken: c.overtaken.Load(), Repeated: c.repeated.Load(),
		Skipped: c.skippedEntries.Load(), MalformedNotices: c.malformedNotices.Load(),
		Gaps: c.gaps.Load(), Holes: c.holes.Load(), Differences: c.differences.Load(), LackedTotal: c.lacking.Load(),
		DigestsOK: c.digestsMatched.Load(), Asked: c.asked.Load(), Answered: c.answered.Load(), Announced: c.announced.Load(),
		AnnouncedBlocks: c.announcedBlocks.Load(), Claims: c.claims.Load(), Takeovers: c.takeovers.Load(), LateHellos: c.lateHellos.Load(),
		Restarts: c.restarts.Load(), NewLogs: c.newLogs.Load(), UnheardOrigins: c.unheard.Load(), ForgottenEnded: c.forgotten.Load(),
		Told: c.told.Load(), Untold: c.untold.Load(), Heard: c.heard.Load(), RefusedNotices: c.refusedNotices.Load(), Missed: c.missed.Load(),
		Held: c.held.Load(), Unheld: c.unheld.Load(),
		Kept: c.kept.Load(), KeptBytes: c.keptBytes.Load(), Unkept: c.unkept.Load(), Loaded: c.loaded.Load(), Unloaded: c.unloaded.Load(), Swept: c.swept.Load(),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Position = n.position
	if n.tail > n.position {
		s.Behind = n.tail - n.position
	}
	s.Streams, s.Targets, s.Replicas = len(n.streams), len(n.targets), n.living()
	for st := range n.streams {
		s.IsDegraded = s.IsDegraded || st.isBroken.Load() && !st.superseded.Load()
	}
	for _, t := range n.targets {
		if t.session != nil {
			s.Followed++
		}
		if t.lacks {
			s.Lacking++
		}
	}
	return s
}
