package wire

import (
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

var reportSeed = maphash.MakeSeed()

// reportReader is one of a stream whose prefix is group 1 of three.
func reportReader() *Report {
	return NewReport(&oracle.Hello{Spec: fleet.Spec{BlockSize: 4}, PrefixGroup: 1, OtherGroups: []uint32{2}}, reportSeed)
}

// checkReport holds what r has read against what protobuf-go makes of the same bytes. r was read into before.
func checkReport(t *testing.T, r *Report, b []byte) {
	t.Helper()
	m := &kvoraclev1.ReportBlocksRequest{}
	want, err := proto.Unmarshal(b, m), r.Read(b)
	if (want == nil) != (err == nil) {
		t.Fatalf("%x: %v, protobuf-go says %v", b, err, want)
	}
	if err != nil {
		return
	}
	if !r.isPlain {
		if !proto.Equal(m, r.message) {
			t.Fatalf("%x: read as %v, want %v", b, r.message, m)
		}
		return
	}
	ops, err := DecodeBatch(m.GetBatch(), r.shape, nil)
	if err != nil || m.GetBatch() == nil || r.message != nil {
		t.Fatalf("%x was read as a batch: %v, %v", b, m, err)
	}
	if r.seq != m.GetBatch().GetSequence() || r.isDoubtful != m.GetBatch().GetDoubtful() {
		t.Fatalf("%x: batch %d, doubtful: %v, want %v", b, r.seq, r.isDoubtful, m.GetBatch())
	}
	if len(ops) != len(r.ops) || len(ops) > 0 && !reflect.DeepEqual(ops, r.ops) {
		t.Fatalf("%x (-decoded +read):\n%s", b, cmp.Diff(ops, r.ops))
	}
}

// randomOp is mostly plain.
func randomOp(r *rand.Rand) *kvoraclev1.BlockOp {
	list := make([]uint64, 1+r.IntN(5))
	for i := range list {
		list[i] = r.Uint64() >> r.IntN(64)
	}
	tier, group := kvoraclev1.Tier(r.IntN(5)), uint32(1)
	if r.IntN(30) == 0 {
		tier, group = kvoraclev1.Tier(r.IntN(9)-2), uint32(r.IntN(4))
	}
	if r.IntN(60) == 0 {
		list = nil
	}
	switch r.IntN(5) {
	case 0:
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Clear{Clear: &kvoraclev1.ClearBlocks{Tier: tier}}}
	case 1, 2:
		m := &kvoraclev1.RemoveBlocks{BlockIds: list, Tier: tier, Group: group}
		if r.IntN(30) == 0 {
			m.EngineHashes = numbers(2)
		}
		return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: m}}
	default:
	}
	m := &kvoraclev1.StoreBlocks{
		Parent: &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}}, Tier: tier, Group: group,
		Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: list}},
	}
	if r.IntN(2) == 0 {
		m.Parent = &kvoraclev1.StoreBlocks_ParentBlockId{ParentBlockId: r.Uint64N(3)}
	}
	switch r.IntN(40) {
	case 0:
		m.Parent = nil
	case 1:
		m.Content = nil
	case 2:
		m.Lora = &kvoraclev1.LoraAdapter{Name: "x"}
	case 3:
		m.CacheSalt = "salt"
	case 4:
		m.EngineHashes = numbers(len(list))
	case 5:
		m.Content = &kvoraclev1.StoreBlocks_Tokens{Tokens: &kvoraclev1.BlockTokens{TokenIds: make([]uint32, 8)}}
	case 6, 7, 8, 9, 10, 11:
		m.Content = &kvoraclev1.StoreBlocks_LocalHashes{LocalHashes: &kvoraclev1.LocalHashes{Hashes: list}}
	}
	return &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: m}}
}

