package block

import (
	"encoding/binary"
	"testing"
)

func tokensOf(b []byte) []uint32 {
	tokens := make([]uint32, len(b)/4)
	for i := range tokens {
		tokens[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return tokens
}

// FuzzChainsAgreeExactlyWherePrefixesDo compares token by token what ids promise to compare at once.
func FuzzChainsAgreeExactlyWherePrefixesDo(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef"), []byte("0123456789abcdef0123456789abcdeg"), uint8(2))
	f.Add([]byte("0000111122223333"), []byte("0000111122220000"), uint8(1))
	f.Add([]byte("000011112222"), []byte("0000111122223333"), uint8(2))
	f.Add([]byte(""), []byte("0000"), uint8(0))
	f.Fuzz(func(t *testing.T, a, b []byte, rawSize uint8) {
		x, y, size := tokensOf(a), tokensOf(b), int(rawSize)
		k := Identity{Model: "m", BlockSize: size}.Keyspace()
		idsX, idsY := AppendTokenChain(nil, k, x, size), AppendTokenChain(nil, k, y, size)
		if size > 0 && (len(idsX) != len(x)/size || len(idsY) != len(y)/size) {
			t.Fatalf("%d and %d ids from %d and %d tokens of size %d", len(idsX), len(idsY), len(x), len(y), size)
		}
		for i := range min(len(idsX), len(idsY)) {
			equal := true
			for j := range (i + 1) * size {
				equal = equal && x[j] == y[j]
			}
			if equal != (idsX[i] == idsY[i]) {
				t.Fatalf("block %d: tokens equal: %v, ids equal: %v", i, equal, !equal)
			}
		}
		if got := AppendChain(nil, k, AppendLocals(nil, x, size)); len(got) != len(idsX) {
			t.Fatalf("AppendChain gave %d, AppendTokenChain %d", len(got), len(idsX))
		}
		other := AppendTokenChain(nil, Identity{Model: "m", BlockSize: size, CacheSalt: "s"}.Keyspace(), x, size)
		for i := range other {
			if other[i] == idsX[i] {
				t.Fatalf("block %d has one id in two keyspaces", i)
			}
		}
	})
}

// FuzzKeyspaceEncodingCanBeReadBack shows that no two identities share an encoding.
func FuzzKeyspaceEncodingCanBeReadBack(f *testing.F) {
	f.Add("m", 16, "ab", "c", "", "")
	f.Add("", 0, "a", "bc", "\x00", "\xff")
	f.Add("m", -1, "", "", "s", "k")
	f.Fuzz(func(t *testing.T, model string, size int, name, revision, salt, secret string) {
		id := Identity{Model: model, BlockSize: size, LoRAName: name, LoRARevision: revision, CacheSalt: salt, Secret: secret}
		b := id.appendCanonical(nil)
		word := func() uint64 {
			v := binary.LittleEndian.Uint64(b)
			b = b[8:]
			return v
		}
		str := func() string {
			n := word()
			s := string(b[:n])
			b = b[n:]
			return s
		}
		if s := str(); s != Scheme {
			t.Fatalf("scheme reads %q", s)
		}
		got := Identity{Model: str(), BlockSize: int(int64(word())), LoRAName: str(), LoRARevision: str(), CacheSalt: str(), Secret: str()}
		if got != id || len(b) != 0 {
			t.Fatalf("%+v reads back as %+v with %d bytes left", id, got, len(b))
		}
	})
}
