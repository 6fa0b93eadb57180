package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kvoracle/kvoracle/internal/certs"
)

// sums are the metrics that a look at the fleet wants, each over all its series.
type sums struct {
	prompt, matched float64 // tokens of booked decisions, and those of them that were found in caches
	refused         float64 // calls
	ttft, ttftError float64 // seconds: measured, and how far predictions were off
	ttfts           float64 // how many
}

// totals reads them from the oracle's /metrics.
type totals struct {
	url    string // empty: not wanted
	token  string
	client *http.Client
}

// mostMetrics bounds what is read of a page of metrics, in bytes.
const mostMetrics = 16 << 20

// newTotals makes one with the credentials that the command's calls have.
func newTotals(where string, f *securityFlags) (*totals, error) {
	if where == noMetrics {
		return &totals{}, nil
	}
	u, err := url.Parse(where)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--metrics: got %q, want http://host:port/metrics, or none", where)
	}
	t := &totals{url: where, client: &http.Client{}}
	if u.Scheme == "https" || isLoopback(u.Host) { // a token does not travel in plain
		if t.token, err = f.bearer(); err != nil {
			return nil, err
		}
	}
	if u.Scheme == "https" {
		source, err := certs.Load(certs.Files{Cert: f.TLSCert, Key: f.TLSKey, CA: f.TLSCA}, time.Now())
		if err != nil {
			return nil, err
		}
		name := f.TLSServerName
		if name == "" {
			name = u.Hostname()
		}
		t.client.Transport = &http.Transport{TLSClientConfig: source.Client(name)}
	}
	return t, nil
}

func (t *totals) read(ctx context.Context) (*sums, error) {
	if t.url == "" {
		return nil, errNoMetrics
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	if t.token != "" {
		req.Header.Set("Authorization", "Bearer "+t.token)
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", t.url, resp.Status)
	}
	return readSums(io.LimitReader(resp.Body, mostMetrics))
}

// readSums adds up the series of a page in Prometheus' text format: a line is a name, labels in braces perhaps, and a value.
func readSums(r io.Reader) (*sums, error) {
	s := &sums{}
	into := map[string]*float64{
		"kvoracle_prompt_tokens_total": &s.prompt, "kvoracle_matched_tokens_total": &s.matched, "kvoracle_requests_refused_total": &s.refused,
		"kvoracle_first_token_duration_seconds_sum": &s.ttft, "kvoracle_first_token_error_seconds_sum": &s.ttftError,
		"kvoracle_first_token_error_seconds_count": &s.ttfts,
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		end := strings.IndexAny(line, "{ ")
		if end < 0 {
			continue
		}
		sum, ok := into[line[:end]]
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("not a page of metrics: %.80q", line)
		}
		*sum += v
	}
	return s, lines.Err()
}

// bearer is the token that calls carry; empty: none.
func (f *securityFlags) bearer() (string, error) {
	if f.TokenFile == "" {
		return f.Token, nil
	}
	text, err := os.ReadFile(f.TokenFile)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(text)), nil
}
