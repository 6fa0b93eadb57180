package oracle

// trust compares what reports promised with what engines then did. An engine may free blocks without saying so; then its
// requests find less in its cache than was matched, again and again. What it said it had freed between the choice and the
// outcome is no broken promise: a request may wait long behind others that push its blocks out. The feed's mu guards it.
type trust struct {
	strikes  int // requests in a row that found less than half of what was promised
	patience int // strikes that ask for a snapshot; 0: firstPatience
}

const (
	// firstPatience is few enough to notice soon and enough to outlive an eviction between decision and admission.
	firstPatience = 3
	// mostPatience bounds how rarely a target is asked again that goes on breaking its promises after snapshots: then
	// the snapshots are wrong too, and asking does not help.
	mostPatience = 12_288
)

// judge takes one outcome, in prompt tokens, and says whether the target has to state its contents again.
func (t *trust) judge(promised, cached int) bool {
	if promised <= 0 {
		return false
	}
	if 2*cached >= promised {
		*t = trust{}
		return false
	}
	if t.patience == 0 {
		t.patience = firstPatience
	}
	if t.strikes++; t.strikes < t.patience {
		return false
	}
	t.strikes = 0
	t.patience = min(4*t.patience, mostPatience)
	return true
}

// judge applies an outcome to the target's feed. freed is what f.freed was when the promise was made, size the target's
// block size.
func (f *feed) judge(promised, cached int, freed uint64, size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if short := promised - cached; short > 0 && f.freed.Load()-freed >= uint64(short/size) {
		return // which blocks they were is not looked up: this may forgive too much, and never blames wrongly
	}
	if f.awaiting || f.ledger == nil || !f.trust.judge(promised, cached) {
		return
	}
	r := f.await(ResyncOutcomes)
	f.sign()
	f.tell(r)
}
