package script

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// unit is the number of tokens a letter stands for.
const unit = 4

// tokensOf spells a prompt: four tokens a letter, one a "^", and those of a "+n".
func tokensOf(s string) ([]uint32, error) {
	letters, rest, hasRest := strings.Cut(s, "+")
	if s == `""` {
		letters = ""
	}
	var out []uint32
	for _, r := range letters {
		n := uint32(unit)
		if r == '^' {
			n = 1
		}
		for i := range n {
			out = append(out, uint32(r)<<8|i)
		}
	}
	if !hasRest {
		return out, nil
	}
	n, err := strconv.Atoi(rest)
	if err != nil || n < 0 || n > 1<<22 {
		return nil, fmt.Errorf("prompt %q: want a number behind +", s)
	}
	for i := range n {
		out = append(out, uint32(1<<30+i))
	}
	return out, nil
}

// identity is the keyspace a script's blocks are in.
func (w *worker) identity(o map[string]string) block.Identity {
	name, rev, _ := strings.Cut(o["lora"], "@")
	return block.Identity{Model: w.model, BlockSize: w.size, LoRAName: name, LoRARevision: rev, CacheSalt: o["salt"]}
}

// ids gives the block ids of a name, whole chain. The name must be a whole number of the worker's blocks.
func (w *worker) ids(name string, o map[string]string) ([]block.ID, error) {
	tokens, err := tokensOf(name)
	if err != nil {
		return nil, err
	}
	if len(tokens) == 0 || len(tokens)%w.size != 0 {
		return nil, fmt.Errorf("block %q: %d tokens are no whole number of blocks of %d", name, len(tokens), w.size)
	}
	locals := block.AppendLocals(nil, tokens, w.size)
	items, err := images(o)
	if err != nil {
		return nil, err
	}
	mix(locals, w.size, items)
	return block.AppendChain(nil, w.identity(o).Keyspace(), locals), nil
}

// image is one of an img= option: its first token in the prompt, its length, its name.
type image struct {
	first, count int
	name         string
}

// digest stands for what an engine calls the image by.
func (m image) digest() []byte { return fmt.Appendf(nil, "image:%s", m.name) }

// images reads img=FIRST+COUNT:NAME,...
func images(o map[string]string) ([]image, error) {
	if o["img"] == "" {
		return nil, nil
	}
	var out []image
	for s := range strings.SplitSeq(o["img"], ",") {
		var m image
		where, name, ok := strings.Cut(s, ":")
		if _, err := fmt.Sscanf(where, "%d+%d", &m.first, &m.count); err != nil || !ok {
			return nil, fmt.Errorf("img=%s: want FIRST+COUNT:NAME", s)
		}
		m.name = name
		out = append(out, m)
	}
	return out, nil
}

func mix(locals []block.Local, size int, images []image) {
	items := make([]block.Item, len(images))
	for i, m := range images {
		items[i] = block.Item{First: m.first, Count: m.count, Digest: block.Sum(m.digest())}
	}
	block.MixItems(locals, size, items)
}

// asked is the images as a gateway tells them.
func asked(images []image) []*kvoraclev1.MultimodalItem {
	var out []*kvoraclev1.MultimodalItem
	for _, m := range images {
		out = append(out, &kvoraclev1.MultimodalItem{FirstToken: uint32(m.first), TokenCount: uint32(m.count), Digest: m.digest()})
	}
	return out
}

// stored is the parts of the images that lie in tokens [from, to), as a worker tells them.
func stored(images []image, from, to int) []*kvoraclev1.BlockMultimodal {
	var out []*kvoraclev1.BlockMultimodal
	for _, m := range images {
		begin, end := max(m.first, from), min(m.first+m.count, to)
		if begin < end {
			out = append(out, &kvoraclev1.BlockMultimodal{
				FirstToken: uint32(begin - from), TokenCount: uint32(end - begin), SkippedTokens: uint32(begin - m.first), Digest: m.digest(),
			})
		}
	}
	return out
}

// id is the block that a name names: the last of its chain.
func (w *worker) id(name string, o map[string]string) (block.ID, error) {
	ids, err := w.ids(name, o)
	if err != nil {
		return 0, err
	}
	return ids[len(ids)-1], nil
}

// parentOf is a block name without its last block; empty for a first block.
func (w *worker) parentOf(name string) string { return name[:max(0, len(name)-w.size/unit)] }
