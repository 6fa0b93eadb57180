package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
	"github.com/kvoracle/kvoracle/server"
)

// liveWithOps starts a server with an operator's port and gives both addresses.
func liveWithOps(t *testing.T, cfg server.Config) (addr, ops string) {
	t.Helper()
	cfg.OpsListen = "127.0.0.1:0"
	cfg.StreamGrace, cfg.WorkerLease, cfg.Lease = time.Hour, time.Hour, time.Hour // however slow the machine
	s := liveWith(t, cfg)
	return s.Addr().String(), s.OpsAddr().String()
}

// twoWorkers tells an oracle of two workers, of which w1 holds two blocks of a prompt and w2 one.
func twoWorkers(t *testing.T, addr string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "case.txt")
	text := "RB w1 e1 s1 +[A AB]\n----\nack s1 fresh held=2 stored=2\n\nRB w2 e1 s1 +[A]\n----\nack s1 fresh held=1 stored=1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := ctl(t, "--server", addr, "script", file); code != 0 {
		t.Fatalf("script: %d\n%s%s", code, out, errs)
	}
}

// TestTopCounts: what is shown between two looks is what was asked between them.
func TestTopCounts(t *testing.T) {
	addr, ops := liveWithOps(t, server.Config{})
	twoWorkers(t, addr)
	var c cli
	e := &env{ctx: t.Context(), cli: &c}
	conn, err := e.dialTo(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	from, err := newTotals("http://"+ops+"/metrics", &c.Security)
	if err != nil {
		t.Fatal(err)
	}
	l := &looker{fleet: kvoraclev1.NewFleetServiceClient(conn), totals: from, sort: "decisions", timeout: time.Minute}
	next := func() *frame {
		t.Helper()
		f, err := l.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if f := next(); f.Decisions != 0 || f.HitShare != nil || f.NoMetrics != "" || f.Workers["ready"] != 2 || f.Targets["fresh"] != 2 {
		t.Errorf("the first look: %+v", f)
	}
	const asked = 5
	for range asked {
		if code, out, errs := ctl(t, "--server", addr, "route", "--model", "m", "--tokens", "16640-16643,16896-16899,1", "--book", "--deny", "w2"); code != 0 {
			t.Fatalf("%d\n%s%s", code, out, errs)
		}
	}
	f := next()
	if got := f.Decisions * f.Seconds; got < asked-0.01 || got > asked+0.01 {
		t.Errorf("%v decisions, want %d", got, asked)
	}
	if f.HitShare == nil || *f.HitShare < 0.88 || *f.HitShare > 0.89 { // 8 of 9 tokens
		t.Errorf("found in caches: %v, want 8 of 9", f.HitShare)
	}
	// Nobody tells their lives: those whose time is over count no more.
	if f.Booked > asked || f.Ranks[0].Worker != "w1" || f.Ranks[0].Blocks != 2 || f.Ranks[1].Decisions != 0 {
		t.Errorf("the second look: %+v", f)
	}
	f = next()
	if f.Decisions != 0 || f.HitShare != nil {
		t.Errorf("the third look, after nothing was asked: %+v", f)
	}
	// Another life of a worker begins with other counters.
	f = compare(
		&look{at: time.Unix(1, 0), workers: []*kvoraclev1.Worker{{Ranks: []*kvoraclev1.RankStatus{{Decisions: 1000}}, RegisteredAt: timestamppb.New(time.Unix(0, 0))}}},
		&look{at: time.Unix(2, 0), workers: []*kvoraclev1.Worker{{Ranks: []*kvoraclev1.RankStatus{{Decisions: 3}}, RegisteredAt: timestamppb.New(time.Unix(1, 0))}}})
	if f.Decisions != 3 {
		t.Errorf("a reborn worker: %v decisions/s", f.Decisions)
	}
}

func TestTopPrints(t *testing.T) {
	addr, ops := liveWithOps(t, server.Config{})
	twoWorkers(t, addr)
	args := []string{"--server", addr, "top", "--interval", "100ms", "--once", "--metrics"}
	code, out, errs := ctl(t, append(args, "http://"+ops+"/metrics", "--sort", "name")...)
	if code != 0 || strings.Contains(out, "\x1b") {
		t.Fatalf("%d\n%s%s", code, out, errs)
	}
	for _, want := range []string{"2 ready", "2 fresh", "found in caches -", "WORKER", "w1 ", "w2 "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if code, out, _ = ctl(t, append(args, "none")...); code != 0 || !strings.Contains(out, "not known") {
		t.Errorf("without metrics: %d\n%s", code, out)
	}
	code, out, errs = ctl(t, append(args, "none", "--json")...)
	var f frame
	if err := json.Unmarshal([]byte(out), &f); code != 0 || err != nil || len(f.Ranks) != 2 || f.Workers["ready"] != 2 || f.Server != addr {
		t.Errorf("json: %d, %v\n%s%s", code, err, out, errs)
	}
	for _, c := range [][]string{{"--interval", "1ms"}, {"--metrics", "what"}, {"--sort", "colour"}} {
		if code, _, errs := ctl(t, append([]string{"--server", addr, "top"}, c...)...); code == 0 || !strings.Contains(errs, c[0]) {
			t.Errorf("%v: %d %s", c, code, errs)
		}
	}
}

// TestTopMetricsThatAreNone: whatever answers, the tool goes on.
func TestTopMetricsThatAreNone(t *testing.T) {
	for body, want := range map[string]string{
		"kvoracle_prompt_tokens_total many": "not a page of metrics",
		"":                                  "",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		from, err := newTotals(s.URL, &securityFlags{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = from.read(t.Context()); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", body, err)
		}
		s.Close()
	}
	s, err := readSums(strings.NewReader("# HELP x y\nkvoracle_matched_tokens_total{tier=\"device\"} 3\nkvoracle_matched_tokens_total{tier=\"a b}\"} 4e2\nother 7\n"))
	if err != nil || s.matched != 403 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestTopFits: a picture has as many lines as the screen, none is wider, and names do not speak to the terminal.
func TestTopFits(t *testing.T) {
	f := &frame{Ranks: []rankRow{{Worker: "\x1b[2Jevil\u202e\n", Model: "m"}}}
	for i := range 30 {
		f.Ranks = append(f.Ranks, rankRow{Worker: strings.Repeat("w", i)})
	}
	for _, size := range [][2]int{{80, 24}, {20, 10}, {1, 2}, {200, 100}} {
		text := f.fit(size[0], size[1])
		text = strings.NewReplacer(toTop, "", "\x1b[K", "", "\x1b[J", "", inverse, "", normal, "").Replace(text)
		if strings.Contains(text, "\x1b") || strings.ContainsRune(text, '\u202e') {
			t.Errorf("%v: a name speaks to the terminal: %q", size, text)
		}
		lines := strings.Split(text, "\r\n")
		if len(lines) > size[1] {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, l := range lines {
			if n := len([]rune(l)); n > size[0] {
				t.Errorf("%v: a line of %d", size, n)
			}
		}
		if hasMore := strings.Contains(text, "and "); size[0] > 4 && size[1] < 30 && !hasMore {
			t.Errorf("%v: nothing says that there is more", size)
		}
	}
}
