package zmtp

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// leaksNothing checks at the test's end, after its sockets were closed, that none of their goroutines is left.
func leaksNothing(t *testing.T) {
	t.Cleanup(func() {
		if left := ours(patience); left != "" {
			t.Errorf("goroutines left:\n%s", left)
		}
	})
}

// ours waits for the goroutines of this package's sockets to end, and returns those that do not.
func ours(patience time.Duration) string {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(patience)
	for {
		buf := make([]byte, 4<<20)
		var left []string
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "zmtp.(*Socket)") || strings.Contains(g, "zmtp.(*conn)") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return ""
		}
		select {
		case <-ticker.C:
		case <-deadline:
			return strings.Join(left, "\n\n")
		}
	}
}
