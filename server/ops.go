package server

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/kvoracle/kvoracle/internal/access"
)

// page is one path of the operator's server.
type page struct {
	path, help string
	handler    http.Handler
	roles      access.Role // who may see it on Config.OpsListen
}

// pages lists what the operator's server shows, in the order of its index.
func (s *Server) pages() []page {
	const readers = access.Monitor | access.Operator
	return []page{
		{"/metrics", "metrics as Prometheus text, or OpenMetrics for those who ask", s.tel.Metrics(), readers},
		{"/status", "the fleet, the newest decisions with their reasons, and how good predictions were: a page for people", newStatusPage(s), access.Operator},
		{"/healthz", "200 while the process works", s.healthPage(healthLiveness), access.Nobody},
		{"/readyz", "200 when traffic should come here, else 503 with what is missing", s.healthPage(healthReadiness), access.Nobody},
		{"/debug/pprof/", "profiles, for go tool pprof", profileIndex(), access.Operator},
	}
}

// OpsHandler is the operator's HTTP server as a handler, for programs that serve it on a port of their own. It asks for
// no credentials.
func (s *Server) OpsHandler() http.Handler {
	return s.opsHandler(func(_ access.Role, h http.Handler) http.Handler { return h })
}

// opsHandler is the same with something before each page that knows who may see it.
func (s *Server) opsHandler(before func(access.Role, http.Handler) http.Handler) http.Handler {
	mux := http.NewServeMux()
	pages := s.pages()
	for _, p := range pages {
		mux.Handle("GET "+p.path, before(p.roles, p.handler))
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		plain(w, http.StatusOK)
		_, _ = fmt.Fprintf(w, "kvoracle %s\n\n", Version())
		for _, p := range pages {
			_, _ = fmt.Fprintf(w, "%-16s %s\n", p.path, p.help)
		}
	})
	return mux
}

// healthPage answers by one component and shows all of them.
func (s *Server) healthPage(component string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		up, text := s.health.check(component)
		code := http.StatusOK
		if !up {
			code = http.StatusServiceUnavailable
		}
		plain(w, code)
		_, _ = io.WriteString(w, text)
	})
}

func plain(w http.ResponseWriter, code int) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
}

// newOps makes the operator's HTTP server. Every timeout is set: it is the port that strangers find first.
func (s *Server) newOps() *http.Server {
	return &http.Server{
		Handler:           s.opsHandler(s.guard.page),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      longestProfile + 10*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}
