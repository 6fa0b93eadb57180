package oracle

import (
	"testing"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// TestOthersAreThoseWhoseBitIsNotSet: over more ids than one page has, each once and in order.
func TestOthersAreThoseWhoseBitIsNotSet(t *testing.T) {
	var s steadiness
	const last = 2*steadyWords*64 - 1
	s.cover(last)
	want := []fleet.TargetID{}
	for id := range fleet.TargetID(last + 1) {
		if id%3 == 0 || id == 4095 || id == last {
			want = append(want, id)
			continue
		}
		s.at(id).Or(1 << (id % 64))
	}
	n := 0
	for id := range s.others {
		if n == len(want) || id != want[n] || s.has(id) {
			t.Fatalf("id %d is number %d", id, n)
		}
		n++
	}
	if n != len(want) {
		t.Errorf("%d of %d", n, len(want))
	}
	for id := range s.others { // and stops when it is told
		if id > 0 {
			t.Fatal(id)
		}
		break
	}
}
