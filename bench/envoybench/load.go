package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// talks is how many different prompts there are.
const talks = 64

// bodies are chat requests of so many bytes. They begin alike for an eighth of their length.
func bodies(size int) [][]byte {
	out := make([][]byte, talks)
	for i := range out {
		head := `{"model":"m","messages":[{"role":"system","content":"` + strings.Repeat("You help. ", size/80) + `"},{"role":"user","content":"`
		tail := `"}],"max_tokens":1}`
		text := strings.Repeat(fmt.Sprintf("Talk %d goes on. ", i), size/10)
		out[i] = []byte(head + text[:max(size-len(head)-len(tail), 1)] + tail)
	}
	return out
}

// client keeps its connections.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, DisableCompression: true}}
}

// load sends requests at a rate and gives their times in seconds.
func load(url string, bodies [][]byte, rate int, window time.Duration) ([]float64, error) {
	c := client()
	defer c.CloseIdleConnections()
	n := int(window.Seconds() * float64(rate))
	times, errs := make([]float64, n), make([]error, n)
	var wait sync.WaitGroup
	start := time.Now()
	for i := range n {
		due := start.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if err := await(due); err != nil {
			return nil, err
		}
		wait.Go(func() {
			errs[i] = one(c, url, bytes.NewReader(bodies[i%len(bodies)]), nil)
			times[i] = time.Since(due).Seconds()
		})
	}
	wait.Wait()
	return times, errors.Join(errs...)
}

// await sleeps by the system's clock: Go's own timers are late by up to a millisecond while a program waits for its network, and
// more so the less it does, which would be measured as latency and differ between the ways.
func await(due time.Time) error {
	for {
		d := time.Until(due)
		if d <= 0 {
			return nil
		}
		t := unix.NsecToTimespec(d.Nanoseconds())
		if err := unix.Nanosleep(&t, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// one sends a request and reads its answer.
func one(c *http.Client, url string, body io.Reader, header http.Header) error {
	req, err := http.NewRequest(http.MethodPost, url+"/v1/chat/completions", body)
	if err != nil {
		return err
	}
	if header != nil {
		req.Header = header
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", resp.Status)
	}
	return nil
}

// hold keeps so many requests on their way at once: first all with the last byte of their bodies missing, then all at the
// worker.
func (s *stack) hold(bodies [][]byte, streams int) error {
	c := client()
	defer c.CloseIdleConnections()
	errs := make([]error, streams)
	release, sent := make(chan struct{}), make(chan struct{}, streams)
	var wait sync.WaitGroup
	for i := range streams {
		wait.Go(func() {
			body, in := io.Pipe()
			b := bodies[i%len(bodies)]
			go func() {
				_, _ = in.Write(b[:len(b)-1])
				sent <- struct{}{}
				<-release
				_, _ = in.Write(b[len(b)-1:])
				_ = in.Close()
			}()
			errs[i] = one(c, s.urls[duplex], body, http.Header{"X-Hold": {"1"}})
		})
	}
	for range streams {
		select {
		case <-sent:
		case <-time.After(30 * time.Second):
			return errors.New("not all bodies were taken")
		}
	}
	time.Sleep(time.Second) // they are at Envoy; now they are at kvoracle too
	close(release)
	for range streams {
		select {
		case <-s.held:
		case <-time.After(30 * time.Second):
			return errors.New("not all requests have come to the worker")
		}
	}
	close(s.release)
	wait.Wait()
	return errors.Join(errs...)
}
