package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvoracle/kvoracle/internal/engine/metrics"
)

const (
	// drainEvery is the time between two looks into the engine's buffer. An engine with nothing to say may take seconds to
	// say so.
	drainEvery   = 50 * time.Millisecond
	drainTimeout = 30 * time.Second
)

// drain takes an engine's events out of its buffer, again and again: TensorRT-LLM's /kv_cache_events, which gives each to
// one reader once. Events are numbered, so that those which the buffer had no room for are missed.
func (w *worker) drain(ctx context.Context) {
	isOpen := false
	pause := drainEvery
	for rest(ctx, pause) {
		body, err := w.drained(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && !isOpen:
			isOpen = true
			w.complainNoMore()
			w.handAll(ctx, item{kind: itemOpened})
		case err != nil && isOpen:
			isOpen = false
			w.handAll(ctx, item{kind: itemClosed, err: err})
		}
		if err != nil {
			w.complain("the engine's events cannot be had", err)
			pause = min(2*pause, retryMost/4)
			continue
		}
		pause = drainEvery
		if err := split(body, func(rank int, x item) {
			if rank < len(w.ranks) {
				w.ranks[rank].hand(ctx, x)
			} else {
				w.ranks[0].drop("other_rank", 1)
			}
		}); err != nil {
			// They have gone from the engine, so they are lost. The numbers of the next ones show it.
			w.ranks[0].drop("payload", 1)
			w.log.Warn("kvoracle bridge: the engine's events cannot be read", "error", err)
		}
	}
}

func (w *worker) handAll(ctx context.Context, x item) {
	for _, r := range w.ranks {
		r.hand(ctx, x)
	}
}

// drained is what has gathered.
func (w *worker) drained(ctx context.Context) ([]byte, error) {
	s, err := w.source()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	f := metrics.Fetcher{Client: s.Client, Bearer: s.Bearer}
	return f.Drain(ctx, w.cfg.Events, QueueBytes)
}

var errNoList = errors.New("bridge: /kv_cache_events: want a list of numbered events")

// split cuts what has gathered into events, lists of one, as they are decoded.
func split(body []byte, give func(rank int, x item)) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errNoList
	}
	// Another process begins with the same events under the same numbers, and an engine gives none of them twice: so no two
	// may look alike.
	salt := rand.Uint64()
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return fmt.Errorf("bridge: /kv_cache_events: %w", err)
		}
		var head struct {
			ID   *uint64 `json:"event_id"`
			Rank int     `json:"attention_dp_rank"`
		}
		if err := json.Unmarshal(raw, &head); err != nil || head.ID == nil || head.Rank < 0 {
			return errNoList
		}
		x := item{sequence: *head.ID, m: newMessage(append(append(append(make([]byte, 0, len(raw)+2), '['), raw...), ']'))}
		x.m.sum ^= salt
		give(head.Rank, x)
	}
	return nil
}
