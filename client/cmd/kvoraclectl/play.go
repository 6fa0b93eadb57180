package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/kvoracle/kvoracle/internal/engine/capture"
	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

type playCmd struct {
	File       string        `arg:"" help:"What capture has written."`
	Bind       string        `help:"Where to publish. A capture of several ranks: rank R at the port plus R (ipc: the path with -R at the end)." default:"tcp://127.0.0.1:5557" placeholder:"ENDPOINT"`
	Replay     string        `help:"Where to answer who asks for earlier messages, each rank as above; empty: nowhere." placeholder:"ENDPOINT"`
	OldReplies bool          `help:"Answer without the topic, as vLLM did until June 2026 and SGLang does."`
	Steps      int           `help:"Messages kept for such answers." default:"10000"`
	Speed      float64       `help:"How many times faster than it was; 0: as fast as subscribers take it." default:"1"`
	Wait       int           `help:"Begin when every rank has so many subscribers; 0: at once, and the first messages may be lost." default:"1"`
	Linger     time.Duration `help:"Stay for so long after the end." default:"0s"`
	HWM        int           `name:"hwm" help:"Messages that may wait for a slow subscriber before it loses some." default:"100000"`
	Quiet      bool          `help:"No progress."`
}

// Run plays the file to its end.
func (c *playCmd) Run(e *env) error {
	switch {
	case !(c.Speed >= 0 && c.Speed <= 1e9):
		return fmt.Errorf("--speed: got %v, want 0 to 1e9", c.Speed)
	case c.Steps < 1:
		return fmt.Errorf("--steps: got %d, want at least 1", c.Steps)
	case c.HWM < 1:
		return fmt.Errorf("--hwm: got %d, want at least 1", c.HWM)
	}
	f, err := os.Open(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	read := &counted{r: f}
	var file io.Reader = read
	if strings.HasSuffix(c.File, ".gz") {
		if file, err = gzip.NewReader(read); err != nil {
			return fmt.Errorf("%s: %w", c.File, err)
		}
	}
	r, err := capture.NewReader(file)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	stages, err := c.stages(e, r)
	defer func() {
		for _, s := range stages {
			s.Publisher.Close()
			if s.Replay != nil {
				s.Replay.Close()
			}
		}
	}()
	if err != nil {
		return err
	}
	for _, s := range stages {
		if err := s.Publisher.WaitPeers(e.ctx, c.Wait); err != nil {
			return err
		}
	}
	start := time.Now()
	n, err := capture.Play(e.ctx, r, stages, capture.PlayOptions{
		Speed: c.Speed, Steps: c.Steps, OldReplies: c.OldReplies, Linger: c.Linger, Progress: c.progress(e.err, read, info.Size()),
		Played: func() { fmt.Fprintf(e.err, "all was played; replays are answered for %v\n", c.Linger) },
	})
	if errors.Is(err, capture.ErrCut) {
		fmt.Fprintf(e.err, "%s: %v; played as far as it goes\n", c.File, err)
		err = nil
	}
	fmt.Fprintf(e.out, "%d messages (%s) of %s played by %d publishers in %s; %d lost by slow subscribers\n",
		n.Messages, bytesText(n.Bytes), n.At.Round(time.Millisecond), len(stages), time.Since(start).Round(time.Millisecond), n.Dropped)
	return err
}

// stages opens what the capture's publishers need. What is open is returned also with an error.
func (c *playCmd) stages(e *env, r *capture.Reader) ([]capture.Stage, error) {
	var stages []capture.Stage
	for i, source := range r.Sources() {
		at, err := rankEndpoint(c.Bind, i)
		if err != nil {
			return stages, fmt.Errorf("--bind: %w", err)
		}
		pub, err := zmtp.Listen(e.ctx, zmtp.Config{Type: zmtp.PUB, Endpoint: at, SendMessages: c.HWM, MaxFrames: capture.MaxFrames})
		if err != nil {
			return stages, err
		}
		stages = append(stages, capture.Stage{Publisher: pub})
		fmt.Fprintf(e.err, "%s, rank %d, of %s: at %s\n", source.Endpoint, source.Rank, r.Start().UTC().Format(time.RFC3339), pub.Endpoint())
		if c.Replay == "" {
			continue
		}
		if at, err = rankEndpoint(c.Replay, i); err != nil {
			return stages, fmt.Errorf("--replay: %w", err)
		}
		if stages[i].Replay, err = zmtp.Listen(e.ctx, zmtp.Config{Type: zmtp.ROUTER, Endpoint: at}); err != nil {
			return stages, err
		}
		fmt.Fprintf(e.err, "  replays at %s\n", stages[i].Replay.Endpoint())
	}
	return stages, nil
}

// progress draws how far the file was read where somebody watches, and writes ten lines elsewhere.
func (c *playCmd) progress(w io.Writer, read *counted, all int64) func(capture.Totals) {
	if c.Quiet {
		return nil
	}
	if !isTerminal(w) {
		told := int64(0)
		return func(n capture.Totals) {
			if tenth := read.n * 10 / max(all, 1); tenth > told {
				told = tenth
				fmt.Fprintf(w, "%d0 %% read, %d messages played\n", tenth, n.Messages)
			}
		}
	}
	bar := progressbar.NewOptions64(all, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription("playing"),
		progressbar.OptionSetWidth(40), progressbar.OptionShowBytes(true), progressbar.OptionThrottle(200*time.Millisecond),
		progressbar.OptionOnCompletion(func() { fmt.Fprintln(w) }))
	return func(capture.Totals) {
		_ = bar.Set64(read.n) // a bar that cannot be drawn is no reason to stop
	}
}

// counted counts what is read.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// rankEndpoint is where a data-parallel rank is, given where rank 0 is: at the port plus the rank, as vLLM and SGLang have
// it; paths, which engines use for one rank only, get -RANK. Port 0 or * is any free one, for each.
func rankEndpoint(endpoint string, rank int) (string, error) {
	if rank == 0 {
		return endpoint, nil
	}
	if strings.HasPrefix(endpoint, "ipc://") {
		return fmt.Sprintf("%s-%d", endpoint, rank), nil
	}
	i := strings.LastIndexByte(endpoint, ':') + 1
	if endpoint[i:] == "*" || endpoint[i:] == "0" {
		return endpoint, nil
	}
	port, err := strconv.ParseUint(endpoint[i:], 10, 16)
	if err != nil || port+uint64(rank) > 65535 {
		return "", fmt.Errorf("got %q, want a port that rank %d can be added to", endpoint, rank)
	}
	return fmt.Sprint(endpoint[:i], port+uint64(rank)), nil
}
