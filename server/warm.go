package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/kvoracle/kvoracle/internal/snapshot"
)

const (
	// saveSoon is how long after an operator's change the index is saved: a worker that was removed must not come back by a
	// crash.
	saveSoon = time.Second
	// lastSave bounds the save at the end, should the disk hang.
	lastSave = 10 * time.Second
)

// warm keeps what the oracle knows in a folder, so that the next process begins where this one ends. A nil one keeps
// nothing. Only its run uses the folder, but for what the journal has there.
type warm struct {
	s      *Server
	dir    *snapshot.Dir
	filed  chan struct{} // closed when what was saved is in force
	loaded chan struct{} // closed when what the log has since is, too
	ended  chan struct{} // closed when nothing is saved any more
	soon   chan struct{} // holds one if a save is due before its time
}

// openWarm takes the folder, if there is to be one.
func (s *Server) openWarm() (*warm, error) {
	if s.cfg.DataDir == "" {
		s.health.isLoaded = true
		return nil, nil //nolint:nilnil // see the type
	}
	dir, err := snapshot.Open(s.cfg.DataDir, s.cfg.Secret)
	if err != nil {
		return nil, fmt.Errorf("server: DataDir: %w", err)
	}
	if s.journal == nil { // one that was kept there before would be older than what is saved from now on
		if err := os.RemoveAll(s.cfg.logDir()); err != nil {
			return nil, errors.Join(fmt.Errorf("server: DataDir: %w", err), dir.Close())
		}
	}
	return &warm{s: s, dir: dir, filed: make(chan struct{}), loaded: make(chan struct{}), ended: make(chan struct{}), soon: make(chan struct{}, 1)}, nil
}

func (w *warm) close() error {
	if w == nil {
		return nil
	}
	return w.dir.Close()
}

// wait holds a call that changes the fleet until what was saved is in force, which the change is newer than.
func (w *warm) wait(ctx context.Context) error {
	if w == nil {
		return nil
	}
	select {
	case <-w.loaded:
		return nil
	default:
	}
	select {
	case <-w.loaded:
		return nil
	case <-w.s.going:
		return drained()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// changed says that an operator has changed the fleet.
func (w *warm) changed() {
	if w == nil {
		return
	}
	select {
	case w.soon <- struct{}{}:
	default: // it is due already
	}
}

// run loads, then saves now and then, and once more when it is over, when no stream is open any more.
func (w *warm) run(over <-chan struct{}) {
	if w == nil {
		return
	}
	defer close(w.ended)
	canSave := true
	if !w.s.replica.Seeded(over) { // what other replicas keep is newer than what was saved here
		canSave = w.load()
	}
	close(w.filed)
	if w.s.journal != nil {
		select {
		case <-w.s.replica.Replayed():
		case <-over:
		}
	}
	close(w.loaded)
	w.s.health.loaded()
	if !canSave {
		return
	}
	next := time.NewTimer(w.s.cfg.SnapshotInterval)
	defer next.Stop()
	due := time.Now().Add(w.s.cfg.SnapshotInterval)
	for {
		select {
		case <-w.soon:
			if at := time.Now().Add(saveSoon); at.Before(due) {
				due = at
				next.Reset(saveSoon)
			}
		case <-next.C:
			w.saveAndTrim(context.Background())
			due = time.Now().Add(w.s.cfg.SnapshotInterval)
			next.Reset(w.s.cfg.SnapshotInterval)
		case <-over:
			w.last()
			return
		}
	}
}

// load puts the newest good file in force. A folder that cannot be read is no reason not to serve; it is one not to write
// there.
func (w *warm) load() bool {
	ctx, start := context.Background(), time.Now()
	l, err := w.dir.Load(ctx, w.s.oracle, start)
	for _, why := range l.Refused {
		w.s.tel.Loaded("refused")
		w.s.log.LogAttrs(ctx, slog.LevelError, "a saved index cannot be used", slog.String("error", why.Error()))
	}
	switch {
	case err != nil:
		w.s.tel.Loaded("failed")
		w.s.log.LogAttrs(ctx, slog.LevelError, "the saved index cannot be read; nothing will be saved", slog.String("error", err.Error()))
	case l.Path == "":
		w.s.tel.Loaded("nothing")
		w.s.log.LogAttrs(ctx, slog.LevelInfo, "no saved index")
	default:
		w.s.tel.Loaded("loaded")
		w.s.log.LogAttrs(ctx, slog.LevelInfo, "saved index loaded", slog.String("file", l.Path), slog.Time("saved", l.Saved),
			slog.Int("workers", l.Workers), slog.Int("ranks", l.Ranks), slog.Int("blocks", l.Shown), slog.Duration("took", time.Since(start)))
	}
	return err == nil
}

// saveAndTrim saves, and forgets the log up to what is saved.
func (w *warm) saveAndTrim(ctx context.Context) {
	mark, isLogged := w.s.replica.Mark()
	if w.save(ctx) && isLogged {
		w.s.replica.Trim(mark)
	}
}

func (w *warm) save(ctx context.Context) (ok bool) {
	start := time.Now()
	got, err := w.dir.Write(ctx, w.s.oracle, start)
	took := time.Since(start)
	w.s.tel.Saved(err == nil, got.Bytes, took)
	if err != nil {
		w.s.log.LogAttrs(ctx, slog.LevelError, "the index was not saved", slog.String("error", err.Error()))
		return false
	}
	w.s.log.LogAttrs(ctx, slog.LevelDebug, "index saved", slog.String("file", got.Path), slog.Int("workers", got.Workers),
		slog.Int("blocks", got.Blocks), slog.Int64("bytes", got.Bytes), slog.Duration("took", took))
	return true
}

// last saves what the streams have left behind. A disk that hangs does not keep the process.
func (w *warm) last() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), lastSave, errors.New("the server has waited long enough"))
	done := make(chan struct{})
	go func() {
		defer cancel()
		defer close(done)
		w.saveAndTrim(ctx)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(time.Second): // between two writes it would have noticed
		w.s.log.LogAttrs(context.Background(), slog.LevelError, "the index was not saved in time")
	}
}
