package load

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// TestChangesKeepUp drives a tracker with everything that happens to targets and keeps copies of the states of two groups
// up to date by what Changes gives. They must be what StatesAmong says of everybody at that moment.
func TestChangesKeepUp(t *testing.T) {
	met := map[string]int{}
	for seed := range uint64(25) {
		r := rand.New(rand.NewPCG(seed, 7))
		tr := New(Config{MaxReportAge: 4 * time.Second, Lease: 20 * time.Second})
		const targets = 14
		for id := range fleet.TargetID(targets) {
			tr.Add(id, "m")
		}
		groups := make([]*Peers, 2)
		members := [2][]fleet.TargetID{}
		copies := make([]State, targets)
		regroup := func() {
			members = [2][]fleet.TargetID{}
			for id := range fleet.TargetID(targets) {
				if tr.target(id) != nil {
					members[id%2] = append(members[id%2], id)
				}
			}
			for k := range groups {
				groups[k] = tr.Peers(append(members[k], targets+5)) // one that is not known
			}
		}
		regroup()
		// Who says what differs from run to run: groups in which all say all, some, or none have ways of their own.
		silent, kvless := r.IntN(4), r.IntN(3)
		gateways := []string{"tells", "", "dumb", "mute"}[:1+r.IntN(4)]
		now := time.Duration(0)
		var news News
		for n := range 3000 {
			if r.IntN(3) == 0 {
				now += time.Duration(r.Int64N(int64(400 * time.Millisecond)))
			}
			if r.IntN(200) == 0 {
				now += 5 * time.Second
			}
			at := after(now)
			id, to := DecisionID(r.IntN(60)), fleet.TargetID(r.IntN(targets))
			gateway := gateways[r.IntN(len(gateways))]
			switch op := r.IntN(60); {
			case op < 14:
				_ = tr.Book(Booking{
					ID: id, Target: to, Gateway: gateway, PromptTokens: 1 + r.IntN(900), UncachedTokens: r.IntN(900),
					PrefillSeconds: r.Float64() / 2, ExpectedOutput: r.IntN(99), DecodeSeconds: 5 * r.Float64(),
				}, at)
			case op < 17:
				tr.Dispatched(id, to, r.IntN(2) == 0, gateway, at)
			case op < 24:
				if b, ok := tr.Lookup(id); ok && b.Gateway == "tells" {
					tr.FirstToken(id, at)
				}
			case op < 26:
				tr.Generating(id, r.IntN(40), at)
			case op < 36:
				if b, ok := tr.Lookup(id); ok && b.Gateway != "mute" {
					tr.Finish(id, r.IntN(99), at)
				}
			case op < 37:
				tr.Cancel(id, at)
			case op < 38:
				tr.Expire(at)
			case op < 55:
				if int(to)%4 < silent {
					break
				}
				s := Sample{Running: Known(r.IntN(9)), Waiting: Known(r.IntN(3))}
				if int(to)%3 >= kvless {
					s.UsedBlocks, s.TotalBlocks = Known(r.IntN(90)), Known(100)
				}
				if r.IntN(9) == 0 {
					s.Running, s.Waiting = Gauge{}, Gauge{}
				}
				_, _ = tr.Report(to, s, at)
			case op < 56 && r.IntN(8) == 0:
				tr.ReleaseGateway(gateway)
			case op < 57 && r.IntN(8) == 0:
				tr.Drop(to)
				members[to%2] = slices.DeleteFunc(members[to%2], func(id fleet.TargetID) bool { return id == to })
				if r.IntN(2) == 0 {
					tr.Add(to, "m")
					regroup() // as the oracle does when the fleet has changed
				}
			}
			if r.IntN(3) == 0 {
				continue
			}
			for k, p := range groups {
				p.Changes(at, &news)
				for _, m := range news.Moved {
					if slices.Contains(news.IDs, m.ID) {
						t.Fatalf("seed %d, step %d: target %d is given twice", seed, n, m.ID)
					}
					copies[m.ID].PendingPrefillSeconds = m.PendingPrefillSeconds
					met["only moved"]++
				}
				for i, id := range news.IDs {
					copies[id] = news.States[i]
				}
				if len(news.IDs)+len(news.Moved) < len(members[k]) {
					met["some unchanged"]++
				}
				want := tr.StatesAmong(members[k], members[k], at, nil)
				for i, id := range members[k] {
					got := copies[id]
					got.ReportAge = want[i].ReportAge
					if got != want[i] {
						t.Fatalf("seed %d, step %d: target %d\ngot  %+v\nwant %+v", seed, n, id, got, want[i])
					}
					met[want[i].Confidence.String()]++
					if want[i].KVUsed < 0 {
						met["memory unknown"]++
					}
					if g := tr.target(id); g != nil && tr.begun(g) > 0 {
						met["by the clock"]++
					}
				}
			}
		}
		met["presumed"] += int(tr.Stats().Presumed)
		met["outlived"] += int(tr.Stats().Outlived)
		audit(t, tr)
	}
	for _, need := range []string{"some unchanged", "only moved", "reported", "imputed", "booked_only", "memory unknown", "by the clock", "presumed", "outlived"} {
		if met[need] < 300 {
			t.Errorf("%q was met %d times: the operations do not exercise it", need, met[need])
		}
	}
}

