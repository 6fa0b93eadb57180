package server

import (
	"container/list"
	"net"
	"sync"
)

// guests is the listener of the gRPC port. It bounds how many connections are open, and how many of them have made no call
// yet: those cost an attacker nothing. A new connection is always let in, in place of the oldest of the host that has most
// such, so that whoever opens many shuts out mostly itself, and a client that calls at once is in before its turn comes.
//
// Locks: mu is a leaf; a connection is closed after it was let go.
type guests struct {
	net.Listener

	closed func(why string)

	mu            sync.Mutex
	most, mostNew int
	count         int
	news          int
	hosts         map[string]*list.List // of *guest: those that have made no call, the oldest first
}

func newGuests(lis net.Listener, c *Config, closed func(why string)) *guests {
	return &guests{Listener: lis, most: c.MaxConnections, mostNew: c.MaxNewConnections, closed: closed, hosts: make(map[string]*list.List)}
}

// limit replaces both limits. Connections that are open stay, however many.
func (g *guests) limit(most, mostNew int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most, g.mostNew = most, mostNew
}

// guest is one connection.
type guest struct {
	net.Conn

	of   *guests
	host string
	at   *list.Element // nil once it has made a call, or is closed
	gone bool
}

// Accept implements net.Listener.
func (g *guests) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := g.admit(conn); c != nil {
			return c, nil
		}
		g.closed("full")
		_ = conn.Close() // it is not served: how it ends is of no interest
	}
}

// admit counts a connection in; nil: there are too many.
func (g *guests) admit(conn net.Conn) *guest {
	c := &guest{Conn: conn, of: g, host: hostOf(conn.RemoteAddr())}
	victim, ok := g.enter(c)
	if !ok {
		return nil
	}
	if victim != nil {
		g.closed("idle")
		_ = victim.Close() // the same
	}
	return c
}

func (g *guests) enter(c *guest) (victim *guest, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.news >= g.mostNew || g.count >= g.most {
		victim = g.oldest()
	}
	if g.count >= g.most && victim == nil {
		return nil, false
	}
	if victim != nil {
		g.drop(victim)
	}
	l := g.hosts[c.host]
	if l == nil {
		l = list.New()
		g.hosts[c.host] = l
	}
	c.at = l.PushBack(c)
	g.count++
	g.news++
	return victim, true
}

// oldest is the oldest connection without a call of the host that has most of them; nil: there is none. mu is held. There
// are at most mostNew hosts to look at.
func (g *guests) oldest() *guest {
	var most *list.List
	for _, l := range g.hosts {
		if most == nil || l.Len() > most.Len() {
			most = l
		}
	}
	if most == nil {
		return nil
	}
	c, _ := most.Front().Value.(*guest)
	return c
}

// drop counts a connection out. mu is held.
func (g *guests) drop(c *guest) {
	if c.gone {
		return
	}
	c.gone = true
	g.count--
	g.unlist(c)
}

// unlist takes it out of those that have made no call. mu is held.
func (g *guests) unlist(c *guest) {
	if c.at == nil {
		return
	}
	l := g.hosts[c.host]
	l.Remove(c.at)
	if l.Len() == 0 {
		delete(g.hosts, c.host)
	}
	c.at = nil
	g.news--
}

// settle says that it has made a call.
func (c *guest) settle() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.unlist(c)
}

// Close implements net.Conn.
func (c *guest) Close() error {
	c.of.mu.Lock()
	c.of.drop(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
