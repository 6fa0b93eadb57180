package wire

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// AppendAck appends the bytes of a ReportBlocksResponse that tells a reporter how far it has come. No message is made on the
// way: there is an ack for every batch of every worker. A test holds it against protobuf-go.
func AppendAck(b []byte, a *oracle.Ack) []byte {
	b, at := begin(b, 2)
	b = appendUint(b, 1, a.Applied)
	b = appendUint(b, 2, uint64(BlockConfidence(a.Confidence)))
	b = appendUint(b, 3, uint64(a.Held))
	b = appendCounters(b, 4, &a.Counters)
	for i := range a.Refusals {
		r := &a.Refusals[i]
		var from int
		b, from = begin(b, 5)
		b = appendUint(b, 1, r.Sequence)
		b = appendUint(b, 2, uint64(uint32(r.Op)))
		b = appendUint(b, 3, uint64(r.Reason))
		b = appendString(b, 4, r.Detail)
		b = end(b, from)
	}
	if a.Awaiting {
		b = appendUint(b, 6, 1)
	}
	return end(b, at)
}

func appendCounters(b []byte, num protowire.Number, c *oracle.BlockCounters) []byte {
	b, at := begin(b, num)
	for i, n := range [...]uint64{
		c.Stored, c.RepeatedStores, c.Removed, c.UnknownRemovals, c.Orphans, c.RefusedOps, c.DuplicateBatches, c.Gaps, c.IgnoredBatches,
		c.DigestsMatched, c.DigestsMismatched, c.DigestsSkipped, c.Snapshots, c.Refusals[oracle.RefusalHashConflict], c.OtherGroupOps, c.Evicted,
	} {
		b = appendUint(b, protowire.Number(i+1), n)
	}
	return end(b, at)
}
