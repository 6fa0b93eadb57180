package server

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/kvoracle/kvoracle/internal/access"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// guard decides who may come in. Most of it happens in gRPC's tap, when a call's headers are there: nobody who may not
// call makes the server read a message. The interceptors see to it that what the tap could not refuse is refused, and that
// nothing gets by it.
//
// All methods may be called concurrently. The table is replaced whole; what is concluded from one is kept with it, so that
// a new table holds from the next call on, on connections that exist too, and long streams of those who lost what they had
// are ended.
//
// Locks: mu is a leaf.
type guard struct {
	table  atomic.Pointer[access.Table] // nil: nobody has to say who they are
	meters *access.Meters
	rules  map[string]rule // by full method name; complete before anything is served
	wait   atomic.Int64    // for first messages, a time.Duration
	no     refusals
	// told is called for every refusal that no interceptor sees.
	told func(ctx context.Context, method string, err error)

	mu   sync.Mutex
	open map[*visit]struct{} // long streams of identities
}

// mostMeters is how many identities are metered apart, at about 200 bytes each.
const mostMeters = 1 << 16

func newGuard(c *Config, told func(context.Context, string, error)) *guard {
	g := &guard{
		meters: access.NewMeters(access.Limits{Rate: c.MaxRate, Streams: c.MaxStreams, Identities: mostMeters}),
		no:     newRefusals(),
		told:   told,
		open:   make(map[*visit]struct{}),
	}
	g.wait.Store(int64(c.FirstMessageTimeout))
	return g
}

// refusals are those that are the same for everybody.
type refusals struct{ rate, many, late, none, form, unknown, certificate error }

func newRefusals() refusals {
	refuse := func(kind oracle.Kind, reason oracle.Reason, field, message string) error {
		return toStatus(oracle.Fault(kind, reason, field, "", message))
	}
	const field = "authorization"
	return refusals{
		rate: refuse(oracle.Exhausted, oracle.ReasonRateExceeded, "", "these are more calls a second than one identity may make"),
		many: refuse(oracle.Exhausted, oracle.ReasonStreamsExceeded, "", "these are more long streams than one identity may have open"),
		late: refuse(oracle.Expired, oracle.ReasonFirstMessageLate, "", "the first message did not come"),
		none: refuse(oracle.Unauthenticated, oracle.ReasonCredentialsMissing, field, "want a bearer token, or a client certificate"),
		form: refuse(oracle.Unauthenticated, oracle.ReasonCredentialsUnknown, field, "want it once, as \"Bearer\" and a token"),
		unknown: refuse(oracle.Unauthenticated, oracle.ReasonCredentialsUnknown, field,
			"want credentials that the access file has; these it has not, or not any more"),
		certificate: refuse(oracle.Unauthenticated, oracle.ReasonCredentialsUnknown, "",
			"want a client certificate with a name that the access file has"),
	}
}

// learn takes the rules of everything that s serves.
func (g *guard) learn(s *grpc.Server) {
	g.rules = rulesOf(func(yield func(string, bool) bool) {
		for service, info := range s.GetServiceInfo() {
			for _, m := range info.Methods {
				if !yield("/"+service+"/"+m.Name, m.IsClientStream || m.IsServerStream) {
					return
				}
			}
		}
	})
}

// visit is one call, from the tap on. It is a value in the call's context; a call that has none asked for nothing special.
type visit struct {
	caller *caller // nil: nobody has to say who they are
	// refusal is why it may not go on, where the tap could not say so.
	refusal error
	// late ends the call while its first message is not there; end ends it at any time. Both may be nil.
	late *time.Timer
	end  context.CancelFunc
	isOn atomic.Bool // the first message is there, or none is waited for
	// isRevoked says that it was ended because its caller may not do this any more.
	isRevoked atomic.Bool
}

type visitKey struct{}

func visitOf(ctx context.Context) *visit {
	v, _ := ctx.Value(visitKey{}).(*visit)
	return v
}

// isHere says that the first message has come, or that none is waited for any more. The call's context is left alone: gRPC
// ends it with the call, and with it what hangs on it.
func (v *visit) isHere() {
	if v != nil && v.late != nil {
		v.isOn.Store(true)
		v.late.Stop()
	}
}

