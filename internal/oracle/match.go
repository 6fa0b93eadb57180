package oracle

import (
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// promptFor finds or adds the prompt at a block size.
func (w *work) promptFor(size int) int {
	for i := range w.prompts {
		if w.prompts[i].size == size {
			return i
		}
	}
	n := len(w.prompts)
	if n < cap(w.prompts) {
		w.prompts = w.prompts[:n+1] // keeps the buffers of an earlier decision
	} else {
		w.prompts = append(w.prompts, promptAt{})
	}
	p := &w.prompts[n]
	p.size, p.locals, p.chain, p.facts, p.guesses = size, p.locals[:0], p.chain[:0], p.facts[:0], p.guesses[:0]
	p.approx = p.approx[:0]
	p.quick.facts.Reset()
	p.quick.guesses.Reset()
	p.quick.approx.Reset()
	return n
}

// hashes are the local hashes of a prompt's full blocks; false: it has tokens, of which ids are made at once as fast.
func (p *promptAt) hashes(from *Prompt) ([]block.Local, bool) {
	switch {
	case len(from.Items) > 0:
		p.locals = block.AppendLocals(p.locals[:0], from.Tokens, p.size)
		block.MixItems(p.locals, p.size, from.Items)
		return p.locals, true
	case from.PackedLocals != nil:
		p.locals = block.AppendPackedLocals(p.locals[:0], from.PackedLocals)
		return p.locals, true
	default:
		return from.Locals, from.LocalsSize != 0
	}
}

// match hashes the prompt once per block size and credits the candidates with what the indexes say that they hold.
func (o *Oracle) match(r *RouteRequest, w *work) {
	o.ask(r, w)
	if w.roster != nil {
		w.placeHolders(r.Prompt.form(), r.Prompt.Length)
		return
	}
	for i := range w.targets {
		w.placeAt(w.targets[i].id, i)
	}
	w.credit(r.Prompt.Length)
}

// ask hashes the prompt and asks who holds it.
func (o *Oracle) ask(r *RouteRequest, w *work) {
	as := r.Prompt.form()
	for i := range w.prompts {
		p := &w.prompts[i]
		ks := block.Identity{
			Model: r.Model, BlockSize: p.size, LoRAName: r.LoRAName, LoRARevision: r.LoRARevision,
			CacheSalt: r.CacheSalt, Secret: o.cfg.Secret, IsText: as == asText,
		}.Keyspace()
		isQuick := w.roster != nil
		switch locals, ok := p.hashes(&r.Prompt); {
		case !ok:
			p.chain = r.Prompt.appendChain(p.chain, ks, p.size)
			switch {
			case as != asTokens:
			case isQuick:
				o.index.MatchLayers(p.chain, &p.quick.facts)
			default:
				p.facts = o.index.Match(p.chain, p.facts)
			}
		case len(locals) > 0:
			// What is held is checked, not made; the rest is needed too, for what this request will leave.
			if first := ks.Root(locals[0]); isQuick {
				p.chain = o.index.MatchLocalsLayers(first, locals[1:], p.chain, &p.quick.facts)
			} else {
				p.chain, p.facts = o.index.MatchLocals(first, locals[1:], p.chain, p.facts)
			}
			p.chain = block.AppendChainAfter(p.chain, p.chain[len(p.chain)-1], locals[len(p.chain):])
		}
		isApprox := o.approximated[as].Load() > 0
		if isQuick {
			o.guesses.layers(p.chain, &p.quick.guesses)
			if isApprox {
				o.approx[as].MatchLayers(p.chain, &p.quick.approx)
			}
			continue
		}
		p.guesses = o.guesses.match(p.chain, p.guesses)
		if isApprox {
			p.approx = o.approx[as].Match(p.chain, p.approx)
		}
	}
}

// credit gives the places that were noted what their targets hold of a prompt of so many tokens.
func (w *work) credit(length int) {
	for i := range w.prompts {
		p := &w.prompts[i]
		most := block.Usable(length, p.size) * p.size
		for k := range p.facts {
			if c := w.at(p.facts[k].Target, i); c != nil {
				c.holds(&p.facts[k].Blocks, p.size, most)
			}
		}
		for k := range p.approx {
			if c := w.at(p.approx[k].Target, i); c != nil && c.blocks == Approximate {
				c.holds(&p.approx[k].Blocks, p.size, most)
			}
		}
		for k := range p.guesses {
			if c := w.at(p.guesses[k].Target, i); c != nil {
				c.expects(&p.guesses[k].Blocks, p.size, most)
			}
		}
	}
}

// holds credits the blocks that h's target has, of which a prompt can use so many tokens at most.
func (h *hold) holds(blocks *[fleet.NumTiers]uint32, size, most int) {
	for t, n := range blocks {
		h.held[t] = int(n) * size
		h.usable[t] = min(h.held[t], most)
		most -= h.usable[t]
		if h.credit < 1 {
			h.usable[t] = int(float64(h.usable[t]) * h.credit)
		}
	}
}

// expects notes the blocks that requests under way will leave; what is held is credited already.
func (h *hold) expects(blocks *[fleet.NumTiers]uint32, size, most int) {
	for _, n := range blocks {
		h.shared += int(n) * size
	}
	h.guess = max(0, min(h.shared, most)-h.usable.Total())
}

// placeAt notes where a target stands among the candidates, or the holds of the quick way, so that a match finds it at once.
func (w *work) placeAt(id fleet.TargetID, i int) {
	if int(id) >= len(w.places) {
		w.places = append(w.places, make([]int32, int(id)+1-len(w.places))...)
	}
	w.places[id] = int32(i)
}

// at finds what a target holds, if it is a candidate with that prompt. What was noted for an earlier decision is told by
// the id that stands there now.
func (w *work) at(id fleet.TargetID, prompt int) *hold {
	if int64(id) >= int64(len(w.places)) {
		return nil
	}
	i := int(w.places[id])
	if i >= len(w.targets) {
		return nil
	}
	h := &w.targets[i].hold
	if h.id != id || h.size != prompt {
		return nil
	}
	return h
}
