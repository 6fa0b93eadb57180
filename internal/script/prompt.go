package script

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvoracle/kvoracle/internal/block"
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
	return block.AppendTokenChain(nil, w.identity(o).Keyspace(), tokens, w.size), nil
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