// arrive looks at a call's headers, in the goroutine that reads its connection. isPatient says that the tap must not refuse
// the call: gRPC would keep a timer for it until the deadline that the caller chose, which may be in a hundred years.
func (g *guard) arrive(ctx context.Context, info *tap.Info) (next context.Context, isPatient bool, err error) {
	r, known := g.rules[info.FullMethodName]
	if !known {
		return ctx, false, nil // gRPC answers UNIMPLEMENTED, and nothing passes the interceptors without a rule
	}
	now := time.Now()
	deadline, isBounded := ctx.Deadline()
	isPatient = isBounded && deadline.Sub(now) > time.Duration(g.wait.Load())
	l := linkOf(ctx)
	v := &visit{}
	v.caller, v.refusal = g.who(l, info.Header["authorization"], r.roles, now)
	if v.refusal == nil && !g.mayAsk(l, v.caller, now) {
		v.refusal = g.no.rate
	}
	if v.refusal != nil && !isPatient {
		g.told(ctx, info.FullMethodName, v.refusal)
		return nil, false, v.refusal
	}
	isKnown := v.refusal == nil && (v.caller != nil || g.table.Load() == nil)
	if isKnown && l != nil && l.guest != nil {
		l.guest.settle()
	}
	isSlow := !r.isIdle && (!isBounded || isPatient)
	switch {
	case isSlow || v.refusal != nil || r.isStream && v.caller != nil:
		ctx = g.bound(ctx, info.FullMethodName, v, r.isIdle)
	case v.caller == nil:
		return ctx, isPatient, nil
	}
	return context.WithValue(ctx, visitKey{}, v), isPatient, nil
}

// arriveLocally is arrive for a call of another protocol, whose door waits for its message by itself.
func (g *guard) arriveLocally(ctx context.Context, method string) (context.Context, error) {
	now := time.Now()
	l := &link{}
	if p, ok := peer.FromContext(ctx); ok {
		if g.meters.HasRate() {
			l.host = hostOf(p.Addr)
		}
		l.leaf = leafOf(p.AuthInfo)
	}
	v := &visit{}
	v.caller, v.refusal = g.who(l, metadata.ValueFromIncomingContext(ctx, "authorization"), g.rules[method].roles, now)
	if v.refusal == nil && !g.mayAsk(l, v.caller, now) {
		v.refusal = g.no.rate
	}
	if v.refusal != nil {
		g.told(ctx, method, v.refusal)
		return ctx, v.refusal
	}
	return context.WithValue(ctx, visitKey{}, v), nil
}

// bound makes it possible to end the call, and ends it unless its first message comes in time or it may be idle.
func (g *guard) bound(ctx context.Context, method string, v *visit, isIdle bool) context.Context {
	inner, cancel := context.WithCancel(ctx)
	v.end = cancel
	wait := time.Duration(g.wait.Load())
	due := time.Now().Add(wait)
	v.late = time.AfterFunc(wait, func() { g.giveUp(inner, method, v, due, wait, moreWaits) })
	if isIdle && v.refusal == nil {
		v.late.Stop()
	}
	return inner
}

// A timer that runs late shows that the server itself had no time, be it for want of a processor or since the process was
// stopped: a message may be there that nobody could read. It is waited for anew, so many times.
const (
	lateShare = 8 // of the wait: how late is late
	moreWaits = 3
)

// giveUp ends a call whose first message did not come until due.
func (g *guard) giveUp(ctx context.Context, method string, v *visit, due time.Time, wait time.Duration, more int) {
	now := time.Now()
	switch {
	case v.isOn.Load():
		return
	case more > 0 && now.Sub(due) > wait/lateShare:
		time.AfterFunc(wait, func() { g.giveUp(ctx, method, v, now.Add(wait), wait, more-1) })
		return
	case ctx.Err() == nil && v.refusal != nil:
		g.told(ctx, method, v.refusal)
	case ctx.Err() == nil:
		g.told(ctx, method, g.no.late)
	}
	v.end()
}

// mayAsk takes one call from the caller's rate, or from its host's where nobody has to say who they are.
func (g *guard) mayAsk(l *link, c *caller, now time.Time) bool {
	if !g.meters.HasRate() {
		return true
	}
	m := g.meterOf(l, c, now)
	return m == nil || m.Take(now)
}

// meterOf is what a caller is metered by; nil: by nothing.
func (g *guard) meterOf(l *link, c *caller, now time.Time) *access.Meter {
	switch {
	case c != nil:
		return c.meter
	case l != nil:
		return g.meters.Of(l.host, now)
	default:
		return nil
	}
}

// replace puts another table in force and ends the long streams of those who are not in it as they were.
func (g *guard) replace(t *access.Table) {
	g.table.Store(t)
	g.mu.Lock()
	defer g.mu.Unlock()
	for v := range g.open {
		if id := v.caller.find(t); id == nil || !id.Equal(v.caller.id) {
			v.isRevoked.Store(true)
			v.end()
		}
	}
}

// hostOf is the host of an address, under a name that no identity has by accident.
func hostOf(a net.Addr) string {
	if host, _, err := net.SplitHostPort(a.String()); err == nil {
		return "host " + host
	}
	return fmt.Sprintf("host %s %s", a.Network(), strconv.Quote(a.String()))
}
