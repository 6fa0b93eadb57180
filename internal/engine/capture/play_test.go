package capture

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// patience is how long a test waits for what must come; only a failing test waits so long.
const patience = time.Minute

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func listen(t *testing.T, kind zmtp.Type) *zmtp.Socket {
	t.Helper()
	s, err := zmtp.Listen(t.Context(), zmtp.Config{Type: kind, Endpoint: "tcp://127.0.0.1:*"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, kind zmtp.Type, to *zmtp.Socket) *zmtp.Socket {
	t.Helper()
	s, err := zmtp.Dial(t.Context(), zmtp.Config{Type: kind, Endpoint: to.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if kind == zmtp.SUB {
		if err := to.WaitPeers(within(t), 1); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// message returns the next message, passing over events.
func message(t *testing.T, s *zmtp.Socket) [][]byte {
	t.Helper()
	for {
		d, err := s.Recv(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if d.Event == nil {
			return d.Message
		}
	}
}

// golden are the frames that engines of many versions publish.
func golden(t *testing.T) (all [][][]byte) {
	t.Helper()
	f, err := os.Open("../kvevents/testdata/engine-events.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Channel string
			Frames  []string
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if line.Channel != "pub" {
			continue
		}
		var m [][]byte
		for _, h := range line.Frames {
			b, err := hex.DecodeString(h)
			if err != nil {
				t.Fatal(err)
			}
			m = append(m, b)
		}
		all = append(all, m)
	}
	if len(all) < 50 {
		t.Fatalf("%d golden messages: the file is another", len(all))
	}
	return all
}

// TestTakeAndPlay captures two publishers, plays the capture, captures that, and finds the same.
func TestTakeAndPlay(t *testing.T) {
	frames := golden(t)
	engines := []*zmtp.Socket{listen(t, zmtp.PUB), listen(t, zmtp.PUB)}
	take := func(from []*zmtp.Socket, publish func()) []byte {
		t.Helper()
		var live []Live
		for i, s := range from {
			live = append(live, Live{Source{s.Endpoint(), uint32(i)}, dial(t, zmtp.SUB, s)})
		}
		var file bytes.Buffer
		w, err := NewWriter(&file, began)
		if err != nil {
			t.Fatal(err)
		}
		go publish()
		totals, err := Take(within(t), w, live, uint64(len(frames)), nil)
		if err != nil || totals.Messages != uint64(len(frames)) {
			t.Fatalf("%+v, %v", totals, err)
		}
		for _, l := range live {
			l.Socket.Close()
		}
		return file.Bytes()
	}
	first := take(engines, func() {
		for i, m := range frames {
			_ = engines[i%2].Send(t.Context(), m) // what is missing is missed below
		}
	})
	stages := []Stage{{Publisher: listen(t, zmtp.PUB)}, {Publisher: listen(t, zmtp.PUB)}}
	done := make(chan error, 1)
	second := take([]*zmtp.Socket{stages[0].Publisher, stages[1].Publisher}, func() {
		r, err := NewReader(bytes.NewReader(first))
		if err == nil {
			_, err = Play(t.Context(), r, stages, PlayOptions{})
		}
		done <- err
	})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i, file := range [][]byte{first, second} {
		sources, records, err := readAll(file)
		if !errors.Is(err, io.EOF) || len(sources) != 2 || sources[1].Rank != 1 {
			t.Fatalf("capture %d: %v, %v", i, sources, err)
		}
		var got, want [2][]string
		for _, r := range records {
			if r.Event == 0 {
				got[r.Source] = append(got[r.Source], fmt.Sprintf("%x", r.Frames))
			}
		}
		for i, m := range frames {
			want[i%2] = append(want[i%2], fmt.Sprintf("%x", m))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("capture %d: %s", i, diff)
		}
	}
}

// TestTakeTellsOfCuts: where a publisher was gone stands between its messages.
func TestTakeTellsOfCuts(t *testing.T) {
	engine := listen(t, zmtp.PUB)
	at := engine.Endpoint()
	sub := dial(t, zmtp.SUB, engine)
	var file bytes.Buffer
	w, err := NewWriter(&file, began)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan Totals, 100)
	done := make(chan error, 1)
	go func() {
		_, err := Take(ctx, w, []Live{{Source{at, 0}, sub}}, 0, func(n Totals) { seen <- n })
		done <- err
	}()
	for life := range 2 {
		if err := engine.WaitPeers(within(t), 1); err != nil {
			t.Fatal(err)
		}
		if err := engine.Send(t.Context(), [][]byte{fmt.Append(nil, life)}); err != nil {
			t.Fatal(err)
		}
		for n := (Totals{}); n.Messages <= uint64(life); n = <-seen {
		}
		engine.Close()
		for n := (Totals{}); n.Cuts <= uint64(life); n = <-seen {
		}
		if engine, err = zmtp.Listen(t.Context(), zmtp.Config{Type: zmtp.PUB, Endpoint: at}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(engine.Close)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	_, records, err := readAll(file.Bytes())
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		if r.Event != 0 {
			got = append(got, r.Event.String())
		} else {
			got = append(got, string(r.Frames[0]))
		}
	}
	want := []string{"connected", "0", "disconnected", "connected", "1", "disconnected"}
	if diff := cmp.Diff(want, got[:min(len(want), len(got))]); diff != "" {
		t.Error(diff)
	}
}

// batches is a capture of one rank with the given sequence numbers, one a millisecond.
func batches(t *testing.T, seqs ...uint64) []byte {
	t.Helper()
	var records []Record
	for i, n := range seqs {
		records = append(records, Record{At: time.Duration(i) * time.Millisecond, Frames: [][]byte{[]byte("kv"), number8(n), fmt.Append(nil, n)}})
	}
	return record(t, []Source{{"tcp://engine:5557", 0}}, records)
}

func number8(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// TestPlayedReplays: who asks gets what was published from a number on and the end marker, in both forms; after the engine
// began anew only the new life's.
func TestPlayedReplays(t *testing.T) {
	for _, old := range []bool{false, true} {
		stage := Stage{Publisher: listen(t, zmtp.PUB), Replay: listen(t, zmtp.ROUTER)}
		sub, dealer := dial(t, zmtp.SUB, stage.Publisher), dial(t, zmtp.DEALER, stage.Replay)
		ctx, cancel := context.WithCancel(t.Context())
		r, err := NewReader(io.MultiReader(bytes.NewReader(batches(t, 7, 8, 0, 1, 2, 3)), waitFor(ctx)))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := Play(ctx, r, []Stage{stage}, PlayOptions{Steps: 3, OldReplies: old})
			done <- err
		}()
		for range 6 {
			message(t, sub)
		}
		for start, want := range map[uint64][]uint64{0: {1, 2, 3}, 3: {3}, 4: nil, 9: nil} {
			if err := dealer.Send(within(t), [][]byte{{}, number8(start)}); err != nil {
				t.Fatal(err)
			}
			for _, n := range want {
				m := [][]byte{{}, []byte("kv"), number8(n), fmt.Append(nil, n)}
				if old {
					m = append(m[:1], m[2:]...)
				}
				if diff := cmp.Diff(m, message(t, dealer)); diff != "" {
					t.Errorf("from %d: %s", start, diff)
				}
			}
			m := [][]byte{{}, {}, bytes.Repeat([]byte{0xff}, 8), {}}
			if old {
				m = m[1:]
			}
			if diff := cmp.Diff(m, message(t, dealer)); diff != "" {
				t.Errorf("end from %d: %s", start, diff)
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	}
}

// waitFor is a file that has no more bytes and no end until ctx has ended.
func waitFor(ctx context.Context) io.Reader {
	return readerFunc(func([]byte) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestPlayKeepsTime: each record has its own, at any speed; the clock is the bubble's.
func TestPlayKeepsTime(t *testing.T) {
	for speed, unit := range map[float64]time.Duration{1: time.Millisecond, 0.5: 2 * time.Millisecond, 4: time.Millisecond / 4, 0: 0} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			for i := range 10 {
				if err := wait(t.Context(), start, time.Duration(i)*time.Millisecond, speed); err != nil {
					t.Fatal(err)
				}
				if got, want := time.Since(start), time.Duration(i)*unit; got != want {
					t.Errorf("speed %v: record %d after %v, want %v", speed, i, got, want)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			if err := wait(ctx, start, time.Hour, 1e-300); !errors.Is(err, context.Canceled) {
				t.Errorf("tiny speed: %v", err)
			}
		})
	}
}

// TestPlayEnds with what is wrong with the capture, after what is good of it was played.
func TestPlayEnds(t *testing.T) {
	file := batches(t, 0, 1, 2)
	late := append(bytes.Clone(file), raw("\x01\x01late", "\x02\xff\xff\xff\xff\x0f\x01\x01\x01x")[headerSize:]...)
	for what, tt := range map[string]struct {
		file []byte
		want error
		sent uint64
	}{
		"cut":               {file[:len(file)-1], ErrCut, 2},
		"late source":       {late, ErrCorrupt, 3},
		"damaged":           {append(bytes.Clone(file), make([]byte, 9)...), ErrCorrupt, 3},
		"nothing in it":     {record(t, nil, nil), nil, 0},
		"without a message": {record(t, []Source{{}}, nil), nil, 0},
	} {
		r, err := NewReader(bytes.NewReader(tt.file))
		if err != nil {
			t.Fatal(err)
		}
		totals, err := Play(within(t), r, []Stage{{Publisher: listen(t, zmtp.PUB)}}, PlayOptions{})
		if !errors.Is(err, tt.want) || totals.Messages != tt.sent {
			t.Errorf("%s: %+v, %v, want %d messages, %v", what, totals, err, tt.sent, tt.want)
		}
	}
	r, err := NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Play(t.Context(), r, nil, PlayOptions{Speed: -1}); err == nil {
		t.Error("a negative speed was played")
	}
}

// TestHistoryIsBounded by bytes, too.
func TestHistoryIsBounded(t *testing.T) {
	h := &history{steps: 1000}
	for n := range uint64(300) {
		h.add([][]byte{nil, number8(n), make([]byte, 1<<20)})
	}
	if h.bytes > historyBytes || len(h.batches) < 200 || h.batches[len(h.batches)-1].seq != 299 {
		t.Errorf("%d batches of %d bytes", len(h.batches), h.bytes)
	}
	h.add([][]byte{nil, number8(300), make([]byte, historyBytes+1)})
	if len(h.batches) != 1 {
		t.Errorf("%d batches after one that fills it alone", len(h.batches))
	}
	h.add([][]byte{{}, {1, 2}, {}})
	h.add([][]byte{{}, number8(301)})
	if len(h.batches) != 1 {
		t.Error("what is no batch is kept")
	}
}
