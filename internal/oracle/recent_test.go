package oracle

import (
	"slices"
	"testing"
	"time"
)

// TestRecent: the newest that are remembered, newest first, whatever the ring's size.
func TestRecent(t *testing.T) {
	now := time.Unix(1, 0)
	o := New(Config{HistoryDecisions: 8}, nil)
	if got := o.Recent(5); len(got) != 0 {
		t.Errorf("before any: %d", len(got))
	}
	open(t, o, "w0", 1, now)
	var all []DecisionID // newest first
	for range 20 {
		a := route(t, o, prompt(1, 2, 3), nil, now)
		all = slices.Insert(all, 0, a.Decision)
		route(t, o, prompt(1, 2, 3), dry, now) // not booked: not remembered
		for _, most := range []int{0, 3, 100} {
			var got []DecisionID
			for _, a := range o.Recent(most) {
				got = append(got, a.Decision)
			}
			if want := all[:min(len(all), 8, most)]; !slices.Equal(got, want) {
				t.Fatalf("of %d, at most %d: %v, want %v", len(all), most, got, want)
			}
		}
	}
}
