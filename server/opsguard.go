package server

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/access"
)

// secure is a listener for HTTP with TLS, if there is any.
func (s *Server) secure(lis net.Listener, clientAuth tls.ClientAuthType, protocols ...string) net.Listener {
	if s.certs == nil {
		return lis
	}
	return tls.NewListener(lis, s.certs.Server(clientAuth, protocols...))
}

// page stands before a page that only some may see, where people have to say who they are.
func (g *guard) page(roles access.Role, next http.Handler) http.Handler {
	if roles == access.Nobody {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.visitor(r, roles); err != nil {
			g.told(r.Context(), "ops "+r.Pattern, err)
			code := http.StatusForbidden
			if status.Code(err) == codes.Unauthenticated {
				code = http.StatusUnauthorized
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			plain(w, code)
			_, _ = io.WriteString(w, status.Convert(err).Message()+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// visitor finds out who asks for a page, and whether it may see it.
func (g *guard) visitor(r *http.Request, roles access.Role) error {
	l := &link{}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		l.leaf = r.TLS.PeerCertificates[0]
	}
	_, err := g.who(l, r.Header["Authorization"], roles, time.Now())
	return err
}
