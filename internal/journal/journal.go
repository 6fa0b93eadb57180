package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
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
type Journal struct {
	cfg Config
	s   *server.Server // nil before Start
}

// New makes a journal that does not run yet.
func New(cfg Config) *Journal {
	if cfg.SyncEvery <= 0 {
		cfg.SyncEvery = 10 * time.Second
	}
	return &Journal{cfg: cfg}
}

// Start opens the folder and returns when the server is there. The error names the folder and what is wrong with it; then
// nothing runs.
func (j *Journal) Start() error {
	c := &j.cfg
	if err := os.MkdirAll(c.Dir, 0o700); err != nil { // of which NATS would say only that it does not start
		return fmt.Errorf("journal: %w", err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "kvoracle", DontListen: true, NoSigs: true, DisableJetStreamBanner: true,
		JetStream: true, StoreDir: c.Dir, JetStreamMaxStore: c.MaxBytes, JetStreamMaxMemory: maxMemory, SyncInterval: c.SyncEvery,
	})
	if err != nil {
		return fmt.Errorf("journal: %s: %w", c.Dir, err)
	}
	l := &lines{log: c.Log, failed: make(chan struct{})}
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
			j.s = s
			return nil
		}
		err = errors.New("the server does not start")
	}
	s.Shutdown()
	s.WaitForShutdown()
	return fmt.Errorf("journal: %s: %w", c.Dir, err)
}

// InProcessConn opens a connection to the server; it has the form that a NATS client wants.
func (j *Journal) InProcessConn() (net.Conn, error) {
	if j.s == nil {
		return nil, errors.New("journal: not started")
	}
	return j.s.InProcessConn()
}

// Close ends a server that was started, with all its connections, and returns when its files are closed.
func (j *Journal) Close() {
	j.s.Shutdown()
	j.s.WaitForShutdown()
}

// lines passes on what the server says. It calls nothing of the server's, which may hold its locks.
type lines struct {
	log    *slog.Logger
	once   sync.Once
	failed chan struct{} // closed when it cannot go on
	why    string        // then
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
func (l *lines) Errorf(format string, v ...any) { l.say(slog.LevelError, format, v) }

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
