package mapping

import (
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/edge"
	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/fleet"
)

// Mapper is one rank's events on their way. See the package comment; not for concurrent use.
type Mapper struct {
	cfg      Config
	sink     Sink
	detector kvevents.Detector
	engine   kvevents.Engine
	names    *edge.Translator // nil until something was told
	base     block.Keyspace   // without adapter and salt
	stats    Stats

	main      int // the group that counts as prefix; none: noGroup
	kinds     map[int]kvevents.GroupKind
	window    int  // the largest (TensorRT-LLM)
	isBeyond  bool // other tiers than the device have been told of
	firstRank int

	// Working memory.
	store  edge.Store
	items  []block.Item
	locals []block.Local
	hashes []edge.Hash
}

const (
	noGroup  = -2
	mostKind = 64 // groups that are remembered
)

// New makes a mapper of one rank into a sink.
func New(cfg Config, sink Sink) *Mapper {
	if cfg.Names <= 0 {
		cfg.Names = 1 << 20
	}
	if cfg.Waiting <= 0 {
		cfg.Waiting = 64 << 10
	}
	m := &Mapper{cfg: cfg, sink: sink, engine: cfg.Engine, base: cfg.identity().Keyspace()}
	m.begin()
	return m
}

func (m *Mapper) begin() {
	m.main, m.window, m.isBeyond, m.firstRank = noGroup, 0, false, -1
	m.kinds = make(map[int]kvevents.GroupKind)
	m.names = nil
}

// Engine is who publishes, as told or concluded.
func (m *Mapper) Engine() kvevents.Engine { return m.engine }

// Stats is what has been done since New.
func (m *Mapper) Stats() Stats { return m.stats }

// Pairs is the number of (engine hash, tier) pairs held.
func (m *Mapper) Pairs() int {
	if m.names == nil {
		return 0
	}
	return m.names.Pairs()
}

// Reset begins a new life of the engine: nothing of the former one is there any more.
func (m *Mapper) Reset() {
	m.stats.Resets++
	m.begin()
	m.engine, m.detector = m.cfg.Engine, kvevents.Detector{}
	m.sink.ClearAll()
}

// Apply maps a batch, whose sequence helps to conclude the engine.
func (m *Mapper) Apply(sequence uint64, b *kvevents.Batch) Outcome {
	if m.cfg.Engine == kvevents.EngineUnknown {
		m.engine = m.detector.Observe(sequence, b)
	}
	m.stats.Batches++
	m.stats.Events += uint64(len(b.Events))
	m.stats.UnknownEvents += uint64(b.Counts.UnknownEvents)
	m.stats.UnknownFields += uint64(b.Counts.UnknownFields)
	m.stats.BadEvents += uint64(b.Counts.BadEvents)
	m.stats.LostRemovals += uint64(b.Counts.LostRemovals)
	if b.Rank >= 0 {
		if m.firstRank < 0 {
			m.firstRank = b.Rank
		}
		if b.Rank != m.firstRank {
			m.stats.RankMismatches++
		}
	}
	out := Outcome{IsDoubtful: b.Counts.LostRemovals > 0}
	for i := range b.Events {
		e := &b.Events[i]
		switch e.Kind {
		case kvevents.Stored:
			m.stored(e)
		case kvevents.Removed:
			m.removed(e)
		case kvevents.Moved:
			m.moved(e)
		case kvevents.Cleared:
			if m.cleared() {
				// What was misunderstood in this batch may have come after it, so doubt stays.
				out.IsWhole = true
			}
		case kvevents.Unsaid, kvevents.Created: // sizes of pools; the first is never in a batch
		}
	}
	return out
}

// leaveOut counts an event's blocks.
func (m *Mapper) leaveOut(e *kvevents.Event, why Reason) {
	m.stats.LeftOut[why] += uint64(max(len(e.Hashes), 1))
}

// translator is the table of names, made when the first name comes: until then nobody may know the engine.
func (m *Mapper) translator() *edge.Translator {
	if m.names == nil {
		l := edge.Limits{Names: m.cfg.Names, Waiting: m.cfg.Waiting}
		m.names = edge.New(edge.NewBudget(m.cfg.Names), l, m.engine != kvevents.EngineTRTLLM)
		m.names.Limit()
	}
	return m.names
}

// admit says whether an event is about the blocks that count, and where they are.
func (m *Mapper) admit(e *kvevents.Event) (tier fleet.Tier, ok bool) {
	var why Reason
	switch tier, ok = m.tier(e.Medium); {
	case e.IsPool || e.IsRemote || e.IsOwned || ok && tier == fleet.Shared:
		why = NotOwn
	case !ok:
		why = OtherMedium
	case tier == fleet.Disk && !m.cfg.Storage && m.engine != kvevents.EngineTRTLLM:
		why = Endless
	default:
		if why, ok = m.group(e); ok {
			return tier, true
		}
	}
	m.leaveOut(e, why)
	return 0, false
}

