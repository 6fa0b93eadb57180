package script

import (
	"fmt"
	"strconv"
	"strings"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// messages turns the operations of an RB line into what is sent: one batch, or a snapshot, or a digest.
func (w *worker) messages(seq uint64, ops []string, o map[string]string, m *mirror) ([]*kvoraclev1.ReportBlocksRequest, error) {
	batch := &kvoraclev1.BlockBatch{Sequence: seq}
	for _, op := range ops {
		body := inside(op)
		var err error
		switch {
		case strings.HasPrefix(op, "snap["), op == "begin", strings.HasPrefix(op, "part["), op == "end":
			return w.snapshot(seq, op, o, m)
		case op == "digest" || op == "digest!":
			return []*kvoraclev1.ReportBlocksRequest{m.digest(seq, op == "digest!")}, nil
		case strings.HasPrefix(op, "lost"):
			// The reporter believes that it has said so.
			if _, err := w.messages(seq, []string{strings.TrimPrefix(op, "lost")}, o, m); err != nil {
				return nil, err
			}
		case op == "clear":
			m.clear()
			batch.Ops = append(batch.Ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Clear{Clear: &kvoraclev1.ClearBlocks{Tier: tier(o)}}})
		case strings.HasPrefix(op, "-["), strings.HasPrefix(op, "-h["):
			err = w.remove(batch, op, body, o, m)
		case strings.HasPrefix(op, "?") && !strings.HasPrefix(op, "?["):
			err = malformed(batch, op)
		default:
			var stores []*kvoraclev1.StoreBlocks
			stores, err = w.stores(op, body, o, m)
			for _, s := range stores {
				batch.Ops = append(batch.Ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: s}})
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return []*kvoraclev1.ReportBlocksRequest{{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: batch}}}, nil
}

// snapshot is a whole snapshot, or a part of one.
func (w *worker) snapshot(seq uint64, op string, o map[string]string, m *mirror) ([]*kvoraclev1.ReportBlocksRequest, error) {
	switch op {
	case "begin":
		m.clear()
		return []*kvoraclev1.ReportBlocksRequest{beginMessage(seq)}, nil
	case "end":
		return []*kvoraclev1.ReportBlocksRequest{m.endMessage()}, nil
	}
	isWhole := strings.HasPrefix(op, "snap[")
	if isWhole {
		m.clear()
	}
	body := inside(op)
	stores, err := w.stores("+["+body+"]", body, o, m)
	if err != nil {
		return nil, err
	}
	if !isWhole {
		return []*kvoraclev1.ReportBlocksRequest{partMessage(stores)}, nil
	}
	return []*kvoraclev1.ReportBlocksRequest{beginMessage(seq), partMessage(stores), m.endMessage()}, nil
}

func (w *worker) remove(batch *kvoraclev1.BlockBatch, op, body string, o map[string]string, m *mirror) error {
	rm := &kvoraclev1.RemoveBlocks{Tier: tier(o), Group: group(o)}
	if w.naming != "" || strings.HasPrefix(op, "-h[") {
		hashes, err := w.hashes(strings.HasPrefix(op, "-h["), body, o)
		if err != nil {
			return err
		}
		for _, h := range hashes {
			m.remove(h.key())
		}
		rm.EngineHashes = w.list(hashes)
		batch.Ops = append(batch.Ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: rm}})
		return nil
	}
	for name := range strings.FieldsSeq(body) {
		id, err := w.id(name, o)
		if err != nil {
			return err
		}
		rm.BlockIds = append(rm.BlockIds, uint64(id))
		m.remove(id)
	}
	batch.Ops = append(batch.Ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Remove{Remove: rm}})
	return nil
}

// malformed adds an operation that lacks the part it names.
func malformed(batch *kvoraclev1.BlockBatch, op string) error {
	s := &kvoraclev1.StoreBlocks{
		Parent:  &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
		Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: []uint64{1}}},
	}
	bad := &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: s}}
	switch op {
	case "?op":
		bad.Op = nil
	case "?parent":
		s.Parent = nil
	case "?content":
		s.Content = nil
	default:
		return fmt.Errorf("cannot read operation %q", op)
	}
	batch.Ops = append(batch.Ops, bad)
	return nil
}

