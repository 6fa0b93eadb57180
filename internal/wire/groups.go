package wire

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// maxGroups bounds the attention groups of an engine.
const maxGroups = 64

// Shape is what a stream's operations must be read by.
type Shape struct {
	BlockSize   int      // tokens
	PrefixGroup uint32   // the attention group that counts
	OtherGroups []uint32 // the rest of those the engine has
}

// ShapeOf is the shape that a hello has declared.
func ShapeOf(h *oracle.Hello) Shape {
	return Shape{BlockSize: h.Spec.BlockSize, PrefixGroup: h.PrefixGroup, OtherGroups: h.OtherGroups}
}

// isPrefix says whether a group's number, as it is on the wire, is that of the group that counts.
func (s *Shape) isPrefix(n uint64) bool { return uint32(n) == s.PrefixGroup } //nolint:gocritic // as protobuf-go reads it

// group tells operations of the prefix group from others, which need not be read any further.
func (s *Shape) group(op string, n uint32) (_ oracle.Op, isPrefix bool) {
	switch {
	case n == s.PrefixGroup:
		return oracle.Op{}, true
	case slices.Contains(s.OtherGroups, n):
		return oracle.Op{Kind: oracle.OpOther}, false
	default:
		return refused(oracle.RefusalGroup, fmt.Sprintf("%s.group: got %d, want one of hello.groups", op, n)), false
	}
}

// decodeGroups finds the group that counts as prefix.
func decodeGroups(m *kvoraclev1.BlocksHello, h *oracle.Hello) error {
	groups := m.GetGroups()
	if n := len(groups); n > maxGroups {
		return invalid("hello.groups", strconv.Itoa(n)+" groups", "want at most "+strconv.Itoa(maxGroups))
	}
	hasPrefix := len(groups) == 0
	seen := make(map[uint32]bool, len(groups))
	for i, g := range groups {
		field := fmt.Sprintf("hello.groups[%d].", i)
		if err := blockSize(field+"block_size", g.GetBlockSize()); err != nil {
			return err
		}
		n := g.GetNumber()
		if seen[n] {
			return invalid(field+"number", fmt.Sprint(n), "want each number once")
		}
		seen[n] = true
		isFull := false
		switch g.GetKind() {
		case kvoraclev1.AttentionKind_ATTENTION_KIND_FULL:
			isFull = true
		case kvoraclev1.AttentionKind_ATTENTION_KIND_WINDOW, kvoraclev1.AttentionKind_ATTENTION_KIND_STATE, kvoraclev1.AttentionKind_ATTENTION_KIND_OTHER:
		case kvoraclev1.AttentionKind_ATTENTION_KIND_UNSPECIFIED:
			return precondition(field + "kind")
		default:
			return invalid(field+"kind", fmt.Sprint(int32(g.GetKind())), "want a known AttentionKind")
		}
		if isFull && int(g.GetBlockSize()) == h.Spec.BlockSize && (!hasPrefix || n < h.PrefixGroup) {
			h.PrefixGroup, hasPrefix = n, true
		}
	}
	if !hasPrefix {
		return oracle.Fault(oracle.FailedPrecondition, oracle.ReasonFieldInvalid, "hello.groups", strconv.Itoa(len(groups))+" groups",
			fmt.Sprintf("want one of full attention with hello.worker.block_size, %d", h.Spec.BlockSize))
	}
	for _, g := range groups {
		if n := g.GetNumber(); n != h.PrefixGroup {
			h.OtherGroups = append(h.OtherGroups, n)
		}
	}
	if w := m.GetHashWindow(); w != 0 && int(w) != h.Spec.BlockSize {
		return unserved("hello.hash_window", fmt.Sprintf("%d with blocks of %d tokens", w, h.Spec.BlockSize))
	}
	return nil
}
