package client

import (
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

type chunkMessage = kvoraclev1.SnapshotChunk

// messageSize is a chunk's size as it goes out.
func messageSize(c *chunkMessage) int {
	return proto.Size(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotChunk{SnapshotChunk: c}})
}

func parentOf(s *kvoraclev1.StoreBlocks) Parent {
	if s.GetRoot() != nil {
		return Root()
	}
	return After(block.ID(s.GetParentBlockId()))
}

func asBlockIDs(ids []uint64) []block.ID {
	out := make([]block.ID, len(ids))
	for i, id := range ids {
		out[i] = block.ID(id)
	}
	return out
}
