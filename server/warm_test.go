package server

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/internal/journal"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// reports opens a block stream of a worker and sends batches with as many blocks as there are numbers.
func (r *rig) reports(name string, incarnation, next uint64, batches ...[]uint64) (accepted *kvoraclev1.BlocksAccepted, end func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	stream, err := r.route.ReportBlocks(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	send := func(m *kvoraclev1.ReportBlocksRequest) *kvoraclev1.ReportBlocksResponse {
		r.t.Helper()
		if err := stream.Send(m); err != nil {
			r.t.Fatal(err)
		}
		got, err := stream.Recv()
		if err != nil {
			r.t.Fatal(err)
		}
		return got
	}
	accepted = send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
		Worker:      &kvoraclev1.WorkerSpec{WorkerId: name, Model: "demo", BlockSize: 16},
		Incarnation: incarnation, NextSequence: next, HashScheme: "xxh3-64/1337", Repeats: kvoraclev1.RepeatMeaning_REPEAT_MEANING_SET,
	}}}).GetAccepted()
	for i, ids := range batches {
		seq := next + uint64(i)
		ack := send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{
			Sequence: seq, Ops: []*kvoraclev1.BlockOp{{Op: &kvoraclev1.BlockOp_Store{Store: &kvoraclev1.StoreBlocks{
				Parent: &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}}, Content: &kvoraclev1.StoreBlocks_BlockIds{BlockIds: &kvoraclev1.BlockIds{Ids: ids}},
			}}}},
		}}}).GetAck()
		if ack.GetAppliedSequence() != seq {
			r.t.Fatalf("batch %d: %v", seq, ack)
		}
	}
	return accepted, func() {
		_ = stream.CloseSend()
		cancel()
	}
}

