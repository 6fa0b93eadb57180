package mapping

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/edge"
	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// stored adds copies of blocks.
func (m *Mapper) stored(e *kvevents.Event) {
	tier, ok := m.admit(e)
	if !ok {
		return
	}
	if len(e.Hashes) == 0 {
		return
	}
	if len(e.Tokens) == 0 {
		if e.BlockSize != 0 {
			m.leaveOut(e, Uneven)
			return
		}
		m.note(tier)
		m.store = edge.Store{Tier: tier, Hashes: m.engineHashes(e)}
		m.stats.Copies += uint64(len(e.Hashes))
		m.account(e, m.translator().Store(&m.store, m.sink))
		return
	}
	name, ok := m.lora(e)
	isRoot := m.isRoot(e)
	n := len(e.Hashes)
	switch {
	case e.BlockSize != m.cfg.BlockSize:
		m.leaveOut(e, OtherSize)
		return
	case len(e.Tokens) != n*e.BlockSize:
		m.leaveOut(e, Uneven)
		return
	case !ok:
		m.leaveOut(e, NamelessLoRA)
		return
	case e.ParentKind == kvevents.ParentUnknown:
		m.leaveOut(e, Parentless)
		return
	}
	m.locals = block.AppendLocals(m.locals[:0], e.Tokens, e.BlockSize)
	if n = m.mix(e); n == 0 {
		return
	}
	m.note(tier)
	m.store = edge.Store{
		Tier: tier, IsRoot: isRoot, Parent: edge.Hash(e.Parent), Hashes: m.engineHashes(e)[:n], Locals: m.locals[:n],
	}
	if isRoot {
		m.store.Keyspace = m.keyspace(name, e.Salt)
	}
	m.stats.Stored += uint64(n)
	m.account(e, m.translator().Store(&m.store, m.sink))
}

func (m *Mapper) note(tier fleet.Tier) {
	if tier != fleet.Device {
		m.isBeyond = true
	}
}

// lora is the adapter's name, nil for none; false if there is one that nobody can name.
func (m *Mapper) lora(e *kvevents.Event) ([]byte, bool) {
	if len(e.LoRAName) > 0 || !e.HasLoRAID {
		return e.LoRAName, true
	}
	name, ok := m.cfg.LoRANames[e.LoRAID]
	return []byte(name), ok
}

func (m *Mapper) keyspace(lora, salt []byte) block.Keyspace {
	if len(lora) == 0 && len(salt) == 0 {
		return m.base
	}
	id := m.cfg.identity()
	id.LoRAName, id.CacheSalt = string(lora), string(salt)
	id.LoRARevision = m.cfg.LoRARevisions[id.LoRAName]
	return id.Keyspace()
}

// mix puts the multimodal items into the local hashes, and returns how many blocks from the front can be told from all
// others. The rest is left out.
func (m *Mapper) mix(e *kvevents.Event) int {
	n, size := len(e.Hashes), e.BlockSize
	for i := 0; i < len(e.Extras); {
		b := int(e.Extras[i].Block)
		if b >= n {
			break // of blocks that are not there
		}
		m.items = m.items[:0]
		for ; i < len(e.Extras) && int(e.Extras[i].Block) == b; i++ {
			x := &e.Extras[i]
			if x.Kind == kvevents.ExtraItem && x.Offset < int64(size) {
				// How far it goes on behind the block makes no difference.
				first := int(x.Offset)
				m.items = append(m.items, block.Item{First: first, Count: size - first, Digest: block.Sum(x.ID)})
				continue
			}
			why := PlacelessItem
			if x.Kind == kvevents.ExtraEmbeds {
				why = Embeds
			}
			m.stats.LeftOut[why] += uint64(n - b)
			return b
		}
		block.MixItems(m.locals[b:b+1], size, m.items)
	}
	return n
}
