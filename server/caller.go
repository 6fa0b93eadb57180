package server

import (
	"context"
	"crypto/x509"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/kvoracle/kvoracle/internal/access"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// link is one connection: what it proved when it began, and what has been concluded from that. It is gRPC's AuthInfo of
// the connection.
type link struct {
	credentials.AuthInfo // gRPC's own

	leaf  *x509.Certificate // the client's, verified; nil: none
	host  string
	guest *guest // nil where the listener is not ours
	// The newest conclusions, by certificate and by token. Several calls may draw one at a time; any of them is right.
	byCert, byToken atomic.Pointer[caller]
}

// linkOf is the connection of a call; nil when its credentials are not ours.
func linkOf(ctx context.Context) *link {
	if p, ok := peer.FromContext(ctx); ok {
		if l, ok := p.AuthInfo.(*link); ok {
			return l
		}
	}
	return nil
}

// caller is who calls. It never changes.
type caller struct {
	table *access.Table    // under which it was found
	id    *access.Identity // nil: the table does not have it
	meter *access.Meter    // nil with it
	// What it showed: a certificate, or else a token.
	leaf   *x509.Certificate
	digest access.Digest
}

// find is who it would be under another table.
func (c *caller) find(t *access.Table) *access.Identity {
	if c.leaf != nil {
		return t.Certificate(c.leaf)
	}
	return t.ByDigest(c.digest)
}

// who finds out who calls, and whether that identity has one of the roles. The caller is nil when nobody has to say who
// they are. header is what the call has for "authorization"; a token counts more than the connection's certificate.
func (g *guard) who(l *link, header []string, roles access.Role, now time.Time) (*caller, error) {
	table := g.table.Load()
	if table == nil || roles == access.Nobody {
		return nil, nil //nolint:nilnil // nobody is an answer here
	}
	var c *caller
	var err error
	switch {
	case len(header) > 0:
		c, err = g.byToken(l, table, header, now)
	case l != nil && l.leaf != nil:
		c, err = g.byCertificate(l, table, now)
	default:
		err = g.no.none
	}
	if err == nil && !c.id.Has(roles) {
		err = toStatus(oracle.Fault(oracle.Denied, oracle.ReasonRoleMissing, "role", c.id.Roles.String(), "want "+roles.String()))
	}
	return c, err
}

func (g *guard) byToken(l *link, table *access.Table, header []string, now time.Time) (*caller, error) {
	const scheme = "Bearer "
	if len(header) != 1 || len(header[0]) < len(scheme) || !strings.EqualFold(header[0][:len(scheme)], scheme) {
		return nil, g.no.form
	}
	id, digest := table.Token(header[0][len(scheme):])
	if id == nil {
		return nil, g.no.unknown
	}
	if l != nil {
		if c := l.byToken.Load(); c != nil && c.id == id && c.digest == digest {
			return c, nil
		}
	}
	c := &caller{table: table, id: id, meter: g.meters.Of(id.Name, now), digest: digest}
	if l != nil {
		l.byToken.Store(c)
	}
	return c, nil
}

func (g *guard) byCertificate(l *link, table *access.Table, now time.Time) (*caller, error) {
	c := l.byCert.Load()
	if c == nil || c.table != table {
		c = &caller{table: table, id: table.Certificate(l.leaf), leaf: l.leaf}
		if c.id != nil {
			c.meter = g.meters.Of(c.id.Name, now)
		}
		l.byCert.Store(c)
	}
	if c.id == nil || now.After(l.leaf.NotAfter) {
		return nil, g.no.certificate
	}
	return c, nil
}
