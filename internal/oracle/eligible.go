package oracle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// eligible sorts the model's targets into candidates and excluded ones.
func (o *Oracle) eligible(view *fleet.View, r *RouteRequest, now time.Time, w *work) error {
	workers := view.Model(r.Model)
	if len(workers) == 0 {
		return Fault(NotFound, ReasonModelUnknown, "model", strconv.Quote(r.Model), "want a model that a known worker serves")
	}
	if r.Prompt.LocalsSize != 0 && !slices.ContainsFunc(workers, func(x *fleet.Worker) bool { return x.BlockSize == r.Prompt.LocalsSize }) {
		return Fault(FailedPrecondition, ReasonBlockSizeMismatch, "block_hashes.block_size", strconv.Itoa(r.Prompt.LocalsSize),
			"want one in use for this model: "+sizesInUse(workers))
	}
	allowed, denied, addresses := newNames(r.Allowed), newNames(r.Denied), newNames(r.Addresses)
	as := r.Prompt.form()
	o.feedsMu.RLock()
	defer o.feedsMu.RUnlock()
	for _, x := range workers {
		why := exclusion(x, r, &allowed, &denied, &addresses)
		for rank, id := range x.Targets {
			if int(id) >= len(o.feeds) || o.feeds[id] == nil {
				continue // it is being born, or has just gone
			}
			c := candidate{worker: x, rank: rank, why: why, cost: &o.feeds[id].pricing.Load().cost}
			c.believe(o.feeds[id], as, now)
			if why != NotExcluded {
				w.counts[why]++
				w.excluded = append(w.excluded, c)
				continue
			}
			c.size = w.promptFor(x.BlockSize)
			w.targets = append(w.targets, c)
		}
	}
	if len(w.targets) == 0 {
		return w.nobody(r)
	}
	return nil
}

// believe notes how far what f says of its target counts for a prompt of that form.
func (h *hold) believe(f *feed, as form, now time.Time) {
	h.id = f.target
	if as == asText {
		h.blocks = f.textConfidence()
	} else {
		h.blocks = f.confidence(now)
	}
	h.credit = f.credit(h.blocks, as)
}

// exclusion is why a worker cannot take the request, as far as its load does not matter.
func exclusion(x *fleet.Worker, r *RouteRequest, allowed, denied, addresses *names) Exclusion {
	role := r.Role
	if role == 0 {
		role = fleet.Aggregated
	}
	switch {
	case x.IsDraining:
		return ExcludedDraining
	case x.IsLost:
		return ExcludedLost
	case denied.has(x.Worker):
		return ExcludedDenied
	case len(r.Allowed) > 0 && !allowed.has(x.Worker):
		return ExcludedNotAllowed
	case r.NeedsAddress && x.Address == "", r.Addresses != nil && !addresses.has(HostPort(x.Address)):
		return ExcludedNotAllowed
	case !x.Roles.Serves(role):
		return ExcludedRole
	case r.Prompt.LocalsSize != 0 && x.BlockSize != r.Prompt.LocalsSize:
		return ExcludedBlockSize
	}
	for k, v := range r.Labels {
		if got, ok := x.Labels[k]; !ok || got != v {
			return ExcludedLabel
		}
	}
	return NotExcluded
}

// isPlain reports whether a request excludes none of those that a roster has as plain. It must know of everything that
// exclusion looks at.
func (ro *roster) isPlain(r *RouteRequest) bool {
	return len(r.Allowed) == 0 && len(r.Denied) == 0 && r.Addresses == nil && len(r.Labels) == 0 &&
		(!r.NeedsAddress || ro.named) &&
		(r.Role == 0 || r.Role == fleet.Aggregated) &&
		(r.Prompt.LocalsSize == 0 || len(ro.sizes) == 1 && ro.sizes[0] == r.Prompt.LocalsSize)
}

// names is a list of names; a long one is looked up by hash, so that lists and fleets do not multiply.
type names struct {
	few  []string
	many map[string]struct{}
}

func newNames(list []string) names {
	const few = 8
	if len(list) <= few {
		return names{few: list}
	}
	n := names{many: make(map[string]struct{}, len(list))}
	for _, s := range list {
		n.many[s] = struct{}{}
	}
	return n
}

func (n *names) has(s string) bool {
	if n.many != nil {
		_, ok := n.many[s]
		return ok
	}
	return slices.Contains(n.few, s)
}

func sizesInUse(workers []*fleet.Worker) string {
	var sizes []int
	for _, x := range workers {
		if !slices.Contains(sizes, x.BlockSize) {
			sizes = append(sizes, x.BlockSize)
		}
	}
	slices.Sort(sizes)
	return strings.Trim(fmt.Sprint(sizes), "[]")
}

// nobody is the error when every target is excluded, with the count by cause.
func (w *work) nobody(r *RouteRequest) error {
	var causes []string
	for why := NotExcluded + 1; why < numExclusions; why++ {
		if n := w.counts[why]; n > 0 {
			causes = append(causes, fmt.Sprintf("%d %s", n, why))
		}
	}
	if len(causes) == 0 {
		causes = append(causes, "all are joining or leaving; ask again")
	}
	e := Fault(Unavailable, ReasonNoEligibleWorker, "model", strconv.Quote(r.Model), "no target can take it: "+strings.Join(causes, ", "))
	e.IsFull = w.counts[ExcludedFull] > 0
	return e
}
