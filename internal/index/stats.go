package index

// Stats are gauges. They are read one after another, not at one moment.
type Stats struct {
	// Ledgers counts the visible ones.
	Ledgers int
	// HolderBlocks counts the blocks of visible ledgers, each once per ledger, in whatever tiers it lies.
	HolderBlocks int
	// DistinctBlocks counts the different blocks in memory, ledgers built aside or waiting for Reclaim included, and
	// holes in what somebody holds.
	DistinctBlocks int
	// Orphans counts the blocks of visible ledgers that are not connected to a prompt's start.
	Orphans int
	// Entries counts what Config.MaxBlocks bounds.
	Entries int
	// Reclaimable counts the entries of dropped ledgers that wait for Reclaim.
	Reclaimable int
	// Slots counts the small ids of ledgers ever in use at once.
	Slots int
}

// Stats reads the gauges. It takes each lock for a moment, one after another; the cost grows with the number of ledgers.
func (ix *Index) Stats() Stats {
	ix.mu.Lock()
	s := Stats{Ledgers: len(ix.visible), Slots: ix.slots}
	ledgers := make([]*Ledger, 0, len(ix.visible))
	for _, l := range ix.visible {
		ledgers = append(ledgers, l)
	}
	ix.mu.Unlock()

	// A ledger's lock comes before the owner table's, so the table is let go first.
	for _, l := range ledgers {
		l.mu.Lock()
		s.HolderBlocks += l.held
		s.Orphans += l.orphans
		l.mu.Unlock()
	}
	for i := range ix.tables {
		t := &ix.tables[i]
		t.mu.Lock()
		s.DistinctBlocks += t.count
		t.mu.Unlock()
	}
	ix.garbage.mu.Lock()
	s.Entries = int(ix.budget.used.Load())
	s.Reclaimable = ix.garbage.entries
	ix.garbage.mu.Unlock()
	return s
}
