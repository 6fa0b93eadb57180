package access

import (
	"sync"
	"sync/atomic"
	"time"
)

// Limits are what one identity may ask for.
type Limits struct {
	// Rate is calls a second, with a burst of one second's. 0: any.
	Rate int
	// Streams is how many long streams may be open at a time. 0: any.
	Streams int
	// Identities is how many identities are metered apart. Those beyond it share one meter. At least 1.
	Identities int
}

// bounds are Limits that may change while they are looked at.
type bounds struct{ rate, streams atomic.Int64 }

// Meters keeps a Meter for each identity that is about.
type Meters struct {
	bounds *bounds
	most   int // identities

	mu    sync.Mutex
	by    map[string]*Meter
	swept time.Time // when idle ones were last looked for
	crowd *Meter    // of those that have no room
}

// sweepEvery is how often idle meters are looked for at most: going through all of them must not be had for a name.
const sweepEvery = time.Second

// NewMeters makes an empty set.
func NewMeters(limits Limits) *Meters {
	b := &bounds{}
	s := &Meters{bounds: b, most: max(limits.Identities, 1), by: make(map[string]*Meter), crowd: &Meter{bounds: b, tokens: float64(limits.Rate)}}
	s.Limit(limits.Rate, limits.Streams)
	return s
}

// Limit replaces Limits.Rate and Limits.Streams, for everybody and at once. Streams that are open stay, however many.
func (s *Meters) Limit(rate, streams int) {
	s.bounds.rate.Store(int64(rate))
	s.bounds.streams.Store(int64(streams))
}

// HasRate says whether calls are counted at all.
func (s *Meters) HasRate() bool { return s.bounds.rate.Load() > 0 }

// Of is the meter of an identity. When there is no room, those of identities that ask for nothing make some.
func (s *Meters) Of(name string, now time.Time) *Meter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.by[name]; m != nil {
		return m
	}
	if len(s.by) >= s.most {
		s.sweep(now)
	}
	if len(s.by) >= s.most {
		return s.crowd
	}
	m := &Meter{bounds: s.bounds, tokens: float64(s.bounds.rate.Load()), at: now}
	s.by[name] = m
	return m
}

// sweep forgets idle meters. mu is held.
func (s *Meters) sweep(now time.Time) {
	if now.Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = now
	for name, m := range s.by {
		if m.isIdle(now) {
			delete(s.by, name)
		}
	}
}

// Len is how many identities are metered apart.
func (s *Meters) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.by)
}

// Meter counts what one identity asks for.
type Meter struct {
	bounds *bounds

	mu      sync.Mutex
	tokens  float64 // calls it may make at once
	at      time.Time
	streams int
}

// Take asks for one call.
func (m *Meter) Take(now time.Time) bool {
	rate := float64(m.bounds.rate.Load())
	if rate <= 0 {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fill(rate, now)
	if m.tokens < 1 {
		return false
	}
	m.tokens--
	return true
}

// fill adds what time has earned. mu is held. A clock that goes back earns nothing.
func (m *Meter) fill(rate float64, now time.Time) {
	if passed := now.Sub(m.at); passed > 0 {
		m.tokens += passed.Seconds() * rate
		m.at = now
	}
	m.tokens = min(m.tokens, rate)
}

// Open asks for one long stream; each that was granted must be closed once.
func (m *Meter) Open() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if most := int(m.bounds.streams.Load()); most > 0 && m.streams >= most {
		return false
	}
	m.streams++
	return true
}

// Close gives a long stream back.
func (m *Meter) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams--
}

// isIdle says that nothing would be forgotten with it.
func (m *Meter) isIdle(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	rate := float64(m.bounds.rate.Load())
	m.fill(rate, now)
	return m.streams == 0 && m.tokens >= rate
}
