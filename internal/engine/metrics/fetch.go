package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// MaxBody is the largest document that is read: many times what an engine with all its histograms serves.
const MaxBody = 8 << 20

// ErrAbsent is an address that the engine does not serve (404, 405, 501).
var ErrAbsent = errors.New("not served")

// Fetcher gets documents over HTTP. The zero value works; it may be shared.
type Fetcher struct {
	// Client makes the calls; nil: http.DefaultClient. Calls are bounded by their contexts.
	Client *http.Client
	// Bearer is sent as bearer token if not empty. It is never part of an error.
	Bearer string
}

// Get reads a document, at most MaxBody of it. The error is ErrAbsent for what is not served, or names the status. An ORCA
// report that came in the response's header is returned as it is, "" without one.
func (f *Fetcher) Get(ctx context.Context, address string) (body []byte, orca string, err error) {
	return f.do(ctx, http.MethodGet, address, MaxBody)
}

// Drain gets what has gathered in an engine since it was asked the last time, and is gone by that: TensorRT-LLM's
// /kv_cache_events, by POST or, as newer releases have it too, by GET. At most bytes of it.
func (f *Fetcher) Drain(ctx context.Context, address string, most int) ([]byte, error) {
	body, _, err := f.do(ctx, http.MethodPost, address, most)
	if errors.Is(err, ErrAbsent) {
		body, _, err = f.do(ctx, http.MethodGet, address, most)
	}
	return body, err
}

func (f *Fetcher) do(ctx context.Context, method, address string, most int) (body []byte, orca string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, address, http.NoBody)
	if err != nil {
		return nil, "", fmt.Errorf("metrics: %w", err)
	}
	req.Header.Set(ORCAFormatHeader, "TEXT")
	if f.Bearer != "" {
		req.Header.Set("Authorization", "Bearer "+f.Bearer)
	}
	client := f.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", fmt.Errorf("metrics: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return nil, "", fmt.Errorf("metrics: %s: %w", req.URL.Path, ErrAbsent)
	default:
		return nil, "", fmt.Errorf("metrics: %s: %s", req.URL.Path, resp.Status)
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	if err != nil {
		return nil, "", fmt.Errorf("metrics: %s: %w", req.URL.Path, err)
	}
	if len(body) > most {
		return nil, "", fmt.Errorf("metrics: %s: more than %d bytes", req.URL.Path, most)
	}
	return body, resp.Header.Get(ORCAHeader), nil
}

// Base is where an engine's other documents are, given the address of its metrics: scheme and host of it.
func Base(metrics string) (string, error) {
	u, err := url.Parse(metrics)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", errors.New("want http://host:port/metrics")
	}
	return u.Scheme + "://" + u.Host, nil
}
