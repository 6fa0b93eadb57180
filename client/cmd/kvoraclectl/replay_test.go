package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// chats is a log of conversations as text: three in turn, each request with all of the former ones.
func chats(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	talks := make([]string, 3)
	for i := range 90 {
		k := i % len(talks)
		if i%30 < 3 {
			talks[k] = fmt.Sprintf(`{"role":"system","content":%q}`, strings.Repeat(fmt.Sprintf("rule %d. ", i), 300))
		}
		talks[k] += fmt.Sprintf(`,{"role":"user","content":%q}`, strings.Repeat(fmt.Sprintf("question %d. ", i), 20))
		fmt.Fprintf(&b, `{"timestamp":%d,"messages":[%s],"max_tokens":%d,"session_id":"s%d","delay":500}`+"\n", i*900, talks[k], 20+i%7*10, i/30*10+k)
	}
	path := filepath.Join(t.TempDir(), "log.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReplay(t *testing.T) {
	log, page := chats(t), filepath.Join(t.TempDir(), "page.html")
	code, out, errs := ctl(t, "replay", log, "--engines", "2", "--loads", "0.5,0.9", "--policies", "kvoracle,sglang,random,informed", "--html", page)
	if code != 0 {
		t.Fatalf("%d\n%s%s", code, out, errs)
	}
	for _, want := range []string{"90 requests on 2 engines (8b)", "whose own speed is load", "load 0.5\n", "load 0.9\n", "kvoracle", "SGLang, SMG", "random", "informed greedy", "Plots: " + page} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "llm-d") || strings.Contains(out, "question") || strings.Contains(out, "NaN") {
		t.Errorf("the output has what it should not:\n%s", out)
	}
	if !strings.Contains(errs, "13 of 13 runs") { // a scale, four policies at two loads, and their capacities
		t.Errorf("progress:\n%s", errs)
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(html), "<svg "); n != 5 {
		t.Errorf("%d pictures", n)
	}
	if strings.Contains(string(html), "question") {
		t.Error("the page has the prompts")
	}

	// Sessions instead of times, no page, no search, nothing on the error stream.
	code, out, errs = ctl(t, "replay", log, "--engines", "1", "--loads", "1", "--policies", "kvoracle,random", "--sessions", "--no-capacity", "--html", "", "--quiet", "--class", "70b")
	if code != 0 || !strings.Contains(out, "users.") || errs != "" || strings.Contains(out, "Plots") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
}

// A fleet of which half is slow is worth less than one that is not: load 1 says so.
func TestReplayOfMixedSpeed(t *testing.T) {
	log := chats(t)
	full := func(args ...string) (times float64) {
		code, out, errs := ctl(t, append([]string{"replay", log, "--engines", "2", "--loads", "0.5", "--policies", "kvoracle", "--no-capacity", "--html", "", "--quiet"}, args...)...)
		_, after, _ := strings.Cut(out, "Load 1 is ")
		if _, err := fmt.Sscanf(after, "%g times", &times); code != 0 || err != nil {
			t.Fatalf("%d, %v\n%s%s", code, err, out, errs)
		}
		return times
	}
	if even, mixed := full(), full("--speeds", "1,0.2"); !(mixed < 0.8*even) {
		t.Errorf("load 1 is %v times the log's speed with two fast workers, %v with one of them at a fifth", even, mixed)
	}
}

func TestReplayRefuses(t *testing.T) {
	log := chats(t)
	for want, args := range map[string][]string{
		"no such file":                {"replay", "missing.jsonl"},
		`--policies: got "best"`:      {"replay", log, "--policies", "kvoracle,best"},
		"--loads: got -1":             {"replay", log, "--loads=-1"},
		"--engines: got 0":            {"replay", log, "--engines", "0"},
		"--speeds: got 2":             {"replay", log, "--speeds", "1,0.4"},
		"--speeds: got 0":             {"replay", log, "--engines", "2", "--speeds", "1,0"},
		"BlockSize":                   {"replay", log, "--block-size=-5", "--html", ""},
		"no request that is measured": {"replay", long(t), "--html", "", "--quiet"},
	} {
		if code, out, errs := ctl(t, args...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d, want 1 and %q\n%s%s", args, code, want, out, errs)
		}
	}
}

// long is a log whose only request is longer than any engine's memory.
func long(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "long.jsonl")
	line := fmt.Sprintf(`{"timestamp":0,"input_length":600000,"output_length":1,"hash_ids":[%s0],"block_size":60000}`, strings.Repeat("1,", 9))
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