// TestChangesAreFew: what has not changed is not given again, and what was touched is.
func TestChangesAreFew(t *testing.T) {
	tr, all := benchTracker(t, 100, 0)
	p := tr.Peers(all)
	var news News
	p.Changes(after(0), &news)
	if len(news.IDs) != 100 || len(news.States) != 100 {
		t.Fatalf("at first: %d of 100", len(news.IDs))
	}
	look := func(what string, at time.Duration, want ...fleet.TargetID) {
		t.Helper()
		p.Changes(after(at), &news)
		if slices.Sort(news.IDs); !slices.Equal(news.IDs, want) {
			t.Errorf("%s: %v, want %v", what, news.IDs, want)
		}
	}
	look("nothing", 0)
	tr.FirstToken(70, after(0))
	tr.FirstToken(71, after(0))
	tr.Touch(40)
	tr.Touch(4000)
	look("progress of one, costs of another", 0, 7, 40)
	look("less than a step of the clock", 9*time.Millisecond)
	look("a step, in which all work on", 10*time.Millisecond)
	if len(news.Moved) != len(all) {
		t.Errorf("a step: %d moved, want %d", len(news.Moved), len(all))
	}
	look("no further one", 19*time.Millisecond)
	for id := range DecisionID(1000) {
		tr.FirstToken(id, after(19*time.Millisecond))
	}
	look("first tokens of all", 19*time.Millisecond, all...)
	_, _ = tr.Report(9, Sample{Running: Known(1), UsedBlocks: Known(1), TotalBlocks: Known(9)}, after(9*time.Second))
	look("a report", 9*time.Second, 9)
	look("reports as old as they may get", 10*time.Second)
	p.Changes(after(10*time.Second+1), &news)
	if len(news.IDs) != 99 {
		t.Errorf("all reports but one too old: %d changed, want 99", len(news.IDs))
	}
	look("one that is not too old", 19*time.Second)
	p.Changes(after(19*time.Second+1), &news)
	if len(news.IDs) != 100 {
		t.Errorf("nobody is believed any more: %d changed, want 100", len(news.IDs))
	}
	if n := testing.AllocsPerRun(100, func() {
		tr.Touch(5)
		p.Changes(after(20*time.Second), &news)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkChanges is a report and a look at what has changed, where all say everything and where some say nothing.
func BenchmarkChanges(b *testing.B) {
	for _, n := range []int{64, 1024} {
		for name, k := range map[string]int{"reported": 0, "imputed": 4} {
			b.Run(fmt.Sprintf("targets=%d/%s", n, name), func(b *testing.B) {
				tr, all := benchTracker(b, n, k)
				p := tr.Peers(all)
				var news News
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					i++
					_, _ = tr.Report(1, Sample{Running: Known(i % 50), UsedBlocks: Known(i % 9), TotalBlocks: Known(9)}, after(0))
					p.Changes(after(0), &news)
				}
			})
		}
	}
}
