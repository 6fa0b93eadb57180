package access

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
)

// File is an access file that may change. It is used by one goroutine at a time.
type File struct {
	// Path is where it is.
	Path string

	isRead bool
	seen   [sha256.Size]byte // of what was read last, good or bad
}

// Read gives the table when the file says something new; nil with no error: it does not. What cannot be used is an error,
// once for each thing that was read.
func (f *File) Read() (*Table, error) {
	text, err := f.read()
	if err != nil {
		text = []byte(err.Error()) // a fault that stays the same is told once
	}
	seen := sha256.Sum256(text)
	if f.isRead && seen == f.seen {
		return nil, nil //nolint:nilnil // nothing new is an answer
	}
	f.isRead, f.seen = true, seen
	if err != nil {
		return nil, err
	}
	t, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	return t, nil
}

func (f *File) read() ([]byte, error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, MaxFile+1))
}
