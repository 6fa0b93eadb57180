package server

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"
)

// Profiles are served from runtime/pprof rather than by net/http/pprof, which puts its pages on the default mux of
// every program that imports it: an embedder would show them on a port meant for strangers.

const (
	usualProfile   = 30 * time.Second // as net/http/pprof
	longestProfile = 2 * time.Minute
)

// profileIndex serves everything below /debug/pprof/.
func profileIndex() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/{$}", listProfiles)
	mux.HandleFunc("/debug/pprof/cmdline", func(w http.ResponseWriter, _ *http.Request) {
		plain(w, http.StatusOK)
		_, _ = fmt.Fprint(w, strings.Join(os.Args, "\x00"))
	})
	mux.HandleFunc("/debug/pprof/profile", during("cpu", pprof.StartCPUProfile, pprof.StopCPUProfile))
	mux.HandleFunc("/debug/pprof/trace", during("trace", trace.Start, trace.Stop))
	mux.HandleFunc("/debug/pprof/{name}", lookup)
	return mux
}

func listProfiles(w http.ResponseWriter, _ *http.Request) {
	plain(w, http.StatusOK)
	_, _ = fmt.Fprintf(w, "profile?seconds=30 CPU\ntrace?seconds=1    execution trace\n")
	for _, p := range pprof.Profiles() {
		_, _ = fmt.Fprintf(w, "%-18s %d\n", p.Name(), p.Count())
	}
}

// lookup serves a profile of this moment; with debug=1 or 2 as text.
func lookup(w http.ResponseWriter, r *http.Request) {
	p := pprof.Lookup(r.PathValue("name"))
	if p == nil {
		http.Error(w, "no such profile; see /debug/pprof/", http.StatusNotFound)
		return
	}
	debug, _ := strconv.Atoi(r.FormValue("debug"))
	if gc, _ := strconv.Atoi(r.FormValue("gc")); p.Name() == "heap" && gc > 0 {
		runtime.GC()
	}
	if debug > 0 {
		plain(w, http.StatusOK)
	} else {
		attach(w, p.Name())
	}
	_ = p.WriteTo(w, debug) // the client has gone
}

// during serves what is recorded over some seconds.
func during(name string, start func(w io.Writer) error, stop func()) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		length := usualProfile
		if name == "trace" {
			length = time.Second
		}
		if v := r.FormValue("seconds"); v != "" {
			s, err := strconv.ParseFloat(v, 64)
			if err != nil || !(s > 0) || s > longestProfile.Seconds() {
				http.Error(w, fmt.Sprintf("seconds: got %q, want above 0, to %v", v, longestProfile.Seconds()), http.StatusBadRequest)
				return
			}
			length = time.Duration(s * float64(time.Second))
		}
		attach(w, name)
		if err := start(w); err != nil { // one is under way
			w.Header().Del("Content-Disposition")
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		defer stop()
		wait(r.Context().Done(), length)
	}
}

func attach(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	w.Header().Set("X-Content-Type-Options", "nosniff")
}
