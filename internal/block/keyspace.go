package block

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Keyspace is the universe a chain lives in. Chains of two keyspaces share no id.
type Keyspace uint64

// Identity is everything besides the tokens that decides whether cached KV may be reused. The zero value is an identity
// like any other; whether it is a sensible one is for the caller to check.
type Identity struct {
	Model        string // base model, as its users name it
	BlockSize    int    // tokens in a block
	LoRAName     string // adapter by name, never by its load-order number; empty: none
	LoRARevision string // which weights of that adapter; empty: unversioned
	CacheSalt    string // keeps tenants apart; empty: none
	Secret       string // of the deployment; empty: ids can be computed by anybody
	IsText       bool   // the "tokens" are four bytes of text each, see TextScheme
}

// Keyspace is the hash of the canonical encoding in the package comment. It allocates only for identities whose encoding
// is longer than 512 bytes.
func (id Identity) Keyspace() Keyspace {
	var buf [512]byte
	return Keyspace(xxh3.HashSeed(id.appendCanonical(buf[:0]), Seed))
}

// appendCanonical appends the encoding that the package comment defines.
func (id Identity) appendCanonical(b []byte) []byte {
	if id.IsText {
		b = appendString(b, TextScheme)
	} else {
		b = appendString(b, Scheme)
	}
	b = appendString(b, id.Model)
	b = binary.LittleEndian.AppendUint64(b, uint64(id.BlockSize))
	b = appendString(b, id.LoRAName)
	b = appendString(b, id.LoRARevision)
	b = appendString(b, id.CacheSalt)
	return appendString(b, id.Secret)
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}
