package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// Stage is where one source is played.
type Stage struct {
	// Publisher is a PUB. Play leaves it open.
	Publisher *zmtp.Socket
	// Replay is a ROUTER that answers for what was published, as an engine does; nil: nobody answers.
	Replay *zmtp.Socket
}

// PlayOptions say how a capture is played.
type PlayOptions struct {
	// Speed is how many times faster than it was captured; 0: as fast as the subscribers take it. Not negative.
	Speed float64
	// Steps is how many batches are kept for replays; 0: 10,000, as vLLM does. Beyond 256 MiB of them fewer are kept.
	Steps int
	// OldReplies makes replies without the topic, as vLLM did until June 2026 and SGLang does.
	OldReplies bool
	// Linger is how long replays are answered after the capture's end, if ctx does not end before.
	Linger time.Duration
	// Played, if not nil, is called when Linger begins: all was handed to the system.
	Played func()
	// Progress, if not nil, is called after every record.
	Progress func(Totals)
}

// flushPlayed is after how many messages of a source an unpaced Play waits for its subscribers; less than a publisher's send
// queue.
const flushPlayed = 500

// Play publishes a capture, each source on the stage of its number, and answers replays until it returns: Linger after the
// capture's end, when ctx ends, or when the capture is damaged (ErrCut, ErrCorrupt). What was published is then handed to the system.
// Events are not played: a restart of the engine shows in what it sent.
func Play(ctx context.Context, r *Reader, stages []Stage, o PlayOptions) (Totals, error) {
	if !(o.Speed >= 0) || math.IsInf(o.Speed, 1) {
		return Totals{}, fmt.Errorf("speed: got %v, want 0 or more", o.Speed)
	}
	if o.Steps == 0 {
		o.Steps = 10_000
	}
	answering, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	histories := make([]*history, len(stages))
	for i, s := range stages {
		histories[i] = &history{steps: o.Steps, old: o.OldReplies}
		if s.Replay != nil {
			tasks.Go(func() { histories[i].answer(answering, s.Replay) })
		}
	}
	var t Totals
	before := dropped(stages)
	err := play(ctx, r, stages, histories, o, func(rec Record) {
		t.At = rec.At
		if rec.Event == 0 {
			t.Messages++
			t.Bytes += size(rec.Frames)
		} else if rec.Event == Disconnected {
			t.Cuts++
		}
		t.Dropped = dropped(stages) - before
		if o.Progress != nil {
			o.Progress(t)
		}
	})
	for _, s := range stages {
		if flushErr := s.Publisher.Flush(ctx); err == nil {
			err = flushErr
		}
	}
	t.Dropped = dropped(stages) - before
	if err == nil && o.Linger > 0 {
		if o.Played != nil {
			o.Played()
		}
		timer := time.NewTimer(o.Linger)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done(): // told to end, after all was played
		}
	}
	return t, err
}

// play is Play without what surrounds it.
func play(ctx context.Context, r *Reader, stages []Stage, histories []*history, o PlayOptions, played func(Record)) error {
	start := time.Now()
	unflushed := make([]int, len(stages))
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if rec.Source >= len(stages) {
			return fmt.Errorf("source %d is named after the first message: %w", rec.Source, ErrCorrupt)
		}
		if err := wait(ctx, start, rec.At, o.Speed); err != nil {
			return err
		}
		if rec.Event == 0 {
			histories[rec.Source].add(rec.Frames)
			pub := stages[rec.Source].Publisher
			if err := pub.Send(ctx, rec.Frames); err != nil {
				return err
			}
			if unflushed[rec.Source]++; o.Speed == 0 && unflushed[rec.Source] >= flushPlayed {
				unflushed[rec.Source] = 0
				if err := pub.Flush(ctx); err != nil {
					return err
				}
			}
		}
		played(rec)
	}
}

// wait waits until it is time.
func wait(ctx context.Context, start time.Time, at time.Duration, speed float64) error {
	if err := ctx.Err(); err != nil || speed == 0 {
		return err
	}
	due := min(float64(at)/speed, math.MaxInt64/2) // a century, in case of a tiny speed
	left := time.Until(start.Add(time.Duration(due)))
	if left <= 0 {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func dropped(stages []Stage) uint64 {
	n := uint64(0)
	for _, s := range stages {
		n += s.Publisher.Stats().SendDropped
	}
	return n
}
