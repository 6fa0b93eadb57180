package policy

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata")

// TestTranscripts replays testdata/*.txt. A line that starts with "> " is an answer; every other one is a comment, is
// empty, or is a command:
//
//	block N                  tokens in a block from here on; lengths may be given in blocks, as "10b"
//	workers N [field=value]  a new fleet w0..wN-1, all alike
//	worker wI field=value    change one; fields are those of Candidate in lower case
//	route field=value        choose: prompt, out, seed, head, policy; "price" is that of prefill, "shared" the head that all
//	                         prompts like it have
//	  times=N                do it N times and print who was chosen and why
//	  book                   book each on the target chosen, as the oracle would
//	  free                   and end it before the next
//	  explain                print the terms of all candidates in order
//	  costs                  print only what was compared
//	done wI                  the prefills on a worker end, their shared heads are cached from now on
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			w := world{model: DefaultCostModel(), block: 1}
			var out strings.Builder
			for line := range strings.SplitSeq(strings.TrimRight(string(text), "\n"), "\n") {
				if strings.HasPrefix(line, ">") {
					continue
				}
				out.WriteString(line + "\n")
				if f := strings.Fields(line); len(f) > 0 && f[0] != "#" {
					if err := w.do(f, &out); err != nil {
						t.Fatalf("%s: %v", line, err)
					}
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got := out.String(); got != string(text) {
				t.Errorf("answers differ; rerun with -update and review the diff. Got:\n%s", got)
			}
		})
	}
}

// world is a fleet with just enough bookkeeping to route repeatedly.
type world struct {
	model CostModel
	block int
	fleet []Candidate
	heads []int // by worker: shared head of the prompts booked there
	turn  uint64
}

func (w *world) do(f []string, out *strings.Builder) error {
	args, flags := map[string]string{}, map[string]bool{}
	for _, a := range f[1:] {
		if k, v, ok := strings.Cut(a, "="); ok {
			args[k] = v
		} else {
			flags[a] = true
		}
	}
	number := func(key string, def float64) float64 {
		v, ok := args[key]
		if !ok {
			return def
		}
		delete(args, key)
		digits, isBlocks := strings.CutSuffix(v, "b")
		n, err := strconv.ParseFloat(digits, 64)
		if err != nil {
			args[key] = v // left over, and refused below
		}
		if isBlocks {
			n *= float64(w.block)
		}
		return n
	}
	edit := func(c *Candidate) {
		for t, key := range []string{"cached", "host", "disk", "remote"} {
			c.Cached[t] = int(number(key, float64(c.Cached[t])))
		}
		c.Expected = int(number("expected", float64(c.Expected)))
		c.Prefilling, c.Decoding = int(number("prefilling", float64(c.Prefilling))), int(number("decoding", float64(c.Decoding)))
		c.InFlight = int(number("inflight", float64(c.Prefilling+c.Decoding)))
		c.PendingPrefill, c.ActiveTokens = number("pending", c.PendingPrefill), number("active", c.ActiveTokens)
		c.PendingTokens, c.HeldTokens = number("pendingtokens", c.PendingTokens), number("heldtokens", c.HeldTokens)
		c.Waiting, c.Shared = int(number("waiting", float64(c.Waiting))), int(number("shared", float64(c.Shared)))
		c.MatchedAt, c.LastCold = uint64(number("matchedat", float64(c.MatchedAt))), uint64(number("lastcold", float64(c.LastCold)))
		c.RecentWork = number("recent", c.RecentWork)
		c.KVUsed, c.LastChosen = number("kvused", c.KVUsed), uint64(number("lastchosen", float64(c.LastChosen)))
		if again, returns := number("again", -1), number("returns", -1); again >= 0 || returns >= 0 {
			m := *c.Cost
			m.Again, m.Returns, c.Cost = max(again, 0), max(returns, 0), &m
		}
		c.SameSession = c.SameSession != flags["session"]
	}
	switch f[0] {
	case "block":
		w.block, _ = strconv.Atoi(f[1])
		return nil
	case "workers":
		n, _ := strconv.Atoi(f[1])
		proto := Candidate{KVUsed: -1, Cost: &w.model}
		edit(&proto)
		w.fleet, w.heads, w.turn = slices.Repeat([]Candidate{proto}, n), make([]int, n), 0
		for i := range w.fleet {
			w.fleet[i].Target = target(i)
		}
	case "worker", "done":
		i, err := strconv.Atoi(strings.TrimPrefix(f[1], "w"))
		if err != nil || i >= len(w.fleet) {
			return fmt.Errorf("no worker %s", f[1])
		}
		if f[0] == "worker" {
			edit(&w.fleet[i])
			break
		}
		c := &w.fleet[i]
		c.Decoding, c.Prefilling, c.PendingPrefill = c.InFlight, 0, 0
		c.Cached[0], c.Expected = max(c.Cached[0], w.heads[i]), 0
	case "route":
		req := Request{PromptTokens: int(number("prompt", 0)), ExpectedOutput: number("out", 200), Seed: uint64(number("seed", 0))}
		req.Head = uint64(number("head", 0))
		req.Prices.Prefill = number("price", 1)
		name, times, shared := "least_time", int(number("times", 1)), int(number("shared", 0))
		if v, ok := args["policy"]; ok {
			name = v
			delete(args, "policy")
		}
		p, ok := ByName(name)
		if !ok {
			return fmt.Errorf("no policy %s", name)
		}
		w.route(out, p, req, times, shared, flags)
	default:
		return errors.New("no such command")
	}
	if len(args) > 0 {
		return fmt.Errorf("unknown or no number: %v", args)
	}
	return nil
}

