package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// payload reads one frame's fields in order. After the first fault it gives zeros; done says what that was.
type payload struct {
	rest []byte
	err  error
}

func (p *payload) fail(why string) {
	if p.err == nil {
		p.err = errors.New(why)
	}
}

func (p *payload) uvarint() uint64 {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 {
		p.fail("a number that does not end, or is too large")
		p.rest = nil
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

// number is a uvarint up to most.
func (p *payload) number(most int) int {
	v := p.uvarint()
	if v > uint64(most) {
		p.fail(fmt.Sprintf("a number of %d, want at most %d", v, most))
		return 0
	}
	return int(v)
}

func (p *payload) bytes(n int) []byte {
	if n > len(p.rest) {
		p.fail("it is too short")
		p.rest = nil
		return nil
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return b
}

func (p *payload) u64() uint64 {
	if b := p.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (p *payload) text() string { return string(p.bytes(p.number(maxText))) }

// flags is a byte with no bits but those given.
func (p *payload) flags(all byte) byte {
	b := p.bytes(1)
	if b == nil {
		return 0
	}
	if b[0]&^all != 0 {
		p.fail("a flag that has no meaning")
		return 0
	}
	return b[0]
}

func (p *payload) digests() (all [fleet.NumTiers]oracle.Digest) {
	for t := range all {
		all[t] = oracle.Digest{Count: p.u64(), XOR: p.u64(), Sum: p.u64(), Copies: p.u64(), CopySum: p.u64()}
	}
	return all
}

// done says whether all was well and nothing is left.
func (p *payload) done() error {
	if p.err == nil && len(p.rest) > 0 {
		p.fail("bytes are left over")
	}
	return p.err
}
