package prompt

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
)

// TestParseAllocatesNoBody: a long body in pieces is read where it lies. What is held besides is the longest string that lies in two
// of them, and where the text is.
func TestParseAllocatesNoBody(t *testing.T) {
	const pieces, long = 24, 62_000
	one := []byte(`{"model":"m","tools":[{}],"messages":[{"role":"user","content":"` + strings.Repeat("x", 1000) + `"}`)
	for more := []byte(`,{"role":"user","content":"` + strings.Repeat("y", 1000) + `"}`); len(one)+len(more) < pieces*long-2; {
		one = append(one, more...)
	}
	one = append(one, "]}"...)
	var body [][]byte
	for len(one) > 0 {
		n := min(long, len(one))
		body, one = append(body, bytes.Clone(one[:n])), one[n:]
	}
	var p Parser
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const times = 4
	for range times {
		if r, err := p.Parse(Chat, body, limits); err != nil || length(r.Text) < pieces*long*9/10 {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	each := (after.TotalAlloc - before.TotalAlloc) / times
	if most := uint64(pieces * long / 16); each > most {
		t.Errorf("a body of %d bytes in %d pieces allocates %d, want at most %d", length(body), len(body), each, most)
	}
	t.Logf("a body of %d bytes allocates %d", length(body), each)
}
