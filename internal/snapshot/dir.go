package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

const (
	prefix   = "index-"
	suffix   = ".kvsnap"
	tempName = "index.tmp"
	lockName = "lock"
	keep     = 2 // files
)

// Dir is a folder with snapshots. Open it, close it in the end; used by one goroutine at a time.
type Dir struct {
	path        string
	fingerprint uint64
	lock        *os.File
	next        uint64 // number of the next file: above every one that was ever seen
}

// Open makes the folder if need be and takes it for this process. secret is the deployment's.
func Open(path, secret string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(lock); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: another process uses this folder: %w", lock.Name(), err), lock.Close())
	}
	d := &Dir{path: path, fingerprint: fingerprint(secret), lock: lock, next: 1}
	numbers, err := d.numbers()
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if len(numbers) > 0 {
		d.next = numbers[0] + 1
	}
	return d, nil
}

// fingerprint tells deployments apart whose block ids are not the same.
func fingerprint(secret string) uint64 {
	return uint64(block.Identity{Model: "snapshot", BlockSize: 1, Secret: secret}.Keyspace())
}

// Close gives the folder back.
func (d *Dir) Close() error { return d.lock.Close() }

// numbers lists the files, newest first.
func (d *Dir) numbers() ([]uint64, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	var out []uint64
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), prefix)
		if !ok {
			continue
		}
		if name, ok = strings.CutSuffix(name, suffix); !ok {
			continue
		}
		if n, err := strconv.ParseUint(name, 16, 63); err == nil && fileName(n) == e.Name() {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out, nil
}

func fileName(n uint64) string { return fmt.Sprintf("%s%016x%s", prefix, n, suffix) }

// Written is what Write wrote.
type Written struct {
	Totals

	Path  string
	Bytes int64
}

// Write saves an oracle into a new file, and then deletes all but the newest two. ctx ends it between two frames.
func (d *Dir) Write(ctx context.Context, o *oracle.Oracle, now time.Time) (Written, error) {
	temp := filepath.Join(d.path, tempName)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return Written{}, err
	}
	w, err := write(ctx, f, d.fingerprint, o, now)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return Written{}, errors.Join(err, os.Remove(temp))
	}
	w.Path = filepath.Join(d.path, fileName(d.next))
	if err := os.Rename(temp, w.Path); err != nil {
		return Written{}, err
	}
	d.next++
	return w, errors.Join(d.sync(), d.prune())
}

// Write writes what a file would have, for who keeps it elsewhere. secret is the deployment's. ctx ends it between two frames.
func Write(ctx context.Context, to io.Writer, secret string, o *oracle.Oracle, now time.Time) (Written, error) {
	return write(ctx, to, fingerprint(secret), o, now)
}

// write writes the contents of a file.
func write(ctx context.Context, to io.Writer, fingerprint uint64, o *oracle.Oracle, now time.Time) (Written, error) {
	c := &counting{ctx: ctx, to: to}
	b := bufio.NewWriterSize(c, 256<<10)
	e, err := newEncoder(b, fingerprint, now)
	if err != nil {
		return Written{}, err
	}
	if err := o.Save(e); err != nil {
		return Written{}, err
	}
	if err := errors.Join(e.end(), b.Flush()); err != nil {
		return Written{}, err
	}
	return Written{Totals: e.totals, Bytes: c.n}, nil
}

// counting counts what goes to a writer, until its context is over.
type counting struct {
	ctx context.Context //nolint:containedctx // an io.Writer has no other way to be told
	to  io.Writer
	n   int64
}

// Write implements io.Writer.
func (c *counting) Write(b []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.to.Write(b)
	c.n += int64(n)
	return n, err
}

// sync makes a rename last.
func (d *Dir) sync() error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// prune deletes old files.
func (d *Dir) prune() error {
	numbers, err := d.numbers()
	if err != nil {
		return err
	}
	for _, n := range numbers[min(keep, len(numbers)):] {
		if e := os.Remove(filepath.Join(d.path, fileName(n))); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Loaded is what Load did.
type Loaded struct {
	Totals

	Path    string    // empty: there was nothing to load
	Saved   time.Time // when it was written, by that process's clock
	Shown   int       // blocks that are in the index now
	Refused []error   // newer files that could not be used, each by its name
}

// Load puts the newest file that is whole into an oracle that nobody has spoken to.
func (d *Dir) Load(ctx context.Context, o *oracle.Oracle, now time.Time) (Loaded, error) {
	var l Loaded
	numbers, err := d.numbers()
	if err != nil {
		return l, err
	}
	for _, n := range numbers {
		if err := context.Cause(ctx); err != nil {
			return l, err
		}
		path := filepath.Join(d.path, fileName(n))
		err := load(&l, func() (io.ReadCloser, error) { return os.Open(path) }, d.fingerprint, o, now)
		if err == nil {
			l.Path = path
			return l, nil
		}
		l.Refused = append(l.Refused, fmt.Errorf("%s: %w", path, err))
	}
	return l, nil
}

// Load is Dir.Load for one that is kept elsewhere; open is called twice. An error says that nothing of it is in the oracle.
func Load(open func() (io.ReadCloser, error), secret string, o *oracle.Oracle, now time.Time) (Loaded, error) {
	var l Loaded
	err := load(&l, open, fingerprint(secret), o, now)
	return l, err
}

// load reads a file twice: once to see that it is whole, and once to build from it.
func load(l *Loaded, open func() (io.ReadCloser, error), fingerprint uint64, o *oracle.Oracle, now time.Time) error {
	totals, err := read(open, fingerprint, func(header) target { return ignore{} })
	if err != nil {
		return err
	}
	var r *oracle.Restoring
	_, err = read(open, fingerprint, func(h header) target {
		l.Saved = h.written
		r = o.Restore(h.written, now)
		return r
	})
	if r == nil {
		return err
	}
	if err != nil {
		r.Abort()
		return err
	}
	l.Totals, l.Shown = totals, r.Commit()
	return nil
}

// read reads it once.
func read(open func() (io.ReadCloser, error), fingerprint uint64, begin func(header) target) (t Totals, err error) {
	f, err := open()
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return decode(f, fingerprint, begin)
}

// ignore is for a look at a file.
type ignore struct{}

// Worker implements target.
func (ignore) Worker(*oracle.SavedWorker) error { return nil }

// Guess implements target.
func (ignore) Guess(*oracle.SavedGuess) func(oracle.BlockRun) { return func(oracle.BlockRun) {} }

// Rank implements target.
func (ignore) Rank(*oracle.SavedRank, *[fleet.NumTiers]oracle.Digest) func(oracle.BlockRun) {
	return func(oracle.BlockRun) {}
}
