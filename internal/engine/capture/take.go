package capture

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// Live is a publisher that is listened to.
type Live struct {
	Source
	// Socket is a SUB. Take reads from it and leaves it open.
	Socket *zmtp.Socket
}

// Totals are what was captured or played so far.
type Totals struct {
	// Messages and Bytes count messages and the bytes of their frames.
	Messages uint64
	Bytes    uint64
	// Dropped counts messages that came and were not captured, or that a subscriber lost because it was too slow.
	Dropped uint64
	// Cuts counts connections to publishers that ended.
	Cuts uint64
	// At is the time of the last message or event since the start.
	At time.Duration
}

// flushEvery is how much of a capture can be lost when the process is killed.
const flushEvery = time.Second

// Take writes what comes until ctx ends (no error), it has most messages (0: no limit), or the file or a socket fails. The
// file is whole in every case. Progress, if not nil, is called after every record, one call at a time.
func Take(ctx context.Context, w *Writer, live []Live, most uint64, progress func(Totals)) (Totals, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := taker{w: w, start: time.Now(), most: most, progress: progress, done: cancel}
	for _, l := range live {
		if _, err := w.AddSource(l.Source); err != nil {
			return Totals{}, err
		}
	}
	if err := w.Flush(); err != nil {
		return Totals{}, err
	}
	var tasks sync.WaitGroup
	for i, l := range live {
		tasks.Go(func() { t.listen(ctx, i, l.Socket) })
	}
	tasks.Go(func() { t.flush(ctx) })
	tasks.Wait()
	return t.totals, errors.Join(t.err, w.Flush())
}

// taker is a Take at work.
type taker struct {
	start    time.Time
	most     uint64
	progress func(Totals)
	done     func()

	mu     sync.Mutex
	w      *Writer
	totals Totals
	err    error
}

// listen writes what comes from one source.
func (t *taker) listen(ctx context.Context, source int, s *zmtp.Socket) {
	for {
		d, err := s.Recv(ctx)
		if err != nil {
			if ctx.Err() == nil {
				t.end(err)
			}
			return
		}
		r := Record{Source: source, Frames: d.Message}
		if d.Event != nil {
			switch d.Event.Kind {
			case zmtp.Connected:
				r.Event = Connected
			case zmtp.Disconnected:
				r.Event = Disconnected
			case zmtp.Dropped:
				r.Event, r.Count = Dropped, d.Event.Dropped
			case zmtp.Failed:
				continue // nothing was there, and nothing is
			}
		}
		if !t.write(r) {
			return
		}
	}
}

// write writes one record; false: it is over.
func (t *taker) write(r Record) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil || t.most > 0 && t.totals.Messages >= t.most {
		return false
	}
	r.At = time.Since(t.start) // under the lock, so that times never fall
	if err := t.w.Write(r); err != nil {
		t.err = err
		t.done()
		return false
	}
	n := &t.totals
	n.At = r.At
	switch r.Event {
	case 0:
		n.Messages++
		n.Bytes += size(r.Frames)
	case Dropped:
		n.Dropped += r.Count
	case Disconnected:
		n.Cuts++
	case Connected:
	}
	if t.progress != nil {
		t.progress(*n)
	}
	if t.most > 0 && n.Messages >= t.most {
		t.done()
		return false
	}
	return true
}

// flush brings the file up to date now and then.
func (t *taker) flush(ctx context.Context) {
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
		err := t.w.Flush()
		t.mu.Unlock()
		if err != nil {
			t.end(err)
			return
		}
	}
}

func (t *taker) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
	t.done()
}

func size(frames [][]byte) uint64 {
	n := 0
	for _, f := range frames {
		n += len(f)
	}
	return uint64(n)
}
