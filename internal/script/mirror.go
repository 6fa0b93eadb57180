package script

import (
	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// mirror is what a stream's own reports should have left behind in the device tier: the copies of each block.
type mirror struct {
	isCounted bool
	copies    map[block.ID]uint64
}

func newMirror(repeats kvoraclev1.RepeatMeaning) *mirror {
	return &mirror{isCounted: repeats == kvoraclev1.RepeatMeaning_REPEAT_MEANING_COUNTED, copies: make(map[block.ID]uint64)}
}

func (m *mirror) store(id block.ID) {
	if m.isCounted || m.copies[id] == 0 {
		m.copies[id]++
	}
}

func (m *mirror) remove(id block.ID) {
	if m.copies[id]--; m.copies[id]+1 <= 1 { // it had one, or none
		delete(m.copies, id)
	}
}

func (m *mirror) clear() { clear(m.copies) }

// digest sums it up at a sequence; copies are stated where they count.
func (m *mirror) digest(seq uint64, isWrong bool) *kvoraclev1.ReportBlocksRequest {
	d := &kvoraclev1.BlockDigest{Sequence: seq, Count: uint64(len(m.copies))}
	for id, n := range m.copies {
		d.Xor ^= uint64(id)
		d.Sum += uint64(id)
		if m.isCounted {
			d.Copies += n
			d.CopySum += n * uint64(id)
		}
	}
	if isWrong {
		d.Sum++
	}
	return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Digest{Digest: d}}
}

// A snapshot's messages.

func beginMessage(seq uint64) *kvoraclev1.ReportBlocksRequest {
	return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotBegin{
		SnapshotBegin: &kvoraclev1.SnapshotBegin{Sequence: seq},
	}}
}

func partMessage(stores []*kvoraclev1.StoreBlocks) *kvoraclev1.ReportBlocksRequest {
	return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotChunk{
		SnapshotChunk: &kvoraclev1.SnapshotChunk{Stores: stores},
	}}
}

func (m *mirror) endMessage() *kvoraclev1.ReportBlocksRequest {
	return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotEnd{
		SnapshotEnd: &kvoraclev1.SnapshotEnd{BlockCount: uint64(len(m.copies))},
	}}
}
