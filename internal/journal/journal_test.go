package journal_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvoracle/kvoracle/internal/journal"
)

func start(t *testing.T, dir string) *journal.Journal {
	t.Helper()
	j := journal.New(journal.Config{Dir: dir, MaxBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	if err := j.Start(); err != nil {
		t.Fatal(err)
	}
	return j
}

// stream is a stream of it by a client of its own.
func stream(t *testing.T, j *journal.Journal) (jetstream.JetStream, jetstream.Stream) {
	t.Helper()
	nc, err := nats.Connect(nats.DefaultURL, nats.InProcessServer(j), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "s", Subjects: []string{"s"}, MaxBytes: 1 << 19, Discard: jetstream.DiscardOld})
	if err != nil {
		t.Fatal(err)
	}
	return js, s
}

// TestItKeepsWhatItTook: over an end, and up to its bound.
func TestItKeepsWhatItTook(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	j := start(t, dir)
	js, _ := stream(t, j)
	for range 100 {
		if _, err := js.Publish(t.Context(), "s", make([]byte, 10_000)); err != nil {
			t.Fatal(err)
		}
	}
	j.Close()
	j = start(t, dir)
	defer j.Close()
	_, s := stream(t, j)
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st := info.State; st.LastSeq != 100 || st.Bytes > 1<<19 || st.Msgs < 40 {
		t.Errorf("it has %+v", st)
	}
}

// TestAFolderThatCannotBeUsedIsNamed: at the start, before anybody relies on it.
func TestAFolderThatCannotBeUsedIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	within := filepath.Join(t.TempDir(), "log")
	if err := os.MkdirAll(within, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(within, "jetstream"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, within} {
		err := journal.New(journal.Config{Dir: dir, MaxBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)}).Start()
		if err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if _, err := journal.New(journal.Config{}).InProcessConn(); err == nil {
		t.Error("a connection to what was not started")
	}
}
