package clienttest_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kvoracle/kvoracle/client/clienttest"
)

// TestNothingOfOursOnTheDefaultMux: who embeds a server finds nothing there that he has not put there. It is a test of a package
// that has the server as others have it.
func TestNothingOfOursOnTheDefaultMux(t *testing.T) {
	clienttest.Start(t)
	for _, path := range []string{"/debug/pprof/", "/metrics"} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		if _, pattern := http.DefaultServeMux.Handler(req); pattern != "" {
			t.Errorf("%s is on the default mux as %q", path, pattern)
		}
	}
}