// stores reads one of the + forms.
func (w *worker) stores(op, body string, o map[string]string, m *mirror) ([]*kvoraclev1.StoreBlocks, error) {
	switch {
	case strings.HasPrefix(op, "+["):
		var out []*kvoraclev1.StoreBlocks
		for name := range strings.FieldsSeq(body) {
			s, err := w.storeTokens(w.parentOf(name), name[len(w.parentOf(name)):], 0, o, m)
			if err != nil {
				return nil, err
			}
			out = append(out, s)
		}
		return out, nil
	case strings.HasPrefix(op, "+{"):
		parent, content, ok := strings.Cut(body, ">")
		if !ok {
			parent, content = "", body
		}
		s, err := w.storeTokens(parent, content, 0, o, m)
		return []*kvoraclev1.StoreBlocks{s}, err
	case strings.HasPrefix(op, "+("):
		f := strings.Fields(body)
		missing := 0
		if len(f) != 2 {
			return nil, fmt.Errorf("%q: want a block and the number of tokens it lacks", op)
		}
		if _, err := fmt.Sscan(f[1], &missing); err != nil {
			return nil, err
		}
		s, err := w.storeTokens(w.parentOf(f[0]), f[0][len(w.parentOf(f[0])):], missing, o, m)
		return []*kvoraclev1.StoreBlocks{s}, err
	case strings.HasPrefix(op, "+h["), strings.HasPrefix(op, "+p["):
		s, err := w.storeNumbered(op, body, o, m)
		return []*kvoraclev1.StoreBlocks{s}, err
	case strings.HasPrefix(op, "?["):
		s, err := w.storeUntold(body, o, m)
		return []*kvoraclev1.StoreBlocks{s}, err
	case strings.HasPrefix(op, "+id["):
		parent, name, _ := strings.Cut(body, ":")
		p, err := w.id(parent, o)
		if err != nil {
			return nil, err
		}
		id, err := w.id(name, o)
		if err != nil {
			return nil, err
		}
		m.store(id)
		return []*kvoraclev1.StoreBlocks{{
			Parent:  &kvoraclev1.StoreBlocks_ParentBlockId{ParentBlockId: uint64(p)},
			Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: []uint64{uint64(id)}}},
			Tier:    tier(o),
		}}, nil
	default:
		return nil, fmt.Errorf("cannot read operation %q", op)
	}
}

// storeTokens is a store of content that follows parent (empty: the start), by tokens; the last ones may be missing.
func (w *worker) storeTokens(parent, content string, missing int, o map[string]string, m *mirror) (*kvoraclev1.StoreBlocks, error) {
	tokens, err := tokensOf(content)
	if err != nil {
		return nil, err
	}
	tokens = tokens[:max(0, len(tokens)-missing)]
	s := &kvoraclev1.StoreBlocks{
		Parent:    &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
		Content:   &kvoraclev1.StoreBlocks_Tokens{Tokens: &kvoraclev1.BlockTokens{TokenIds: tokens}},
		Tier:      tier(o),
		Lora:      lora(o),
		CacheSalt: o["salt"],
	}
	s.Group = group(o)
	items, err := images(o)
	if err != nil {
		return nil, err
	}
	before, err := tokensOf(parent)
	if err != nil {
		return nil, err
	}
	s.Multimodal = stored(items, len(before), len(before)+len(tokens))
	if w.naming != "" {
		return s, w.nameStore(s, parent, content, o, m)
	}
	if parent != "" {
		id, err := w.id(parent, o)
		if err != nil {
			return nil, err
		}
		s.Parent = &kvoraclev1.StoreBlocks_ParentBlockId{ParentBlockId: uint64(id)}
	}
	if len(tokens)%w.size == 0 && len(tokens) > 0 {
		ids, err := w.ids(parent+content, o)
		if err != nil {
			return nil, err
		}
		for _, id := range ids[len(ids)-len(tokens)/w.size:] {
			m.store(id)
		}
	}
	return s, nil
}

func tier(o map[string]string) kvoraclev1.Tier {
	v := o["tier"]
	if n, ok := kvoraclev1.Tier_value["TIER_"+strings.ToUpper(v)]; ok && v != "" {
		return kvoraclev1.Tier(n)
	}
	if v == "" {
		return kvoraclev1.Tier_TIER_UNSPECIFIED
	}
	const unknown = 99
	return unknown
}

// group is the attention group; anything but a number is group 0.
func group(o map[string]string) uint32 {
	n, err := strconv.ParseUint(o["group"], 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func lora(o map[string]string) *kvoraclev1.LoraAdapter {
	name, rev, _ := strings.Cut(o["lora"], "@")
	if name == "" {
		return nil
	}
	return &kvoraclev1.LoraAdapter{Name: name, Revision: rev}
}

// inside is what an operation's brackets hold.
func inside(op string) string {
	if i := strings.IndexAny(op, "[{("); i >= 0 {
		return strings.TrimRight(op[i+1:], "]})")
	}
	return ""
}
