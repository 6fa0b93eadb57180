package client

import (
	"log/slog"
	"time"
)

// RouterOption changes a Router.
type RouterOption interface{ applyRouter(c *routerConfig) }

// ReporterOption changes a Reporter.
type ReporterOption interface{ applyReporter(c *reporterConfig) }

// Option changes either.
type Option interface {
	RouterOption
	ReporterOption
}

type (
	routerFunc   func(*routerConfig)
	reporterFunc func(*reporterConfig)
)

func (f routerFunc) applyRouter(c *routerConfig)       { f(c) }
func (f reporterFunc) applyReporter(c *reporterConfig) { f(c) }

// both is an option that means the same in each half.
type both struct {
	routerFunc
	reporterFunc
}

// routerConfig has the defaults of the options below.
type routerConfig struct {
	common
	timeout       time.Duration
	gateway       string
	breakerLimit  int
	breakerPause  backoff
	progressLimit int
	lease         time.Duration
	fleetInterval time.Duration
	streams       int
}

// reporterConfig likewise.
type reporterConfig struct {
	common
	secret         string
	outboxBytes    int
	digestBatches  int
	digestInterval time.Duration
	gather         time.Duration
}

type common struct {
	log       *slog.Logger
	reconnect backoff
}

func defaultCommon() common {
	return common{
		log:       slog.New(slog.DiscardHandler),
		reconnect: backoff{least: 100 * time.Millisecond, most: 5 * time.Second},
	}
}

// WithLogger says where transitions go: connected, lost, refused. Default: nowhere, because a library that prints
// unasked is a nuisance. Prompts are never logged.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return both{
		func(c *routerConfig) { c.log = l },
		func(c *reporterConfig) { c.log = l },
	}
}

// WithReconnect sets the shortest and the longest pause between tries to open a stream. Default: 100 ms to 5 s, doubling,
// each drawn at random from the upper half of its step: quick enough that a restarted oracle has its fleet back in
// seconds, slow enough that a thousand reporters do not hold it down.
func WithReconnect(least, most time.Duration) Option {
	b := backoff{least: max(least, time.Millisecond), most: max(least, most, time.Millisecond)}
	return both{
		func(c *routerConfig) { c.reconnect = b },
		func(c *reporterConfig) { c.reconnect = b },
	}
}

// WithTimeout bounds the wait for the oracle in one Route; the context's own deadline holds too. Default: 20 ms, many
// times what an answer takes and little against any time to first token. Zero or less restores the default.
func WithTimeout(d time.Duration) RouterOption {
	return routerFunc(func(c *routerConfig) {
		if d <= 0 {
			d = defaultTimeout
		}
		c.timeout = d
	})
}

const defaultTimeout = 20 * time.Millisecond

// WithGatewayID names this gateway to the oracle; at most 256 bytes. A name that stays the same over restarts lets the
// oracle release at once what the former life had in flight. Two gateways alive at one time must not share it. Default:
// host name and a random suffix, which is never shared; then leases do the releasing.
func WithGatewayID(id string) RouterOption {
	return routerFunc(func(c *routerConfig) { c.gateway = id })
}

// WithBreaker makes Route stop asking after so many failures in a row: it goes straight to the fallback, and after a
// pause one request asks again. The pause doubles from least to most while that fails. Default: 5 failures, 100 ms to
// 5 s, so that an oracle that hangs costs a gateway five timeouts and then one now and then, not one in every request. 0
// failures: never.
func WithBreaker(failures int, least, most time.Duration) RouterOption {
	return routerFunc(func(c *routerConfig) {
		c.breakerLimit = failures
		c.breakerPause = backoff{least: max(least, time.Millisecond), most: max(least, most, time.Millisecond)}
	})
}

// WithProgressQueue bounds the progress events that wait for the oracle or for its acknowledgement, about 200 bytes
// each. Default: 8,192, some seconds of a busy gateway; what is lost beyond that, leases make good. Below 1 means 1.
func WithProgressQueue(events int) RouterOption {
	return routerFunc(func(c *routerConfig) { c.progressLimit = max(events, 1) })
}

// WithBookingLease is how long this router believes a request to be in flight without an event about it. It only steers
// the fallback's choice. Default: 1 minute, the oracle's own lease.
func WithBookingLease(d time.Duration) RouterOption {
	return routerFunc(func(c *routerConfig) {
		if d > 0 {
			c.lease = d
		}
	})
}

// WithFleetInterval is the least time between two looks at the fleet. Default: 1 s; the list only has to be right when
// the oracle is not there to ask. At least 100 ms.
func WithFleetInterval(d time.Duration) RouterOption {
	return routerFunc(func(c *routerConfig) { c.fleetInterval = max(d, 100*time.Millisecond) })
}

// WithStreams sends Route's questions over n shared streams while Run is running, and by single calls whenever no stream
// is up. A question costs the oracle a third of what a call does then. The price: all questions of a stream go to one
// replica, so nothing in between can balance them; and a question under way on a stream that breaks is asked again by a
// call, so give requests an ID, or its first booking lives until its lease ends. Default: 0, single calls.
func WithStreams(n int) RouterOption {
	return routerFunc(func(c *routerConfig) { c.streams = max(n, 0) })
}

// WithSecret is the deployment's secret, which the oracle mixes into block ids. It must equal the oracle's, or nothing
// that StoreTokens reports will ever match. Default: none.
func WithSecret(secret string) ReporterOption {
	return reporterFunc(func(c *reporterConfig) { c.secret = secret })
}

// WithOutbox bounds what is kept for an oracle that is away or slow, in bytes. When it is full it is given up for one
// snapshot later, so a larger one only saves snapshots. Default: 16 MiB, about two million block ids.
func WithOutbox(bytes int) ReporterOption {
	return reporterFunc(func(c *reporterConfig) { c.outboxBytes = max(bytes, 1) })
}

// WithGather is the least time between two batches, drawn anew each time from d to half as much again: a change after a
// quiet spell goes at once, those that follow soon go together. A batch costs both sides much the same however much is in
// it, so with many workers on one oracle it is what their reports cost. The price is that the oracle knows of a block that
// much later, which its own count of prompts under way makes good. Flush does not wait for it, and neither does an outbox
// that is half full. Default: 0, each change goes as soon as the stream takes it; a fleet of hundreds wants some 200 ms.
func WithGather(d time.Duration) ReporterOption {
	return reporterFunc(func(c *reporterConfig) { c.gather = max(d, 0) })
}

// WithDigests says how often what was told is compared with what was understood: after so many batches or so much time,
// whichever comes first. Default: 256 batches or 10 s; a digest is 40 bytes for each tier, so there is no reason to save them.
// Zero or less switches that trigger off.
func WithDigests(batches int, interval time.Duration) ReporterOption {
	return reporterFunc(func(c *reporterConfig) { c.digestBatches, c.digestInterval = batches, interval })
}
