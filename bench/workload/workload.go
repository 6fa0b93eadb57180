// Package workload makes the streams of block reports that prefix indexes are compared on.
//
// Families of prompts share a prefix; each holder of a family adds a tail of its own. A holder tells its prompts one after
// another, in batches with a parent; some batches twice; from some prompts it loses a block in the middle. Whose turn it is
// is random. The same profile and seed give the same stream, byte for byte, whatever is done with it.
package workload

import (
	"math"
	"math/rand/v2"

	"github.com/kvoracle/kvoracle/bench/kvops"
	"github.com/kvoracle/kvoracle/internal/block"
)

// Class is how much of all holder-blocks lies in families of so many holders.
type Class struct {
	Share   float64
	Holders int
}

// Profile describes a stream.
type Profile struct {
	Name         string
	Blocks       int // holder-blocks, about
	Holders      int
	Classes      []Class
	PrefixLeast  int // shared blocks, log-uniform
	PrefixMost   int
	TailLeast    int // own blocks, uniform
	TailMost     int
	Twice        float64 // batches sent twice
	Hole         float64 // prompts of a holder that lose one interior block
	HoleOfBlocks float64 // interior blocks that are lost, each for itself
}

// Batch is how many blocks a store has.
const Batch = 8

// The published gate and its side profiles.
var (
	gateClasses = []Class{{0.50, 1}, {0.35, 8}, {0.15, 64}}

	Gate = Profile{
		Name: "gate", Blocks: 10_000_000, Holders: 256, Classes: gateClasses,
		PrefixLeast: 8, PrefixMost: 512, TailLeast: 4, TailMost: 64, Twice: 0.05, Hole: 0.2,
	}
	Private    = Gate.with("private", func(p *Profile) { p.Classes = []Class{{1, 1}} })
	Fragmented = Gate.with("fragmented", func(p *Profile) { p.Hole, p.HoleOfBlocks = 0, 0.02 })
	Large      = Gate.with("large", func(p *Profile) { p.Blocks, p.Holders = 100_000_000, 2048 })
	Fleet      = Gate.with("fleet", func(p *Profile) {
		p.Holders, p.Classes = 1024, []Class{{0.40, 1}, {0.30, 8}, {0.30, 64}}
	})
	Agentic = Gate.with("agentic", func(p *Profile) {
		p.Classes = []Class{{0.20, 1}, {0.40, 8}, {0.40, 64}}
		p.PrefixLeast, p.PrefixMost, p.TailLeast, p.TailMost = 64, 2048, 16, 256
	})
	Churn = Gate.with("churn", func(p *Profile) {
		p.Classes = []Class{{0.70, 1}, {0.25, 8}, {0.05, 64}}
		p.PrefixLeast, p.PrefixMost, p.TailLeast, p.TailMost = 4, 64, 2, 16
		p.Twice, p.Hole = 0.20, 1
	})
)

func (p Profile) with(name string, change func(*Profile)) Profile {
	p.Name = name
	change(&p)
	return p
}

// Family is a shared prefix and who holds it.
type Family struct {
	Prefix  int
	Holders []int32
	Tails   []int32 // blocks that each holder adds
}

// Stream gives a profile's operations one by one.
type Stream struct {
	Profile  Profile
	Families []Family
	// ForPeers, set before the first Next: operations carry local hashes too, and a prompt's first id is its local hash, as
	// Dynamo has it.
	ForPeers bool

	r       *rand.Rand
	todo    [][]prompt // by holder, last one first
	running []int32    // holders that have something to say
	now     []current  // by holder
}

// prompt is one holder's share of a family.
type prompt struct{ family, member int32 }

// current is what a holder is telling.
type current struct {
	chain  []block.ID
	locals []block.Local
	at     int
	holes  []int
}

// Op is a store below Parent, or a removal. IDs stay valid until the holder's next prompt.
type Op struct {
	Holder   int
	IsRemove bool
	IsRoot   bool
	Parent   block.ID
	IDs      []block.ID
	Locals   []block.Local // of a store, with ForPeers
}

// New prepares a stream.
func New(p Profile, seed uint64) *Stream {
	s := &Stream{Profile: p, r: rand.New(rand.NewPCG(seed, 1))}
	s.todo = make([][]prompt, p.Holders)
	s.now = make([]current, p.Holders)
	for _, c := range p.Classes {
		for left := c.Share * float64(p.Blocks); left > 0; {
			f := Family{Prefix: s.logUniform(p.PrefixLeast, p.PrefixMost)}
			for _, h := range s.pick(c.Holders) {
				tail := p.TailLeast + s.r.IntN(p.TailMost-p.TailLeast+1)
				s.todo[h] = append(s.todo[h], prompt{int32(len(s.Families)), int32(len(f.Holders))})
				f.Holders = append(f.Holders, h)
				f.Tails = append(f.Tails, int32(tail))
				left -= float64(f.Prefix + tail)
			}
			s.Families = append(s.Families, f)
		}
	}
	for h := range s.todo {
		t := s.todo[h]
		s.r.Shuffle(len(t), func(i, j int) { t[i], t[j] = t[j], t[i] })
		if len(t) > 0 {
			s.running = append(s.running, int32(h))
		}
	}
	return s
}

