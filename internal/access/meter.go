package access

import (
	"sync"
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

// Meters keeps a Meter for each identity that is about.
type Meters struct {
	limits Limits

	mu    sync.Mutex
	by    map[string]*Meter
	swept time.Time // when idle ones were last looked for
	crowd *Meter    // of those that have no room
}

// sweepEvery is how often idle meters are looked for at most: going through all of them must not be had for a name.
const sweepEvery = time.Second

// NewMeters makes an empty set.
func NewMeters(limits Limits) *Meters {
	limits.Identities = max(limits.Identities, 1)
	return &Meters{limits: limits, by: make(map[string]*Meter), crowd: &Meter{limits: limits, tokens: float64(limits.Rate)}}
}

// HasRate says whether calls are counted at all.
func (s *Meters) HasRate() bool { return s.limits.Rate > 0 }

// Of is the meter of an identity. When there is no room, those of identities that ask for nothing make some.
func (s *Meters) Of(name string, now time.Time) *Meter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.by[name]; m != nil {
		return m
	}
	if len(s.by) >= s.limits.Identities {
		s.sweep(now)
	}
	if len(s.by) >= s.limits.Identities {
		return s.crowd
	}
	m := &Meter{limits: s.limits, tokens: float64(s.limits.Rate), at: now}
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
	limits Limits

	mu      sync.Mutex
	tokens  float64 // calls it may make at once
	at      time.Time
	streams int
}

// Take asks for one call.
func (m *Meter) Take(now time.Time) bool {
	if m.limits.Rate <= 0 {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fill(now)
	if m.tokens < 1 {
		return false
	}
	m.tokens--
	return true
}

// fill adds what time has earned. mu is held. A clock that goes back earns nothing.
func (m *Meter) fill(now time.Time) {
	if passed := now.Sub(m.at); passed > 0 {
		m.tokens = min(m.tokens+passed.Seconds()*float64(m.limits.Rate), float64(m.limits.Rate))
		m.at = now
	}
}

// Open asks for one long stream; each that was granted must be closed once.
func (m *Meter) Open() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limits.Streams > 0 && m.streams >= m.limits.Streams {
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
	m.fill(now)
	return m.streams == 0 && m.tokens >= float64(m.limits.Rate)
}
