package sim

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Prompts that a trace gives as tokens or text become hash ids here: the ids of their blocks, each of which names the
// whole prompt up to its end, and for an unfinished last block the same over what there is of it.

// bytesPerToken is what text is taken to make: no tokenizer is at hand, and the ratio of two prompts' lengths matters
// more than either.
const bytesPerToken = 4

// message is one turn of a chat. Content that is not a string (parts, for images) is hashed as the JSON it is.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// chooseSize settles the block size with the first line.
func (p *parser) chooseSize(r *record) error {
	switch size := &p.options.BlockSize; {
	case *size != 0:
	case r.BlockSize != 0:
		if err := inRange("block_size", r.BlockSize, 1, block.MaxSize); err != nil {
			return err
		}
		*size = r.BlockSize
	case len(r.Tokens) > 0 || r.Prompt != nil || len(r.Messages) > 0:
		*size = 64
	default:
		*size = 512
	}
	if r.BlockSize != 0 && r.BlockSize != p.options.BlockSize {
		return fmt.Errorf("block_size: got %d, want %d as before", r.BlockSize, p.options.BlockSize)
	}
	return nil
}

// hash fills in hash_ids and input_length of a line that has tokens or text instead.
func (r *record) hash(blockSize int) error {
	given := 0
	for _, has := range []bool{len(r.Hashes) > 0, len(r.Tokens) > 0, len(r.Messages) > 0, r.Prompt != nil} {
		if has {
			given++
		}
	}
	if given > 1 {
		return errors.New("want one of hash_ids, token_ids, messages and prompt")
	}
	if r.Output == nil {
		r.Output = r.MaxTokens
	}
	tokens := r.Tokens
	switch {
	case len(r.Messages) > 0:
		var text []byte
		for _, m := range r.Messages {
			text = append(append(text, m.Role...), 0)
			var s string
			if json.Unmarshal(m.Content, &s) == nil {
				text = append(text, s...)
			} else {
				text = append(text, m.Content...)
			}
			text = append(text, 0)
		}
		tokens = packed(text)
	case r.Prompt != nil:
		tokens = packed([]byte(*r.Prompt))
	}
	if len(tokens) == 0 {
		return nil
	}
	n := len(tokens)
	if r.Input != nil && *r.Input != n && len(r.Tokens) > 0 {
		return fmt.Errorf("input_length: got %d, want %d, the number of token_ids", *r.Input, n)
	}
	r.Input = &n
	parent := block.ID(0)
	for at := 0; at < n; at += blockSize {
		parent = parent.Child(block.LocalHash(tokens[at:min(at+blockSize, n)]))
		r.Hashes = append(r.Hashes, uint64(parent))
	}
	return nil
}

// packed makes a token of each four bytes; the last is filled up with zeros.
func packed(text []byte) []uint32 {
	tokens := make([]uint32, 0, ceilDiv(len(text), bytesPerToken))
	for len(text) >= bytesPerToken {
		tokens = append(tokens, binary.LittleEndian.Uint32(text))
		text = text[bytesPerToken:]
	}
	if len(text) > 0 {
		var last [bytesPerToken]byte
		copy(last[:], text)
		tokens = append(tokens, binary.LittleEndian.Uint32(last[:]))
	}
	return tokens
}
