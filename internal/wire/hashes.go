package wire

import (
	"fmt"
	"strconv"

	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// decodeRoots reads the constants that stand for a prompt's start. Those that are bytes become the numbers they are kept
// as.
func decodeRoots(m *kvoraclev1.BlocksHello) ([]uint64, error) {
	digests := m.GetRootParentDigests()
	if n := len(m.GetRootParents()); n > maxRoots {
		return nil, invalid("hello.root_parents", strconv.Itoa(n)+" values", "want at most "+strconv.Itoa(maxRoots))
	}
	if n := len(digests); n > maxRoots {
		return nil, invalid("hello.root_parent_digests", strconv.Itoa(n)+" values", "want at most "+strconv.Itoa(maxRoots))
	}
	if len(digests) > 0 && !m.GetEngineHashes() {
		return nil, invalid("hello.root_parent_digests", strconv.Itoa(len(digests))+" values", "want them only with hello.engine_hashes")
	}
	roots := append([]uint64(nil), m.GetRootParents()...)
	for i, d := range digests {
		if !isEngineDigest(d) {
			return nil, invalid(fmt.Sprintf("hello.root_parent_digests[%d]", i), strconv.Itoa(len(d))+" bytes",
				fmt.Sprintf("want 1 to %d", maxEngineDigest))
		}
		roots = append(roots, uint64(oracle.EngineHashOf(d)))
	}
	return roots, nil
}

func isEngineDigest(d []byte) bool { return len(d) >= 1 && len(d) <= maxEngineDigest }

// engineHashes reads an engine's names of blocks; nil if there are none.
func engineHashes(field string, m *kvoraclev1.EngineHashes) ([]oracle.EngineHash, oracle.Refusal) {
	numbers, digests := m.GetNumbers(), m.GetDigests()
	bad := func(detail string) ([]oracle.EngineHash, oracle.Refusal) {
		return nil, oracle.Refusal{Reason: oracle.RefusalMalformed, Detail: field + detail}
	}
	n := len(numbers) + len(digests)
	switch {
	case m == nil:
		return nil, oracle.Refusal{}
	case len(numbers) > 0 && len(digests) > 0:
		return bad(": want numbers or digests, not both")
	case n == 0 || n > maxBlocksPerOp:
		return bad(fmt.Sprintf(": got %d, want 1 to %d", n, maxBlocksPerOp))
	}
	out := make([]oracle.EngineHash, 0, n)
	for _, v := range numbers {
		out = append(out, oracle.EngineHash(v))
	}
	for i, d := range digests {
		if !isEngineDigest(d) {
			return bad(fmt.Sprintf(".digests[%d]: got %d bytes, want 1 to %d", i, len(d), maxEngineDigest))
		}
		out = append(out, oracle.EngineHashOf(d))
	}
	return out, oracle.Refusal{}
}
