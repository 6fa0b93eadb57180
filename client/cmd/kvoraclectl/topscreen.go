package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/term"
)

// line is one of a picture.
type line struct {
	text   string
	isHead bool // the names of the columns
}

// lines is a picture as text. Names come from workers and are shown without what a terminal would obey.
func (f *frame) lines() []line {
	if f.Trouble != "" {
		return []line{{text: "kvoracle " + f.Server}, {text: printable(f.Trouble)}}
	}
	out := []line{
		{text: fmt.Sprintf("kvoracle %s  %s  workers: %s; targets: %s", f.Server, f.At.Format("15:04:05"), counts(f.Workers), counts(f.Targets))},
		{text: fmt.Sprintf("decisions %.1f/s  in flight %d (booked %d)  prefill waiting %s", f.Decisions, f.InFlight, f.Booked, seconds(f.Prefill))},
		{text: f.fromMetrics()},
		{},
	}
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WORKER\tRANK\tMODEL\tSTATE\tCACHE\tBLOCKS\tLOAD\tIN FLIGHT\tPREFILL\tDECISIONS/S\t")
	for i := range f.Ranks {
		r := &f.Ranks[i]
		cache := r.Cache
		if r.Unmatched {
			cache += ", unmatched"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%d\t%s\t%d\t%s\t%.1f\t\n", printable(r.Worker), r.Rank, printable(r.Model), r.State, cache, r.Blocks,
			r.Load, r.InFlight, seconds(r.Prefill), r.Decisions)
	}
	_ = w.Flush() // into memory
	for i, text := range strings.Split(strings.TrimRight(table.String(), "\n"), "\n") {
		out = append(out, line{text: strings.TrimRight(text, " "), isHead: i == 0})
	}
	return out
}

func (f *frame) fromMetrics() string {
	if f.NoMetrics != "" {
		return "found in caches: not known (metrics: " + printable(f.NoMetrics) + ")"
	}
	show := func(v *float64, form func(float64) string) string {
		if v == nil {
			return "-"
		}
		return form(*v)
	}
	percent := func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
	rate := func(v float64) string { return fmt.Sprintf("%.1f/s", v) }
	return fmt.Sprintf("found in caches %s of prompts  first token %s, predictions off by %s  refused %s",
		show(f.HitShare, percent), show(f.TTFT, seconds), show(f.TTFTError, seconds), show(f.Refused, rate))
}

func seconds(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.0f ms", s*1e3)
	}
	return fmt.Sprintf("%.1f s", s)
}

// counts is "7 ready, 1 lost".
func counts(m map[string]int) string {
	if len(m) == 0 {
		return "none"
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%d %s", m[name], name))
	}
	return strings.Join(out, ", ")
}

// printable is a text without control characters and others that cannot be seen.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// What the screen is told, in the terms that all terminals have had since the VT220.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // another screen, no cursor, no wrapping
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	endOfLine   = "\x1b[K\r\n"
	restClear   = "\x1b[K\x1b[J"
	inverse     = "\x1b[7m"
	normal      = "\x1b[0m"
)

// sizeEvery is how often the size of the terminal is looked at.
const sizeEvery = 200 * time.Millisecond

// screen is a terminal on which each picture takes the place of the one before. Pressing q, or ctrl-C, ends it.
type screen struct {
	out   *os.File
	in    *os.File
	state *term.State // of in before
	done  chan struct{}
	over  sync.WaitGroup

	mu            sync.Mutex
	last          *frame
	width, height int
}

// terminal says whether out is one.
func terminal(out io.Writer) (*os.File, bool) {
	file, ok := out.(*os.File)
	return file, ok && term.IsTerminal(int(file.Fd()))
}

// openScreen takes over a terminal. stop is called when somebody wants to end.
func openScreen(in, out *os.File, stop func()) (*screen, error) {
	s := &screen{out: out, in: in, done: make(chan struct{})}
	if term.IsTerminal(int(in.Fd())) {
		state, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return nil, err
		}
		s.state = state
		go s.keys(stop) // ends with the process: reading a terminal cannot be called off
	}
	if _, err := out.WriteString(enterScreen); err != nil {
		return nil, err
	}
	s.over.Go(s.follow)
	return s, nil
}

func (s *screen) keys(stop func()) {
	var b [1]byte
	for {
		if n, err := s.in.Read(b[:]); err != nil || n == 1 && (b[0] == 'q' || b[0] == 3) {
			stop()
			return
		}
	}
}

// follow draws the picture again when the terminal has got another size.
func (s *screen) follow() {
	tick := time.NewTicker(sizeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.mu.Lock()
			if w, h := s.size(); s.last != nil && (w != s.width || h != s.height) {
				_ = s.draw() // the next picture finds out what is wrong
			}
			s.mu.Unlock()
		case <-s.done:
			return
		}
	}
}

func (s *screen) size() (width, height int) {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

func (s *screen) show(f *frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = f
	return s.draw()
}

// draw shows the last picture, as much of it as there is room for. mu is held.
func (s *screen) draw() error {
	s.width, s.height = s.size()
	_, err := s.out.WriteString(s.last.fit(s.width, s.height))
	return err
}

// fit is the picture for a screen of a size.
func (f *frame) fit(width, height int) string {
	lines := f.lines()
	more := ""
	if len(lines) > height && height > 0 {
		more = fmt.Sprintf("and %d more", len(lines)-height+1)
		lines = lines[:height-1]
	}
	var b strings.Builder
	b.WriteString(toTop)
	for i, l := range lines {
		if i > 0 {
			b.WriteString(endOfLine)
		}
		text := clip(l.text, width)
		if l.isHead {
			text = inverse + text + normal
		}
		b.WriteString(text)
	}
	if more != "" {
		b.WriteString(endOfLine + clip(more, width))
	}
	b.WriteString(restClear)
	return b.String()
}

// clip is the first so many characters.
func clip(s string, width int) string {
	n := 0
	for i := range s {
		if n == width {
			return s[:i]
		}
		n++
	}
	return s
}

// close gives the terminal back as it was.
func (s *screen) close() {
	close(s.done)
	s.over.Wait()
	_, _ = s.out.WriteString(leaveScreen) // nobody is left to tell
	if s.state != nil {
		_ = term.Restore(int(s.in.Fd()), s.state)
	}
}
