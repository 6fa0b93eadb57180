package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

type recordCmd struct {
	File     string        `arg:"" help:"Where to write the log; with .gz at the end it is compressed."`
	Model    string        `help:"Only this model; empty: all."`
	For      time.Duration `help:"How long; 0: until interrupted." default:"0s"`
	Requests int           `help:"End after so many requests; 0: do not." default:"0" placeholder:"N"`

	Endpoint []string `help:"Record what an engine publishes here instead, as capture does: tcp://HOST:PORT or ipc://PATH; give it again for another." sep:"none"`
	Bind     bool     `help:"With --endpoint: bind it and let the engine connect to it."`
	Ranks    int      `help:"With --endpoint: data-parallel ranks behind each." default:"1"`
	Topic    []string `help:"With --endpoint: only messages whose topic begins so." sep:"none"`
	Messages uint64   `help:"With --endpoint: end after so many messages; 0: do not." default:"0" placeholder:"N"`
	Quiet    bool     `help:"With --endpoint: no progress."`
}

// Help is the long help.
func (c *recordCmd) Help() string {
	return `Writes what "replay" reads: the oracle's requests, without tokens. With --endpoint it writes what "play" reads: the messages
that an engine publishes about its cache, with the tokens in them; "capture" is another name for that.`
}

// engine is the command that records an engine; nil: the oracle's requests are meant.
func (c *recordCmd) engine() (*captureCmd, error) {
	if len(c.Endpoint) == 0 {
		if c.Bind || c.Ranks != 1 || len(c.Topic) > 0 || c.Messages > 0 || c.Quiet {
			return nil, errors.New("--bind, --ranks, --topic, --messages and --quiet: want --endpoint with them")
		}
		return nil, nil
	}
	if c.Model != "" || c.Requests != 0 {
		return nil, errors.New("--model and --requests: they are about the oracle's requests, and --endpoint is an engine's")
	}
	return &captureCmd{
		Endpoint: c.Endpoint, Bind: c.Bind, Ranks: c.Ranks, Topic: c.Topic, Out: c.File, For: c.For, Messages: c.Messages, Quiet: c.Quiet,
	}, nil
}

// logLine is one request as replay reads it, with what was measured beside it.
type logLine struct {
	Timestamp float64  `json:"timestamp"` // ms of Unix time
	Input     uint32   `json:"input_length"`
	Output    uint32   `json:"output_length"`
	BlockSize uint32   `json:"block_size"`
	Hashes    []uint64 `json:"hash_ids"`
	Session   string   `json:"session_id,omitempty"`
	Delay     float64  `json:"delay,omitempty"` // ms since the session's former request ended
	Cached    *uint32  `json:"cached_tokens,omitempty"`
	TTFT      float64  `json:"ttft_seconds,omitempty"`
	Worker    string   `json:"worker"`
	Model     string   `json:"model"`
}

// Run writes until the time is up, the number reached, the command interrupted or the oracle gone. The file is whole in
// every case.
func (c *recordCmd) Run(e *env) error {
	engine, err := c.engine()
	if err != nil {
		return err
	}
	if engine != nil {
		return engine.Run(e)
	}
	conn, err := e.dial()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	stream, err := kvoraclev1.NewFleetServiceClient(conn).RecordRequests(ctx, &kvoraclev1.RecordRequestsRequest{Model: c.Model})
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err // before a file is made
	}
	if c.For > 0 {
		// No deadline: the oracle would hear of that, and its end of the stream could be the first to come.
		defer time.AfterFunc(c.For, cancel).Stop()
	}
	f, err := os.OpenFile(c.File, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	log := newRequestLog(f, strings.HasSuffix(c.File, ".gz"))
	fmt.Fprintf(e.err, "recording to %s\n", c.File)
	lost := first.GetLost()
	for err == nil && (c.Requests == 0 || log.requests < c.Requests) {
		var m *kvoraclev1.RecordRequestsResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		lost = m.GetLost()
		for _, r := range m.GetRequests() {
			if c.Requests == 0 || log.requests < c.Requests {
				log.add(r)
			}
		}
		err = log.flush()
	}
	if ctx.Err() != nil {
		err = nil // told to end
	}
	err = errors.Join(unwrapEnd(err), log.close(), f.Close())
	fmt.Fprintf(e.out, "%d requests recorded, %d left out (not finished within half an hour, or this reader was too slow), %d skipped (no output was told)\n",
		log.requests, lost, log.skipped)
	return err
}

// unwrapEnd takes an orderly end of the stream for none.
func unwrapEnd(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// requestLog writes lines.
type requestLog struct {
	out      *bufio.Writer
	zip      *gzip.Writer // nil: plain
	requests int
	skipped  int
	sessions map[uint64]time.Time // ends of their last requests
	err      error
}

// mostSessions bounds the sessions remembered; beyond it all are forgotten, which costs some delays.
const mostSessions = 1 << 17

func newRequestLog(w io.Writer, compress bool) *requestLog {
	l := &requestLog{sessions: map[uint64]time.Time{}}
	if compress {
		l.zip = gzip.NewWriter(w)
		w = l.zip
	}
	l.out = bufio.NewWriter(w)
	return l
}

// add writes one request.
func (l *requestLog) add(r *kvoraclev1.RecordedRequest) {
	if r.GetOutputTokens() == 0 || r.GetBlockSize() == 0 {
		l.skipped++ // there is nothing to decode
		return
	}
	decided := r.GetDecidedAt().AsTime()
	line := logLine{
		Timestamp: float64(decided.UnixMicro()) / 1e3,
		Input:     r.GetPromptTokens(), Output: r.GetOutputTokens(), BlockSize: r.GetBlockSize(),
		Hashes: r.GetBlockIds(), Cached: r.CachedTokens, TTFT: r.GetTtftSeconds(), Worker: r.GetWorkerId(), Model: r.GetModel(),
	}
	if r.GetPromptTokens()%r.GetBlockSize() != 0 {
		// The unfinished last block is like no other.
		line.Hashes = append(line.Hashes[:len(line.Hashes):len(line.Hashes)], uint64(l.requests)|1<<63)
	}
	if s := r.GetSession(); s != 0 {
		line.Session = fmt.Sprintf("%016x", s)
		if last, ok := l.sessions[s]; ok {
			line.Delay = max(decided.Sub(last).Seconds(), 0) * 1e3
		}
		if len(l.sessions) >= mostSessions {
			clear(l.sessions)
		}
		l.sessions[s] = r.GetFinishedAt().AsTime()
	}
	b, err := json.Marshal(line)
	if err == nil {
		_, err = l.out.Write(append(b, '\n'))
	}
	if l.err == nil {
		l.err = err
	}
	l.requests++
}

// flush hands on what is written, so that little is lost when the process is killed.
func (l *requestLog) flush() error {
	if err := l.out.Flush(); l.err == nil {
		l.err = err
	}
	return l.err
}

func (l *requestLog) close() error {
	err := l.flush()
	if l.zip != nil {
		err = errors.Join(err, l.zip.Close())
	}
	return err
}
