package script

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// engineHash is a block's name in an engine: a number, or bytes.
type engineHash struct {
	number uint64
	bytes  []byte // nil: it is a number
}

// key is the number the oracle keeps, in the type of the mirror's keys.
func (h engineHash) key() block.ID {
	if h.bytes != nil {
		return block.ID(block.Sum(h.bytes))
	}
	return block.ID(h.number)
}

// hash makes an engine's name from a block's name, as a seeded hash of everything does.
func (w *worker) hash(name string, o map[string]string) engineHash {
	text := strings.Join([]string{w.seed, o["lora"], o["salt"], name}, "|")
	return w.numbered(block.Sum([]byte(text)))
}

// numbered is the name with this number.
func (w *worker) numbered(n uint64) engineHash {
	if w.naming == "bytes" {
		return engineHash{bytes: binary.BigEndian.AppendUint64(nil, n)}
	}
	return engineHash{number: n}
}

// hashes are the names in an operation's brackets: numbers, or those of blocks.
func (w *worker) hashes(areNumbers bool, body string, o map[string]string) ([]engineHash, error) {
	var out []engineHash
	if areNumbers {
		numbers, err := numbersOf(body)
		for _, n := range numbers {
			out = append(out, w.numbered(n))
		}
		return out, err
	}
	for name := range strings.FieldsSeq(body) {
		out = append(out, w.hash(name, o))
	}
	return out, nil
}

// numbersOf reads numbers; those of signed hashes may be negative.
func numbersOf(s string) ([]uint64, error) {
	var out []uint64
	for f := range strings.FieldsSeq(s) {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, uint64(n))
	}
	return out, nil
}

// groupsOf reads groups=NUMBER:KIND:BLOCKSIZE,...
func groupsOf(s string) ([]*kvoraclev1.AttentionGroup, error) {
	var out []*kvoraclev1.AttentionGroup
	for g := range strings.SplitSeq(s, ",") {
		f := strings.Split(g, ":")
		if len(f) != 3 {
			return nil, fmt.Errorf("group %q: want NUMBER:KIND:BLOCKSIZE", g)
		}
		number, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil {
			return nil, err
		}
		size, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			return nil, err
		}
		kind := kvoraclev1.AttentionKind(kvoraclev1.AttentionKind_value["ATTENTION_KIND_"+strings.ToUpper(f[1])])
		out = append(out, &kvoraclev1.AttentionGroup{Number: uint32(number), Kind: kind, BlockSize: uint32(size)})
	}
	return out, nil
}

func (w *worker) list(hashes []engineHash) *kvoraclev1.EngineHashes {
	m := &kvoraclev1.EngineHashes{}
	for _, h := range hashes {
		if h.bytes != nil {
			m.Digests = append(m.Digests, h.bytes)
		} else {
			m.Numbers = append(m.Numbers, h.number)
		}
	}
	return m
}

func setParent(s *kvoraclev1.StoreBlocks, h engineHash) {
	if h.bytes != nil {
		s.Parent = &kvoraclev1.StoreBlocks_ParentEngineDigest{ParentEngineDigest: h.bytes}
	} else {
		s.Parent = &kvoraclev1.StoreBlocks_ParentEngineHash{ParentEngineHash: h.number}
	}
}

// nameStore adds the engine's names to a store of content that follows parent. What is no whole number of blocks has
// names for the part that is begun, too.
func (w *worker) nameStore(s *kvoraclev1.StoreBlocks, parent, content string, o map[string]string, m *mirror) error {
	if parent != "" {
		setParent(s, w.hash(parent, o))
	}
	letters := w.size / unit
	if letters == 0 || len(content)%letters != 0 {
		return fmt.Errorf("%q: want a whole number of blocks of %d tokens", content, w.size)
	}
	var hashes []engineHash
	for i := letters; i <= len(content); i += letters {
		hashes = append(hashes, w.hash(parent+content[:i], o))
	}
	s.EngineHashes = w.list(hashes)
	for _, h := range hashes {
		m.store(h.key()) // told, if perhaps refused
	}
	return nil
}

// storeNumbered reads +h[P>H=CONTENT], +h[H] and +p[P>CONTENT].
func (w *worker) storeNumbered(op, body string, o map[string]string, m *mirror) (*kvoraclev1.StoreBlocks, error) {
	parent, rest, hasParent := strings.Cut(body, ">")
	if !hasParent {
		parent, rest = "", body
	}
	parents, err := numbersOf(parent)
	if err != nil || hasParent != (len(parents) == 1) {
		return nil, fmt.Errorf("%q: want one number before >", op)
	}
	name, content, hasContent := strings.Cut(rest, "=")
	if strings.HasPrefix(op, "+p[") {
		name, content, hasContent = "", rest, true
	}
	s := &kvoraclev1.StoreBlocks{Tier: tier(o), Group: group(o), Lora: lora(o), CacheSalt: o["salt"]}
	s.Parent = &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}}
	switch {
	case hasParent && w.naming == "":
		s.Parent = &kvoraclev1.StoreBlocks_ParentBlockId{ParentBlockId: parents[0]}
	case hasParent:
		setParent(s, w.numbered(parents[0]))
	}
	if hasContent {
		tokens, err := tokensOf(content)
		if err != nil {
			return nil, err
		}
		s.Content = &kvoraclev1.StoreBlocks_Tokens{Tokens: &kvoraclev1.BlockTokens{TokenIds: tokens}}
	}
	if strings.HasPrefix(op, "+p[") {
		if w.naming != "" {
			s.EngineHashes = w.list([]engineHash{w.hash(content, o)})
		}
		return s, nil
	}
	hashes, err := w.hashes(true, name, o)
	if err != nil {
		return nil, err
	}
	s.EngineHashes = w.list(hashes)
	for _, h := range hashes {
		m.store(h.key())
	}
	return s, nil
}

// storeUntold reads ?[AB]: a store of which the engine tells the names only.
func (w *worker) storeUntold(body string, o map[string]string, m *mirror) (*kvoraclev1.StoreBlocks, error) {
	if w.naming == "" {
		return nil, errors.New("?[...]: the worker names its blocks by ids")
	}
	hashes, err := w.hashes(false, body, o)
	if err != nil {
		return nil, err
	}
	for _, h := range hashes {
		m.store(h.key())
	}
	return &kvoraclev1.StoreBlocks{Tier: tier(o), Group: group(o), EngineHashes: w.list(hashes)}, nil
}
