package oracle

import (
	"sync"
	"time"
)

// maxGateways bounds the gateways that are known at one time.
const maxGateways = 65_536

// gateways knows who reports progress, so that the bookings of a gateway that is gone can be released before their
// leases end.
type gateways struct {
	mu    sync.Mutex
	known map[string]*gateway
}

type gateway struct {
	incarnation uint64
	streams     int       // open ones of this incarnation
	lostAt      time.Time // end of the last one
}

// GatewaySession is one open progress stream.
type GatewaySession struct {
	o    *Oracle
	name string
	g    *gateway
}

// OpenGateway begins a gateway's progress stream. A higher incarnation releases what its former life had dispatched and
// not finished; a lower one is refused.
func (o *Oracle) OpenGateway(name string, incarnation uint64) (*GatewaySession, error) {
	o.gateways.mu.Lock()
	defer o.gateways.mu.Unlock()
	g := o.gateways.known[name]
	switch {
	case g == nil && len(o.gateways.known) >= maxGateways:
		return nil, Fault(Exhausted, ReasonGatewaysFull, "hello.gateway_id", "", "too many gateways are known already")
	case g != nil && incarnation < g.incarnation:
		return nil, Fault(FailedPrecondition, ReasonOldIncarnation, "hello.incarnation", utoa(incarnation),
			"want at least "+utoa(g.incarnation)+", the known one")
	case g != nil && incarnation > g.incarnation:
		o.releaseGateway(name)
		g = nil
	}
	if g == nil {
		g = &gateway{incarnation: incarnation}
		o.gateways.known[name] = g
	}
	g.streams++
	return &GatewaySession{o, name, g}, nil
}

// Close ends the stream: if it was the gateway's last, its grace begins.
func (s *GatewaySession) Close(now time.Time) {
	s.o.gateways.mu.Lock()
	defer s.o.gateways.mu.Unlock()
	s.g.streams--
	s.g.lostAt = now
}

// watchGateways releases what gateways had in flight whose streams have been gone for the grace.
func (o *Oracle) watchGateways(now time.Time) {
	o.gateways.mu.Lock()
	defer o.gateways.mu.Unlock()
	for name, g := range o.gateways.known {
		if g.streams == 0 && now.Sub(g.lostAt) > o.cfg.GatewayGrace {
			delete(o.gateways.known, name)
			o.releaseGateway(name)
		}
	}
}

func (o *Oracle) releaseGateway(name string) {
	if n := o.load.ReleaseGateway(name); n > 0 {
		o.obs.Released(n, "gateway")
	}
}
