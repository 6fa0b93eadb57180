package wire

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// encodeAck is an ack as a message.
func encodeAck(a *oracle.Ack) *kvoraclev1.ReportBlocksResponse {
	c := &a.Counters
	ack := &kvoraclev1.BlocksAck{
		AppliedSequence:  a.Applied,
		Confidence:       BlockConfidence(a.Confidence),
		HeldBlocks:       uint64(a.Held),
		SnapshotRequired: a.Awaiting,
		Counters: &kvoraclev1.BlockCounters{
			Stored: c.Stored, RepeatedStores: c.RepeatedStores, Removed: c.Removed, UnknownRemovals: c.UnknownRemovals,
			Orphans: c.Orphans, RefusedOps: c.RefusedOps, DuplicateBatches: c.DuplicateBatches, Gaps: c.Gaps,
			IgnoredBatches: c.IgnoredBatches, DigestsMatched: c.DigestsMatched, DigestsMismatched: c.DigestsMismatched,
			DigestsSkipped: c.DigestsSkipped, Snapshots: c.Snapshots, HashConflicts: c.Refusals[oracle.RefusalHashConflict],
			OtherGroupOps: c.OtherGroupOps,
			Evicted:       c.Evicted,
		},
	}
	for _, r := range a.Refusals {
		ack.Refusals = append(ack.Refusals, &kvoraclev1.Refusal{
			Sequence: r.Sequence, Op: uint32(r.Op), Reason: kvoraclev1.RefusalReason(r.Reason), Detail: r.Detail,
		})
	}
	return &kvoraclev1.ReportBlocksResponse{Message: &kvoraclev1.ReportBlocksResponse_Ack{Ack: ack}}
}

func TestAcksAreWrittenAsProtobufWritesThem(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for i := range 3000 {
		a := &oracle.Ack{}
		if i > 0 { // an empty one is written, too
			fill(reflect.ValueOf(a).Elem(), r)
		}
		want, got := encodeAck(a), &kvoraclev1.ReportBlocksResponse{}
		raw := AppendAck([]byte("before"), a)
		if err := proto.Unmarshal(raw[len("before"):], got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
			t.Fatalf("ack (-protobuf +appended):\n%s", d)
		}
		if n := proto.Size(want); n != len(raw)-len("before") {
			t.Fatalf("%d bytes, protobuf-go writes %d", len(raw)-len("before"), n)
		}
	}
}
