//go:build unix

package server

import (
	"testing"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// BenchmarkReport is one batch of a reporter over a real socket, of 50 blocks stored and 50 removed, with its ack: where
// nothing is kept, where snapshots are, and where the batch is in the log before its ack. Sixteen are on their way at a time.
// cpu-us/op is the processor time of both ends.
func BenchmarkReport(b *testing.B) {
	for _, c := range []struct {
		name string
		cfg  func(b *testing.B) Config
	}{
		{"nothing is kept", func(*testing.B) Config { return Config{} }},
		{"snapshots", func(b *testing.B) Config { return Config{DataDir: b.TempDir(), SnapshotsOnly: true} }},
		{"log", func(b *testing.B) Config { return Config{DataDir: b.TempDir()} }},
	} {
		b.Run(c.name, func(b *testing.B) {
			clearEnv(b)
			cfg := c.cfg(b)
			cfg.SlowCall = time.Second
			r := onSocket(b, cfg)
			stream, err := kvoraclev1.NewRouteServiceClient(r.as("", nil)).ReportBlocks(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if err := stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
				Worker:      &kvoraclev1.WorkerSpec{WorkerId: "w", Model: "demo", BlockSize: 16},
				Incarnation: 1, NextSequence: 1, HashScheme: "xxh3-64/1337", Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
			}}}); err != nil {
				b.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				b.Fatal(err)
			}
			const blocks, window = 50, 16
			ids := func(seq uint64) []uint64 {
				out := make([]uint64, blocks)
				for i := range out {
					out[i] = (seq*blocks + uint64(i) + 1) * 0x9e3779b97f4a7c15
				}
				return out
			}
			seq, acked := uint64(0), uint64(0)
			await := func(upTo uint64) {
				for acked < upTo {
					m, err := stream.Recv()
					if err != nil {
						b.Fatal(err)
					}
					acked = max(acked, m.GetAck().GetAppliedSequence())
				}
			}
			before := cpu(b)
			for b.Loop() {
				seq++
				ops := []*kvoraclev1.BlockOp{{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
					Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
					Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids(seq)}},
				}}}}
				if seq > 100 {
					ops = append(ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: &kvoraclev1.RemoveBlocks{BlockIds: ids(seq - 100)}}})
				}
				if err := stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{Sequence: seq, Ops: ops}}}); err != nil {
					b.Fatal(err)
				}
				if seq > window {
					await(seq - window)
				}
			}
			await(seq)
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
			if err := stream.CloseSend(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