func (w *world) route(out *strings.Builder, p Policy, req Request, times, shared int, flags map[string]bool) {
	chosen, reasons := make([]int, len(w.fleet)), make([]int, PolicyOrder+1)
	var d Decision
	for range times {
		p.Choose(&req, w.fleet, &d)
		chosen[d.Best]++
		reasons[d.Reason]++
		req.Seed, req.Turn = req.Seed+1, req.Turn+1
		if !flags["book"] {
			continue
		}
		w.turn++
		c, before := &w.fleet[d.Best], w.fleet[d.Best]
		s := &d.Scores[d.Best]
		c.InFlight, c.Prefilling = c.InFlight+1, c.Prefilling+1
		c.PendingPrefill += w.model.PrefillTime(s.Uncached, req.PromptTokens-s.Uncached)
		c.ActiveTokens += float64(req.PromptTokens)
		if flags["free"] {
			*c = before
		}
		c.LastChosen = w.turn
		w.heads[d.Best] = max(w.heads[d.Best], shared)
		c.Expected = max(c.Expected, w.heads[d.Best]-c.Cached[0])
	}

	if times == 1 {
		fmt.Fprintf(out, "> w%d %v, order", d.Best, d.Reason)
		for _, i := range d.Order {
			fmt.Fprintf(out, " w%d", i)
		}
		out.WriteString("\n")
	} else {
		out.WriteString(">")
		for i, n := range chosen {
			fmt.Fprintf(out, " w%d=%d", i, n)
		}
		fmt.Fprintf(out, " max/mean=%.2f;", float64(slices.Max(chosen)*len(chosen))/float64(times))
		for r, n := range reasons {
			if n > 0 {
				fmt.Fprintf(out, " %v=%d", Reason(r), n)
			}
		}
		out.WriteString("\n")
	}
	if flags["costs"] {
		out.WriteString(">")
		for _, i := range d.Order {
			fmt.Fprintf(out, " w%d=%.6g", i, d.Scores[i].Cost)
		}
		out.WriteString("\n")
	}
	if flags["explain"] {
		fmt.Fprintf(out, ">     %9s %9s %9s %9s %9s %9s %9s %9s %9s %9s %9s %8s\n", "queue", "prefill", "fleet", "evict", "stay", "decode",
			"transfer", "memory", "batch", "cost", "ttft", "uncached")
		for _, i := range d.Order {
			s := d.Scores[i]
			fmt.Fprintf(out, "> w%-2d %9.6f %9.6f %9.6f %9.6f %9.6f %9.6f %9.6f %9.6f %9.6f %9.6f %9.6f %8d\n", i, s.Terms.Queue, s.Terms.Prefill,
				s.Terms.Fleet, s.Terms.Evict, s.Terms.Stay, s.Terms.Decode, s.Terms.Transfer, s.Terms.Memory, s.Terms.Batch, s.Cost, s.TTFT, s.Uncached)
		}
	}
}
