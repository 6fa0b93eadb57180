package server

import (
	"context"
	"errors"
	"testing"
)

// TestReceiveAlwaysEnds: a peer that is cut off before, or while, its message is handed over must not leave the handler
// waiting.
func TestReceiveAlwaysEnds(t *testing.T) {
	for range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		in := receive(ctx, func() (int, error) {
			if n++; n <= 2 {
				return n, nil
			}
			<-ctx.Done()
			return 0, errors.New("cut off")
		})
		if m := <-in; m.isEnd() || m.value != 1 {
			t.Fatalf("first message: %+v", m)
		}
		cancel()
		for m := range in {
			if m.isEnd() {
				break
			}
		}
		if m := <-in; !m.isEnd() {
			t.Fatalf("a message after the end: %+v", m)
		}
	}
}
