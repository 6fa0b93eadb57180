package kvevents

import (
	"errors"
	"testing"
	"unsafe"
)

// footprint is the memory that a batch holds on to.
func (b *Batch) footprint() int {
	n := cap(b.Events)*int(unsafe.Sizeof(Event{})) + 8*cap(b.hashes) + 4*cap(b.tokens) + cap(b.extras)*int(unsafe.Sizeof(Extra{}))
	for i := range b.Events {
		n += 8 * cap(b.Events[i].Capacities)
	}
	return n
}

// check holds a decoded batch to what the package promises.
func check(t *testing.T, b *Batch, payload []byte) {
	t.Helper()
	if n := b.footprint(); n > 64*len(payload)+4096 {
		t.Errorf("%d bytes of memory for a payload of %d", n, len(payload))
	}
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind == Unsaid || e.Kind >= numKinds {
			t.Errorf("event %d of kind %d", i, e.Kind)
		}
		for _, x := range e.Extras {
			if x.Kind == extraText || x.Block < 0 {
				t.Errorf("event %d: %+v", i, x)
			}
		}
	}
}

// equal reports whether two batches say the same.
func equal(t *testing.T, a, b *Batch) bool {
	t.Helper()
	if a.At != b.At || a.Rank != b.Rank || a.Counts != b.Counts || a.Signs != b.Signs || len(a.Events) != len(b.Events) {
		return false
	}
	for i := range a.Events {
		x, y := saidBy(&a.Events[i]), saidBy(&b.Events[i])
		if !same(x, y) {
			return false
		}
	}
	return true
}

func FuzzDecode(f *testing.F) {
	for _, g := range goldens(f) {
		if parts := g.parts(f); g.Channel != "http-json /kv_cache_events" {
			f.Add(parts[len(parts)-1])
		}
	}
	limits := DefaultLimits()
	var used Batch
	f.Fuzz(func(t *testing.T, payload []byte) {
		var b Batch
		err := b.Decode(payload, &limits)
		check(t, &b, payload)
		if err != nil && len(b.Events) != 0 {
			t.Errorf("%v, and %d events", err, len(b.Events))
		}
		// What was decoded before must not show.
		if again := used.Decode(payload, &limits); !errors.Is(again, err) || !equal(t, &b, &used) {
			t.Errorf("in used memory: %v, %+v; in new: %v, %+v", again, used, err, b)
		}
		// Every proper prefix of a good payload is a bad one.
		if err == nil && len(payload) < 400 {
			for n := range payload {
				if used.Decode(payload[:n], &limits) == nil {
					t.Fatalf("%d of %d bytes are a batch, too", n, len(payload))
				}
			}
		}
		var d Detector
		d.Observe(0, &b)
	})
}

func FuzzDecodeJSON(f *testing.F) {
	for _, g := range goldens(f) {
		if g.Channel == "http-json /kv_cache_events" {
			f.Add(g.parts(f)[0])
		}
	}
	limits := DefaultLimits()
	var used Batch
	f.Fuzz(func(t *testing.T, body []byte) {
		var b Batch
		err := b.DecodeJSON(body, &limits)
		check(t, &b, body)
		if again := used.DecodeJSON(body, &limits); !errors.Is(again, err) || !equal(t, &b, &used) {
			t.Errorf("in used memory: %v, %+v; in new: %v, %+v", again, used, err, b)
		}
	})
}

func FuzzFrames(f *testing.F) {
	for _, g := range goldens(f) {
		if parts := g.parts(f); len(parts) == 3 {
			f.Add(parts[0], parts[1], parts[2], 3)
		} else if len(parts) == 4 {
			f.Add(parts[1], parts[2], parts[3], 4)
		}
	}
	f.Fuzz(func(t *testing.T, a, b, c []byte, n int) {
		parts := [][]byte{{}, a, b, c}
		if n >= 0 && n < 4 {
			parts = parts[:n]
		}
		if _, isEnd, err := ParseReplay(parts); isEnd && err != nil {
			t.Error("a broken end")
		}
		if _, err := ParseLive([][]byte{a, b, c}); (err == nil) != (len(b) == 8) {
			t.Errorf("a sequence of %d bytes: %v", len(b), err)
		}
		if s, err := DecodeLoadStat(c); err == nil && (s.Running < 0 || s.Waiting < 0 || s.Tokens < 0 || s.TotalTokens < 0 || s.Rank < -1) {
			t.Errorf("%+v", s)
		}
	})
}
