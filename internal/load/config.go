package load

import "time"

// Config bounds and tunes a Tracker. Every zero or negative field means its default.
type Config struct {
	// Lease is how long a booking lives without news of it; default 60 s. Shorter forgets live requests of gateways that
	// report seldom; longer keeps the load of gateways that died.
	Lease time.Duration
	// MaxReportAge is how long a sample is believed; default 10 s. It should be several reporting intervals.
	MaxReportAge time.Duration
	// MaxBookings is the number of living bookings; default 1 Mi, at most 2 Mi.
	MaxBookings int
	// MaxExpectedOutput caps Booking.ExpectedOutput; default 65,536 tokens. A caller that asks for the moon must not make
	// its target look full.
	MaxExpectedOutput int
	// PrefillSecondsPerToken turns the prefill tokens of external work into seconds when Sample.SecondsPerToken does not
	// say; default 22 us.
	PrefillSecondsPerToken float64
}

// Limits and priors. maxSeconds and maxTokens keep the integer sums over all bookings below 2^63.
const (
	bookingLimit = 2 << 20
	maxSeconds   = 3600    // of one booking's prefill
	maxTokens    = 1 << 30 // of one booking or one gauge

	priorOutput   = 200  // tokens, mean output before anything finished
	priorUncached = 512  // tokens, mean uncached prompt before anything was booked
	meanWeight    = 0.01 // of the newest value in a running mean
)

func (c Config) withDefaults() Config {
	if c.Lease <= 0 {
		c.Lease = time.Minute
	}
	if c.MaxReportAge <= 0 {
		c.MaxReportAge = 10 * time.Second
	}
	if c.MaxBookings <= 0 {
		c.MaxBookings = 1 << 20
	}
	c.MaxBookings = min(c.MaxBookings, bookingLimit)
	if c.MaxExpectedOutput <= 0 {
		c.MaxExpectedOutput = 65_536
	}
	c.MaxExpectedOutput = min(c.MaxExpectedOutput, maxTokens)
	if !(c.PrefillSecondsPerToken > 0) {
		c.PrefillSecondsPerToken = 22e-6
	}
	c.PrefillSecondsPerToken = min(c.PrefillSecondsPerToken, 1)
	return c
}

// within reads v as a number in [0, hi].
func within(v, hi int) int64 { return int64(min(max(v, 0), hi)) }