func (m *Mapper) tier(x kvevents.Medium) (fleet.Tier, bool) {
	switch x {
	case kvevents.MediumUnsaid, kvevents.MediumDevice:
		return fleet.Device, true
	case kvevents.MediumHost:
		return fleet.Host, true
	case kvevents.MediumDisk:
		return fleet.Disk, true
	case kvevents.MediumShared:
		return fleet.Shared, true
	case kvevents.MediumUnknown:
	}
	return 0, false
}

// group says whether an event is of the group that counts as prefix: the first one found that looks back on everything and
// has the worker's block size.
func (m *Mapper) group(e *kvevents.Event) (Reason, bool) {
	if m.engine == kvevents.EngineTRTLLM && e.Window > 0 {
		if e.Window < m.window {
			return SmallWindow, false
		}
		if e.Window > m.window {
			// What was told of a smaller window is no prefix after all.
			m.forget(m.window > 0)
			m.window = e.Window
		}
	}
	kind := e.GroupKind
	if kind == kvevents.GroupUnsaid {
		kind = m.kinds[e.Group]
	} else if known, ok := m.kinds[e.Group]; known != kind && (ok || len(m.kinds) < mostKind) {
		m.kinds[e.Group] = kind
		if e.Group == m.main && kind != kvevents.GroupFull {
			// It was taken for the one that counts before anybody said what it is.
			m.forget(true)
			m.main = noGroup
		}
	}
	switch {
	case kind == kvevents.GroupUnsaid && e.Group > 0:
		return UnknownGroup, false
	case kind != kvevents.GroupUnsaid && kind != kvevents.GroupFull:
		return OtherGroup, false
	case e.Group == m.main || e.Group < 0:
		return 0, true
	case m.main == noGroup && (e.Kind != kvevents.Stored || len(e.Tokens) == 0):
		return 0, true // nothing is known to which it could do harm
	case m.main == noGroup && e.BlockSize == m.cfg.BlockSize:
		m.main = e.Group
		return 0, true
	case m.main == noGroup:
		return OtherSize, false
	default:
		return OtherGroup, false
	}
}

// forget drops everything, if there is anything.
func (m *Mapper) forget(isTold bool) {
	if isTold && m.names != nil {
		m.names = nil
		m.sink.ClearAll()
	}
}

func (m *Mapper) engineHashes(e *kvevents.Event) []edge.Hash {
	m.hashes = m.hashes[:0]
	for _, h := range e.Hashes {
		m.hashes = append(m.hashes, edge.Hash(h))
	}
	return m.hashes
}

// removed takes copies away.
func (m *Mapper) removed(e *kvevents.Event) {
	tier, ok := m.admit(e)
	if !ok || m.names == nil {
		return
	}
	hashes := m.engineHashes(e)
	m.stats.Removed += uint64(len(hashes))
	if m.engine != kvevents.EngineTRTLLM || e.Medium != kvevents.MediumUnsaid {
		m.stats.UnknownRemovals += uint64(m.names.Remove(hashes, tier, m.sink))
		return
	}
	for i := range hashes {
		unknown := 0
		for t := range fleet.Tier(fleet.NumTiers) {
			unknown += m.names.Remove(hashes[i:i+1], t, m.sink)
		}
		if unknown == fleet.NumTiers {
			m.stats.UnknownRemovals++
		}
	}
}

// moved gives blocks a copy elsewhere before it takes the one they had, so that they are never gone between.
func (m *Mapper) moved(e *kvevents.Event) {
	to, ok := m.admit(e)
	if !ok || m.names == nil {
		return
	}
	if to != fleet.Device {
		m.isBeyond = true
	}
	hashes := m.engineHashes(e)
	m.store = edge.Store{Tier: to, Hashes: hashes}
	m.account(e, m.names.Store(&m.store, m.sink))
	m.stats.Copies += uint64(len(hashes))
	if from, ok := m.tier(e.From); ok {
		m.stats.UnknownRemovals += uint64(m.names.Remove(hashes, from, m.sink))
	}
}

// cleared empties what the engine means by it, and reports whether that was everything.
func (m *Mapper) cleared() bool {
	m.stats.Clears++
	if m.engine == kvevents.EngineVLLM && m.isBeyond {
		if m.names != nil {
			m.names.Clear(fleet.Device)
		}
		m.sink.Clear(fleet.Device)
		return false
	}
	if m.names != nil {
		m.names.ClearAll()
	}
	m.sink.ClearAll()
	return true
}

// account counts what became of a store.
func (m *Mapper) account(e *kvevents.Event, r edge.Result) {
	m.stats.Repeated += uint64(r.Repeated)
	m.stats.Orphans += uint64(r.Waiting)
	switch r.Refused {
	case edge.None:
	case edge.SelfParent, edge.Conflict:
		m.leaveOut(e, Conflict)
	case edge.WaitingFull:
		m.leaveOut(e, WaitingFull)
	case edge.NamesFull, edge.NoRoom:
		m.leaveOut(e, NamesFull)
	}
}

// isRoot reports whether a chain begins a prompt.
func (m *Mapper) isRoot(e *kvevents.Event) bool {
	return e.ParentKind == kvevents.ParentRoot ||
		e.ParentKind == kvevents.ParentBlock && slices.Contains(m.cfg.RootParents, e.Parent)
}
