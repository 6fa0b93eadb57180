package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/kvoracle/kvoracle/internal/engine/capture"
	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

type captureCmd struct {
	Endpoint []string      `help:"Where an engine publishes: tcp://HOST:PORT or ipc://PATH; give it again for another." required:"" sep:"none"`
	Bind     bool          `help:"Bind the endpoint and let the engine connect to it, as vLLM does when its own endpoint has neither * nor ipc."`
	Ranks    int           `help:"Data-parallel ranks behind each endpoint: rank R publishes at the port plus R." default:"1"`
	Topic    []string      `help:"Only messages whose topic begins so; give it again for another; none: all." sep:"none"`
	Out      string        `help:"Where to write; with .gz at the end it is compressed." required:"" placeholder:"FILE"`
	For      time.Duration `help:"How long; 0: until interrupted." default:"0s"`
	Messages uint64        `help:"End after so many messages; 0: do not." default:"0" placeholder:"N"`
	Quiet    bool          `help:"No progress."`
}

// Help is the long help.
func (c *captureCmd) Help() string {
	return `Listens to an engine's ZeroMQ publisher and writes every message as it comes, undecoded, with its time. "play" serves
the file again, so that a failure can be seen elsewhere.

The file holds the token ids of the prompts that the engine cached: whoever has the tokenizer can read them. It is written
with mode 0600. There is no way to leave the tokens out, since what is wrong is often in them.

"record --endpoint" is the same. "record" alone writes the oracle's requests, without tokens, for the comparison of policies by
"replay".`
}

// Run captures until the time is up, the number reached or the command interrupted. The file is whole in every case.
func (c *captureCmd) Run(e *env) error {
	if c.Ranks < 1 || c.Ranks > 1024 {
		return fmt.Errorf("--ranks: got %d, want 1 to 1024", c.Ranks)
	}
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	live, err := c.open(ctx)
	defer func() {
		for _, l := range live {
			l.Socket.Close()
		}
	}()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(c.Out, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	var file io.WriteCloser = f
	if strings.HasSuffix(c.Out, ".gz") {
		file = zipped{gzip.NewWriter(f)}
	}
	start := time.Now()
	w, err := capture.NewWriter(file, start)
	if err != nil {
		f.Close()
		return err
	}
	for _, l := range live {
		fmt.Fprintf(e.err, "capturing %s to %s\n", l.Endpoint, c.Out)
	}
	if c.For > 0 {
		defer time.AfterFunc(c.For, cancel).Stop()
	}
	bar, draw := c.progress(e.err)
	n, err := capture.Take(ctx, w, live, c.Messages, draw)
	if file != f {
		err = errors.Join(err, file.Close())
	}
	err = errors.Join(err, f.Close())
	if bar != nil {
		_ = bar.Finish() // a bar that cannot be drawn is no reason to fail
	}
	fmt.Fprintf(e.out, "%d messages (%s) captured from %d publishers in %s; connections were cut %d times\n",
		n.Messages, bytesText(n.Bytes), len(live), time.Since(start).Round(time.Millisecond), n.Cuts)
	if n.Messages == 0 && err == nil {
		for _, l := range live {
			if s := l.Socket.Stats(); s.LastError != nil {
				fmt.Fprintf(e.err, "%s: %v\n", l.Endpoint, s.LastError)
			}
		}
	}
	return err
}

// open begins to listen. What is open is returned also with an error.
func (c *captureCmd) open(ctx context.Context) (live []capture.Live, err error) {
	open := zmtp.Dial
	if c.Bind {
		open = zmtp.Listen
	}
	for _, endpoint := range c.Endpoint {
		for r := range c.Ranks {
			at, err := rankEndpoint(endpoint, r)
			if err != nil {
				return live, fmt.Errorf("--endpoint: %w", err)
			}
			s, err := open(ctx, zmtp.Config{Type: zmtp.SUB, Endpoint: at, Topics: c.Topic, MaxMessage: capture.MaxRecord / 2})
			if err != nil {
				return live, err
			}
			live = append(live, capture.Live{Source: capture.Source{Endpoint: at, Rank: uint32(r)}, Socket: s})
		}
	}
	return live, nil
}

// progress draws what has come where somebody watches.
func (c *captureCmd) progress(w io.Writer) (bar *progressbar.ProgressBar, draw func(capture.Totals)) {
	if c.Quiet || !isTerminal(w) {
		return nil, nil
	}
	bar = progressbar.NewOptions(-1, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription("messages"),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionThrottle(200*time.Millisecond),
		progressbar.OptionOnCompletion(func() { fmt.Fprintln(w) }))
	return bar, func(n capture.Totals) {
		_ = bar.Set64(int64(n.Messages)) // as above
	}
}

// zipped hands on every piece as a whole, so that of a command that is killed all but the last piece can be read.
type zipped struct{ *gzip.Writer }

func (z zipped) Write(p []byte) (int, error) {
	n, err := z.Writer.Write(p)
	if err == nil {
		err = z.Flush()
	}
	return n, err
}

// bytesText is a number of bytes for people.
func bytesText(n uint64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
