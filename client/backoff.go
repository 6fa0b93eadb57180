package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff spaces retries out: it doubles from least to most, and each pause is drawn from the upper half of its step, so
// that a fleet that lost its oracle at one moment does not come back at one moment.
type backoff struct {
	least, most time.Duration
	step        time.Duration // the next one; 0: least
}

// next is the pause before the next try.
func (b *backoff) next() time.Duration {
	d := max(b.step, b.least)
	b.step = min(2*d, b.most)
	return jitter(min(d, b.most))
}

// after is the pause after something that began then and has failed now. If it held for the longest pause the steps
// begin anew; what breaks again and again soon after it worked is retried ever more slowly.
func (b *backoff) after(began time.Time) time.Duration {
	if time.Since(began) >= b.most {
		b.reset()
	}
	return b.next()
}

func (b *backoff) reset() { b.step = 0 }

// jitter draws from [d/2, d].
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d/2 + rand.N(d/2+1)
}

// isOver reports whether the context has ended.
func isOver(ctx context.Context) bool { return ctx.Err() != nil }

// pause waits for d or for the context's end, and reports whether the context still lives.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return !isOver(ctx)
	}
}
