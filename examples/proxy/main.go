// Command proxy is a whole gateway for OpenAI's API: it asks kvoracle where each request should go, forwards it, streams the answer
// back, says how it went, and chooses by itself while kvoracle is away.
//
//	KVORACLE_SERVER=127.0.0.1:7070 LISTEN=127.0.0.1:8080 MODEL=demo go run ./examples/proxy
//
// MODEL is that of requests that name none. PATIENCE is how long a request waits for kvoracle (20ms).
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/client"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func setting(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func run(ctx context.Context) error {
	patience, err := time.ParseDuration(setting("PATIENCE", "20ms"))
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(setting("KVORACLE_SERVER", "127.0.0.1:7070"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	router := client.NewRouter(conn, client.WithTimeout(patience))
	go router.Run(ctx) //nolint:errcheck // keeps the fleet list and the progress stream, until ctx is done
	s := &http.Server{Addr: setting("LISTEN", "127.0.0.1:8080"), Handler: &gateway{router, os.Getenv("MODEL")}, ReadHeaderTimeout: 10 * time.Second}
	return s.ListenAndServe()
}

type gateway struct {
	router *client.Router
	model  string // of requests that name none
}

// question is what kvoracle is asked: the prompt as it lies in the body, but for the bracket that the next turn will not have there.
func (g *gateway) question(r *http.Request, body []byte) client.Request {
	var asked struct {
		Model                   string
		Messages, Prompt, Input json.RawMessage
	}
	q := client.Request{Model: g.model, Text: r.URL.Path, SessionID: r.Header.Get("X-Session-Id"), DryRun: true}
	if json.Unmarshal(body, &asked) != nil {
		return q // the engine may judge it; there is nothing to book
	}
	if asked.Model != "" {
		q.Model = asked.Model
	}
	for _, prompt := range []json.RawMessage{asked.Messages, asked.Prompt, asked.Input} {
		if len(prompt) > 1 {
			q.Text, q.DryRun = string(prompt[:len(prompt)-1]), false
		}
	}
	return q
}

// ServeHTTP implements http.Handler.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<20))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	d, err := g.router.Route(r.Context(), g.question(r, body))
	switch {
	case errors.Is(err, client.ErrNoEligibleWorker), errors.Is(err, client.ErrFleetFull):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "no worker can take this request", http.StatusServiceUnavailable)
		return
	case errors.Is(err, client.ErrModelUnknown), errors.Is(err, client.ErrInvalid):
		http.Error(w, "nobody serves this model", http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, "nobody is known who could serve this", http.StatusBadGateway)
		return
	}
	targets := []client.Target{d.Target}
	for _, a := range d.Alternatives {
		targets = append(targets, a.Target)
	}
	for _, t := range targets {
		if g.forward(w, r, body, d, t) {
			return
		}
	}
	g.router.Failed(d, "no worker answers")
	http.Error(w, "no worker answers", http.StatusBadGateway)
}

// forward sends the request to a target, and says whether it is done with.
func (g *gateway) forward(w http.ResponseWriter, r *http.Request, body []byte, d client.Decision, t client.Target) bool {
	out, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+t.Address+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return false
	}
	out.Header = r.Header.Clone()
	began := time.Now()
	resp, err := http.DefaultClient.Do(out)
	if err != nil && r.Context().Err() == nil {
		return false // somebody else may answer
	}
	g.router.Dispatched(d, t)
	if err != nil {
		g.router.Cancelled(d) // the client has left
		return true
	}
	defer resp.Body.Close() //nolint:errcheck // it was read, or is not wanted
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	counted, err := g.stream(w, resp.Body, func() { g.router.FirstToken(d, time.Since(began)) })
	switch {
	case r.Context().Err() != nil, resp.StatusCode >= 300 && resp.StatusCode < 500:
		g.router.Cancelled(d) // its client has left, or the engine has refused it: nothing is cached
	case err != nil, resp.StatusCode >= 500:
		g.router.Failed(d, resp.Status)
	default:
		g.router.FinishedUsage(d, counted)
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the client must not take what it has for all of it
	}
	return true
}

// kept is how much of an answer's end is looked at for what the engine has counted.
const kept = 4096

// stream hands an answer on piece by piece, and finds what the engine has counted.
func (g *gateway) stream(w http.ResponseWriter, answer io.Reader, first func()) (client.Usage, error) {
	usage := client.Usage{Cached: client.CachedUnknown}
	var end []byte
	piece := make([]byte, 32<<10)
	for {
		n, err := answer.Read(piece)
		if n > 0 {
			if end == nil {
				first()
			}
			if _, err := w.Write(piece[:n]); err != nil {
				return usage, err
			}
			_ = http.NewResponseController(w).Flush() // a client that has left is noticed at the next piece
			end = append(end, piece[:n]...)
			if i := bytes.LastIndex(end, []byte(`"usage":{`)); i >= 0 { // more may come after it
				usage = read(end[i:])
			}
			end = append([]byte{}, end[max(0, len(end)-kept):]...)
		}
		switch {
		case errors.Is(err, io.EOF):
			return usage, nil
		case err != nil:
			return usage, err
		}
	}
}

// read reads what an engine has counted.
func read(text []byte) client.Usage {
	count := func(name string, otherwise int) int {
		if m := regexp.MustCompile(`"` + name + `":\s*(\d+)`).FindSubmatch(text); m != nil {
			otherwise, _ = strconv.Atoi(string(m[1])) // digits
		}
		return otherwise
	}
	return client.Usage{Output: count("completion_tokens", 0), Prompt: count("prompt_tokens", 0), Cached: count("cached_tokens", client.CachedUnknown)}
}