func (s *Stream) logUniform(least, most int) int {
	x := math.Log(float64(least)) + s.r.Float64()*(math.Log(float64(most)+1)-math.Log(float64(least)))
	return min(int(math.Exp(x)), most)
}

// pick chooses different holders.
func (s *Stream) pick(n int) []int32 {
	all := make([]int32, 0, n)
	seen := make(map[int32]bool, n)
	for len(all) < n {
		if h := int32(s.r.IntN(s.Profile.Holders)); !seen[h] {
			seen[h] = true
			all = append(all, h)
		}
	}
	return all
}

// Members lists which members of which families have a number of holders and at least so many blocks.
func (s *Stream) Members(holders, least int) (out [][2]int) {
	for f := range s.Families {
		fam := &s.Families[f]
		for m := range fam.Holders {
			if len(fam.Holders) == holders && fam.Prefix+int(fam.Tails[m]) >= least {
				out = append(out, [2]int{f, m})
			}
		}
	}
	return out
}

const keyspace = block.Keyspace(0x6b766f7261636c65)

func scramble(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// AppendLocals gives the local hashes of a family member's prompt; member -1: the prefix alone.
func (s *Stream) AppendLocals(dst []block.Local, family, member int) []block.Local {
	f := &s.Families[family]
	for i := range f.Prefix {
		dst = append(dst, block.Local(scramble(uint64(family)<<32|uint64(i))))
	}
	if member >= 0 {
		for i := range f.Tails[member] {
			dst = append(dst, block.Local(scramble(1<<63|uint64(family)<<32|uint64(f.Holders[member])<<16|uint64(i))))
		}
	}
	return dst
}

// AppendChain gives the block ids of a family member's prompt.
func (s *Stream) AppendChain(dst []block.ID, family, member int) []block.ID {
	var buf [4096]block.Local
	return block.AppendChain(dst, keyspace, s.AppendLocals(buf[:0], family, member))
}

// Chain gives ids to local hashes as the stream does.
func Chain(dst []block.ID, locals []block.Local) []block.ID {
	return block.AppendChain(dst, keyspace, locals)
}

// First is the id of a first block, as the stream has it.
func First(l block.Local) block.ID { return keyspace.Root(l) }

// Next gives the next operation and how often to apply it; 0: there is no more.
func (s *Stream) Next(op *Op) (times int) {
	for len(s.running) > 0 {
		k := s.r.IntN(len(s.running))
		h := s.running[k]
		c := &s.now[h]
		switch {
		case c.at < len(c.chain):
			n := min(Batch, len(c.chain)-c.at)
			*op = Op{Holder: int(h), IsRoot: c.at == 0, IDs: c.chain[c.at : c.at+n]}
			if c.at > 0 {
				op.Parent = c.chain[c.at-1]
			}
			if s.ForPeers {
				op.Locals = c.locals[c.at : c.at+n]
			}
			c.at += n
			if s.r.Float64() < s.Profile.Twice {
				return 2
			}
			return 1
		case len(c.holes) > 0:
			i := c.holes[len(c.holes)-1]
			c.holes = c.holes[:len(c.holes)-1]
			*op = Op{Holder: int(h), IsRemove: true, IDs: c.chain[i : i+1]}
			return 1
		case len(s.todo[h]) > 0:
			p := s.todo[h][len(s.todo[h])-1]
			s.todo[h] = s.todo[h][:len(s.todo[h])-1]
			// A new slice: whoever keeps operations for later may have the last prompt's.
			room := s.Families[p.family].Prefix + int(s.Families[p.family].Tails[p.member])
			if s.ForPeers {
				c.locals = s.AppendLocals(make([]block.Local, 0, room), int(p.family), int(p.member))
				c.chain = kvops.Chain(make([]block.ID, 0, room), c.locals)
			} else {
				c.chain = s.AppendChain(make([]block.ID, 0, room), int(p.family), int(p.member))
			}
			c.at = 0
			s.holes(c)
		default:
			s.running[k] = s.running[len(s.running)-1]
			s.running = s.running[:len(s.running)-1]
			s.now[h] = current{}
		}
	}
	return 0
}

// holes chooses which blocks a prompt will lose.
func (s *Stream) holes(c *current) {
	c.holes = c.holes[:0]
	if len(c.chain) < 3 {
		return
	}
	if s.r.Float64() < s.Profile.Hole {
		c.holes = append(c.holes, 1+s.r.IntN(len(c.chain)-2))
	}
	for i := 1; i < len(c.chain)-1; i++ {
		if s.Profile.HoleOfBlocks > 0 && s.r.Float64() < s.Profile.HoleOfBlocks {
			c.holes = append(c.holes, i)
		}
	}
}
