package demo

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// title is a policy's name for people.
func title(policy string) string {
	if policy == "least_time" {
		return "kvoracle"
	}
	return strings.ReplaceAll(policy, "_", " ")
}

// Print writes the outcomes as a table, one column for each policy, and the first one's lead over the others.
func Print(w io.Writer, outcomes []Outcome) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(Outcome) string) {
		fmt.Fprintf(tw, "%s\t", name)
		for _, o := range outcomes {
			fmt.Fprintf(tw, "%s\t", cell(o))
		}
		fmt.Fprintln(tw)
	}
	row("", func(o Outcome) string { return title(o.Policy) })
	row("prompt tokens from cache", func(o Outcome) string { return fmt.Sprintf("%.1f %%", o.CachedShare*100) })
	row("TTFT mean", func(o Outcome) string { return duration(o.TTFT.Mean) })
	row("TTFT p50", func(o Outcome) string { return duration(o.TTFT.P50) })
	row("TTFT p99", func(o Outcome) string { return duration(o.TTFT.P99) })
	row("load imbalance (max/mean prefill)", func(o Outcome) string { return fmt.Sprintf("%.2f", o.Imbalance) })
	row("decisions", func(o Outcome) string { return fmt.Sprint(o.Decisions) })
	row("decision latency p50", func(o Outcome) string { return micros(o.DecideP50) })
	row("decision latency p99", func(o Outcome) string { return micros(o.DecideP99) })
	row("decisions/s, 8 callers", func(o Outcome) string { return fmt.Sprintf("%.0f", o.PerSecond) })
	row("caches known exactly", func(o Outcome) string { return fmt.Sprintf("%d workers", o.Verified) })
	if err := tw.Flush(); err != nil || len(outcomes) < 2 {
		return err
	}
	first := outcomes[0]
	_, err := fmt.Fprintln(w)
	for _, o := range outcomes[1:] {
		if err == nil && first.TTFT.Mean > 0 {
			_, err = fmt.Fprintf(w, "%s answers %.1f times as fast as %s in the mean (p99: %.1f), with %+.1f points more of the prompts from cache\n",
				title(first.Policy), o.TTFT.Mean/first.TTFT.Mean, title(o.Policy), o.TTFT.P99/first.TTFT.P99, (first.CachedShare-o.CachedShare)*100)
		}
	}
	return err
}

func duration(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.0f ms", s*1e3)
	}
	return fmt.Sprintf("%.2f s", s)
}

func micros(d time.Duration) string {
	return fmt.Sprintf("%.0f us", float64(d)/float64(time.Microsecond))
}
