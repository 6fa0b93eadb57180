package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Config says where a journal is, and how large.
type Config struct {
	// Dir is a folder of the journal's own; it is made if need be.
	Dir string
	// MaxBytes bounds its files, above 0.
	MaxBytes int64
	// SyncEvery is how often what was written is made to outlive the machine; default 10 s.
	SyncEvery time.Duration
	// Log takes what the server says: its warnings and errors, and the rest at debug.
	Log *slog.Logger
}

const (
	maxMemory = 16 << 20         // of JetStream's streams in memory: there are none, but followers' states
	startMost = 30 * time.Second // to read what is in the folder, and be there
)

// Journal is a server on a folder. Make it with New, then Start it.
//
// NATS writes no more to a stream that it could not write to once, as when the disk was full, until it starts again. So it is
// started again then, after a pause, as often as it takes.
type Journal struct {
	cfg    Config
	closed chan struct{}
	ended  chan struct{} // closed when nothing is started any more

	mu sync.Mutex
	s  *server.Server // nil while none runs
}

// How long a server that cannot write is left alone before the next. Who was well for longer than the most is new to trouble.
const leastPause, mostPause = time.Second, 30 * time.Second

// New makes a journal that does not run yet.
func New(cfg Config) *Journal {
	if cfg.SyncEvery <= 0 {
		cfg.SyncEvery = 10 * time.Second
	}
	return &Journal{cfg: cfg, closed: make(chan struct{}), ended: make(chan struct{})}
}

// Start opens the folder and returns when the server is there. The error names the folder and what is wrong with it; then
// nothing runs.
func (j *Journal) Start() error {
	l, err := j.start()
	if err != nil {
		return err
	}
	go j.watch(l)
	return nil
}

// watch starts the server again whenever it cannot write any more.
func (j *Journal) watch(l *lines) {
	defer close(j.ended)
	pause, since := leastPause, time.Now()
	for {
		if l != nil {
			select {
			case <-l.stuck:
			case <-j.closed:
				return
			}
		}
		j.stop() // at once, so that nobody waits for what it will not acknowledge
		if time.Since(since) > 2*mostPause {
			pause = leastPause
		}
		select {
		case <-time.After(pause):
		case <-j.closed:
			return
		}
		pause = min(2*pause, mostPause)
		var err error
		if l, err = j.start(); err != nil {
			j.cfg.Log.LogAttrs(context.Background(), slog.LevelError, "journal", slog.Any("error", err))
			continue
		}
		since = time.Now()
	}
}

func (j *Journal) start() (*lines, error) {
	c := &j.cfg
	if err := os.MkdirAll(c.Dir, 0o700); err != nil { // of which NATS would say only that it does not start
		return nil, fmt.Errorf("journal: %w", err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "kvoracle", DontListen: true, NoSigs: true, DisableJetStreamBanner: true,
		JetStream: true, StoreDir: c.Dir, JetStreamMaxStore: c.MaxBytes, JetStreamMaxMemory: maxMemory, SyncInterval: c.SyncEvery,
	})
	if err != nil {
		return nil, fmt.Errorf("journal: %s: %w", c.Dir, err)
	}
	l := &lines{log: c.Log, failed: make(chan struct{}), stuck: make(chan struct{})}
	s.SetLoggerV2(l, c.Log.Enabled(context.Background(), slog.LevelDebug), false, false)
	started := make(chan bool, 1)
	go func() {
		s.Start()
		started <- s.ReadyForConnections(startMost)
	}()
	select {
	case <-l.failed:
		err = errors.New(l.why)
	case ok := <-started:
		if ok && s.JetStreamEnabled() {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.s = s
			return l, nil
		}
		err = errors.New("the server does not start")
	}
	s.Shutdown()
	s.WaitForShutdown()
	return nil, fmt.Errorf("journal: %s: %w", c.Dir, err)
}

// stop ends the server that runs, if one does.
func (j *Journal) stop() {
	j.mu.Lock()
	s := j.s
	j.s = nil
	j.mu.Unlock()
	if s != nil {
		s.Shutdown()
		s.WaitForShutdown()
	}
}

// InProcessConn opens a connection to the server; it has the form that a NATS client wants.
func (j *Journal) InProcessConn() (net.Conn, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.s == nil {
		return nil, errors.New("journal: no server runs")
	}
	return j.s.InProcessConn()
}

// Close ends one that was started, with all its connections, and returns when its files are closed.
func (j *Journal) Close() {
	close(j.closed)
	<-j.ended
	j.stop()
}

// lines passes on what the server says. It calls nothing of the server's, which may hold its locks.
type lines struct {
	log    *slog.Logger
	once   sync.Once
	failed chan struct{} // closed when it cannot go on
	why    string        // then
	jammed sync.Once
	stuck  chan struct{} // closed when a stream cannot be written to any more
}

var _ server.Logger = (*lines)(nil)

func (l *lines) say(level slog.Level, format string, v []any) {
	if ctx := context.Background(); l.log.Enabled(ctx, level) {
		l.log.LogAttrs(ctx, level, "journal", slog.String("says", fmt.Sprintf(format, v...)))
	}
}

// Noticef implements server.Logger.
func (l *lines) Noticef(format string, v ...any) { l.say(slog.LevelDebug, format, v) }

// Warnf implements server.Logger.
func (l *lines) Warnf(format string, v ...any) { l.say(slog.LevelWarn, format, v) }

// Errorf implements server.Logger.
func (l *lines) Errorf(format string, v ...any) {
	l.say(slog.LevelError, format, v)
	if strings.Contains(format, "critical write error") { // the only word that NATS has for it
		l.jammed.Do(func() { close(l.stuck) })
	}
}

// Debugf implements server.Logger.
func (l *lines) Debugf(format string, v ...any) { l.say(slog.LevelDebug, format, v) }

// Tracef implements server.Logger.
func (l *lines) Tracef(format string, v ...any) { l.say(slog.LevelDebug, format, v) }

// Fatalf implements server.Logger. What NATS's own logger would end the process for ends the start.
func (l *lines) Fatalf(format string, v ...any) {
	l.say(slog.LevelError, format, v)
	l.once.Do(func() {
		l.why = fmt.Sprintf(format, v...)
		close(l.failed)
	})
}