// TestReportsAreReadAsProtobufReadsThem reads many messages with one reader: whole ones, ones with other fields among them,
// and cut ones.
func TestReportsAreReadAsProtobufReadsThem(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	reader := reportReader()
	plain, whole := 0, 0
	for range 6000 {
		b := &kvoraclev1.BlockBatch{Sequence: r.Uint64() >> r.IntN(64), Doubtful: r.IntN(4) == 0}
		for range r.IntN(4) {
			b.Ops = append(b.Ops, randomOp(r))
		}
		m := &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: b}}
		if r.IntN(20) == 0 {
			m = &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Digest{Digest: &kvoraclev1.BlockDigest{Sequence: 3}}}
		}
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		checkReport(t, reader, raw)
		if reader.isPlain {
			plain++
		} else {
			whole++
		}
		switch r.IntN(4) {
		case 0:
			checkReport(t, reader, raw[:r.IntN(len(raw)+1)])
		case 1:
			raw[r.IntN(len(raw))] ^= 1 << r.IntN(8)
			checkReport(t, reader, raw)
		case 2: // twice is merged into one
			checkReport(t, reader, append(raw, raw...))
		}
	}
	if plain < 3000 || whole < 900 {
		t.Errorf("%d plain batches and %d other messages", plain, whole)
	}
}

// FuzzReport is the same with the fuzzer's bytes.
func FuzzReport(f *testing.F) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 20 {
		b := &kvoraclev1.BlockBatch{Sequence: r.Uint64N(1000), Ops: []*kvoraclev1.BlockOp{randomOp(r), randomOp(r)}}
		seeds(f, &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: b}})
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkReport(t, reportReader(), data) })
}

// A repeat is known by its print, and by nothing else of the message that is read.
func TestPrintsTellBatchesApart(t *testing.T) {
	r := reportReader()
	prints := make(map[uint64]bool)
	for _, ids := range [][]uint64{{1}, {2}, {1, 2}, {1}} {
		raw, err := proto.Marshal(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{
			Sequence: 7, Ops: []*kvoraclev1.BlockOp{remove(func(m *kvoraclev1.RemoveBlocks) { m.BlockIds, m.Group = ids, 1 })},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Read(raw); err != nil || !r.isPlain {
			t.Fatalf("%v, plain: %v", err, r.isPlain)
		}
		prints[r.print] = true
	}
	if len(prints) != 3 {
		t.Errorf("%d prints of three batches", len(prints))
	}
}

// TestReportsAllocateNothing: a reader that has seen one batch reads the next of its size for free.
func TestReportsAllocateNothing(t *testing.T) {
	ids := make([]uint64, 20)
	for i := range ids {
		ids[i] = uint64(i + 1)
	}
	raw, err := proto.Marshal(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{
		Sequence: 1, Ops: []*kvoraclev1.BlockOp{
			store(func(m *kvoraclev1.StoreBlocks) {
				m.Group, m.Content = 1, &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids}}
			}),
			remove(func(m *kvoraclev1.RemoveBlocks) { m.Group, m.BlockIds = 1, ids }),
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	r := reportReader()
	if n := testing.AllocsPerRun(100, func() {
		if r.Read(raw) != nil || !r.isPlain {
			t.Fatal("it is plain")
		}
	}); n != 0 {
		t.Errorf("%v allocations for a batch", n)
	}
}

func BenchmarkReadReport(b *testing.B) {
	ids := make([]uint64, 10)
	for i := range ids {
		ids[i] = binary.LittleEndian.Uint64([]byte{byte(i), 1, 2, 3, 4, 5, 6, 7})
	}
	raw, err := proto.Marshal(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{
		Sequence: 1, Ops: []*kvoraclev1.BlockOp{
			store(func(m *kvoraclev1.StoreBlocks) {
				m.Content = &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids}}
			}),
			remove(func(m *kvoraclev1.RemoveBlocks) { m.BlockIds = ids }),
		},
	}}})
	if err != nil {
		b.Fatal(err)
	}
	hello := &oracle.Hello{Spec: fleet.Spec{BlockSize: 4}}
	b.Run("plain", func(b *testing.B) {
		r := NewReport(hello, reportSeed)
		b.ReportAllocs()
		for b.Loop() {
			_ = r.Read(raw)
		}
	})
	b.Run("protobuf", func(b *testing.B) {
		prints := NewFingerprinter(reportSeed)
		var ops []oracle.Op
		b.ReportAllocs()
		for b.Loop() {
			m := &kvoraclev1.ReportBlocksRequest{}
			_ = proto.Unmarshal(raw, m)
			ops, _ = DecodeBatch(m.GetBatch(), ShapeOf(hello), ops[:0])
			prints.Batch(m.GetBatch())
		}
	})
}