// held is what the server believes of a worker; nil: it knows none of that name.
func (r *rig) held(name string) *kvoraclev1.Worker {
	r.t.Helper()
	all, err := r.fleet.ListWorkers(r.t.Context(), &kvoraclev1.ListWorkersRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, w := range all.GetWorkers() {
		if w.GetSpec().GetWorkerId() == name {
			return w
		}
	}
	return nil
}

// newJournal is what the program takes.
func newJournal(dir string, maxBytes int64, log *slog.Logger) Journal {
	return journal.New(journal.Config{Dir: dir, MaxBytes: maxBytes, Log: log})
}

// comes asks again until it is so, or a minute is over. Each try is a call, so nobody spins.
func (r *rig) comes(what string, isSo func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !isSo(); r.held("") {
		if time.Now().After(end) {
			r.t.Fatalf("it never came to this: %s", what)
		}
	}
}

// TestARestartBeginsWhereTheFormerProcessEnded: after an orderly end nothing has to be told again, and what an operator has
// decided stays.
func TestARestartBeginsWhereTheFormerProcessEnded(t *testing.T) {
	cfg := Config{DataDir: filepath.Join(t.TempDir(), "data")}
	r := up(t, cfg)
	r.reports("w1", 7, 1, []uint64{11, 12, 13}, []uint64{11, 12, 13, 14})
	r.worker("hand")
	r.worker("gone")
	if _, err := r.fleet.DrainWorker(t.Context(), &kvoraclev1.DrainWorkerRequest{WorkerId: "hand"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.fleet.RemoveWorker(t.Context(), &kvoraclev1.RemoveWorkerRequest{WorkerId: "gone"}); err != nil {
		t.Fatal(err)
	}
	r.stop()

	r = up(t, cfg)
	// The stream waits until all is loaded.
	accepted, end := r.reports("w1", 7, 3)
	defer end()
	if accepted.GetResumeFrom() != 3 || accepted.GetSnapshotRequired() || accepted.GetConfidence() != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH {
		t.Errorf("the reporter that goes on was answered with %v", accepted)
	}
	if n := r.held("w1").GetRanks()[0].GetDeviceBlocks(); n != 4 {
		t.Errorf("w1 holds %d blocks, want 4", n)
	}
	if w := r.held("hand"); w.GetState() != kvoraclev1.WorkerState_WORKER_STATE_DRAINING {
		t.Errorf("the one that was drained: %v", w)
	}
	if w := r.held("gone"); w != nil {
		t.Errorf("the one that was removed is back: %v", w)
	}
	r.comes("readiness", func() bool {
		code, text := r.get("/readyz")
		return code == http.StatusOK && strings.Contains(text, "index: serving\n") && strings.Contains(text, "replication: serving\n")
	})
	if n := r.counted("kvoracle.index.loads", "outcome=loaded"); n != 1 {
		t.Errorf("%d files were loaded", n)
	}
}

// TestNobodyIsSentHereBeforeTheIndexIsLoaded: not ready, and what would change the fleet waits.
func TestNobodyIsSentHereBeforeTheIndexIsLoaded(t *testing.T) {
	r := newRig(t, Config{DataDir: t.TempDir()})
	b := r.s.health
	b.serving()
	if code, text := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "index: not serving\n") {
		t.Errorf("readyz: %d, %q", code, text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.s.warm.wait(ctx); err == nil {
		t.Error("a change was let in")
	}
	b.loaded()
	b.replication(true, true)
	if code, _ := r.get("/readyz"); code != http.StatusOK {
		t.Errorf("readyz once loaded: %d", code)
	}
	if err := r.s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestADamagedFileIsNamedAndLeftOut: the server begins with nothing, and says so.
func TestADamagedFileIsNamedAndLeftOut(t *testing.T) {
	cfg := Config{DataDir: t.TempDir()}
	r := up(t, cfg)
	r.reports("w1", 7, 1, []uint64{11, 12, 13})
	r.stop()
	files, err := filepath.Glob(filepath.Join(cfg.DataDir, "*.kvsnap"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-20] ^= 1
	if err := os.WriteFile(files[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	r = up(t, cfg)
	accepted, end := r.reports("w1", 7, 2)
	defer end()
	if !accepted.GetSnapshotRequired() {
		t.Errorf("a file that is damaged was used: %v", accepted)
	}
	if !strings.Contains(r.logs.String(), files[0]) {
		t.Error("the log does not name the file")
	}
	if n := r.counted("kvoracle.index.loads", "outcome=refused"); n != 1 {
		t.Errorf("%d files were refused", n)
	}
}

// TestAFolderInUseIsNoFolder: two servers do not write over each other.
func TestAFolderInUseIsNoFolder(t *testing.T) {
	r := newRig(t, Config{DataDir: t.TempDir()})
	if s, err := New(r.s.cfg); err == nil {
		t.Errorf("a second one was made: %v", s.Close())
	} else if !strings.Contains(err.Error(), "DataDir") {
		t.Errorf("got %v", err)
	}
	if err := r.s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := New(r.s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestACutStreamLeavesNobodyBehind: where acks wait for a log, the handler of a stream that is cut with no ack waiting ends.
func TestACutStreamLeavesNobodyBehind(t *testing.T) {
	r := up(t, Config{DataDir: t.TempDir()})
	_, cut := r.reports("w1", 7, 1, []uint64{11, 12, 13})
	if n := r.s.replica.Stats().Streams; n != 1 {
		t.Fatalf("%d streams", n)
	}
	cut()
	r.comes("the stream's end", func() bool { return r.s.replica.Stats().Streams == 0 })
}

// TestSnapshotsOnly: there is no log, and one that was there is gone, since it would be older than what is saved now.
func TestSnapshotsOnly(t *testing.T) {
	cfg := Config{DataDir: t.TempDir()}
	r := up(t, cfg)
	r.reports("w1", 7, 1, []uint64{11, 12, 13})
	r.stop()
	if _, err := os.Stat(cfg.logDir()); err != nil {
		t.Fatal(err)
	}
	cfg.SnapshotsOnly = true
	r = up(t, cfg)
	if r.s.replica != nil {
		t.Error("it replicates")
	}
	if _, err := os.Stat(cfg.logDir()); !os.IsNotExist(err) {
		t.Errorf("the log is there: %v", err)
	}
	accepted, end := r.reports("w1", 7, 2)
	defer end()
	if accepted.GetResumeFrom() != 2 || accepted.GetSnapshotRequired() {
		t.Errorf("told to go on with %v", accepted)
	}
}

// TestALogThatCannotBeOpenedIsNamed: the server ends, and says what and where.
func TestALogThatCannotBeOpenedIsNamed(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0"}
	if err := os.WriteFile(cfg.logDir(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg, WithJournal(newJournal))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "DataDir") || !strings.Contains(err.Error(), cfg.logDir()) {
		t.Errorf("ended with %v", err)
	}
}
