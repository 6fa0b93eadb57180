package server

import (
	"testing"
	"testing/synctest"

	"github.com/kvoracle/kvoracle/internal/replica"
)

// TestLateAcksEndWithTheirStream: a stream that ends while nothing is due, as one does whose reporter was cut, waits for
// nothing. Else its worker would be taken for one that reports for ever.
func TestLateAcksEndWithTheirStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		b := &blockStream{r: &routeService{s: r.s}, relay: &replica.Stream{}}
		late := b.answerLate(t.Context())
		synctest.Wait()
		late.stop() // a bubble in which all wait for each other fails
		late.stop()
		if late.err != nil {
			t.Error(late.err)
		}
		if err := r.s.Close(); err != nil {
			t.Error(err)
		}
	})
}
