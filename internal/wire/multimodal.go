package wire

import (
	"fmt"
	"strconv"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

const (
	maxItems    = 4096
	maxOverlap  = 4 // times the tokens that items may cover together: some models lay one over the other
	leastDigest = 8 // bytes of an item's digest: shorter ones meet by chance
	mostDigest  = 64
)

// decodeItems checks a prompt's multimodal items.
func decodeItems(ms []*kvoraclev1.MultimodalItem, tokens int) ([]block.Item, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	if len(ms) > maxItems {
		return nil, invalid("multimodal", strconv.Itoa(len(ms))+" items", "want at most "+strconv.Itoa(maxItems))
	}
	items, covered := make([]block.Item, 0, len(ms)), 0
	for i, m := range ms {
		it := block.Item{First: int(m.GetFirstToken()), Count: int(m.GetTokenCount()), Digest: block.Sum(m.GetDigest())}
		if field, got, want := badItem(it, len(m.GetDigest()), tokens); field != "" {
			return nil, invalid(fmt.Sprintf("multimodal[%d].%s", i, field), got, want)
		}
		covered += it.Count
		items = append(items, it)
	}
	if covered > maxOverlap*tokens {
		return nil, invalid("multimodal", strconv.Itoa(covered)+" tokens in all", fmt.Sprintf("want at most %d times the prompt's %d", maxOverlap, tokens))
	}
	return items, nil
}

// badItem names the first field of an item that is out of bounds.
func badItem(it block.Item, digest, tokens int) (field, got, want string) {
	switch {
	case it.Count < 1:
		return "token_count", "0", "want at least 1"
	case it.First >= tokens:
		return "first_token", strconv.Itoa(it.First), "want one of the " + strconv.Itoa(tokens) + " tokens"
	case it.First+it.Count > tokens:
		return "token_count", strconv.Itoa(it.Count), fmt.Sprintf("want an end within the %d tokens, got one at %d", tokens, it.First+it.Count)
	case digest < leastDigest || digest > mostDigest:
		return "digest", strconv.Itoa(digest) + " bytes", fmt.Sprintf("want %d to %d", leastDigest, mostDigest)
	}
	return "", "", ""
}

// mixStored puts the items of a store into the local hashes of its blocks, and says what is wrong with them otherwise.
func mixStored(locals []block.Local, size int, ms []*kvoraclev1.BlockMultimodal) (wrong string) {
	if len(ms) == 0 {
		return ""
	}
	if len(ms) > maxItems {
		return fmt.Sprintf("store.multimodal: got %d items, want at most %d", len(ms), maxItems)
	}
	tokens := len(locals) * size
	items, covered := make([]block.Item, 0, len(ms)), 0
	for i, m := range ms {
		it := block.Item{First: int(m.GetFirstToken()), Count: int(m.GetTokenCount()), Digest: block.Sum(m.GetDigest())}
		if field, got, want := badItem(it, len(m.GetDigest()), tokens); field != "" {
			return fmt.Sprintf("store.multimodal[%d].%s: got %s, %s", i, field, got, want)
		}
		skipped := int(m.GetSkippedTokens())
		if skipped > 0 && it.First != 0 {
			return fmt.Sprintf("store.multimodal[%d].first_token: got %d, want 0 with skipped_tokens", i, it.First)
		}
		covered += it.Count
		it.First -= skipped
		it.Count += skipped
		items = append(items, it)
	}
	if covered > maxOverlap*tokens {
		return fmt.Sprintf("store.multimodal: got %d tokens in all, want at most %d times the store's %d", covered, maxOverlap, tokens)
	}
	block.MixItems(locals, size, items)
	return ""
}
