package zmtp

import (
	"bytes"
	"sync"
)

// topics are one subscriber's wishes. A topic asked for twice must be cancelled twice, as in libzmq.
type topics struct {
	mu     sync.RWMutex
	counts map[string]int
	bytes  int
}

// maxTopicBytes bounds what one subscriber may have us remember.
const maxTopicBytes = 256 << 10

func (t *topics) add(topic []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.counts[string(topic)]
	if !ok {
		if len(t.counts) >= maxTopics || t.bytes+len(topic) > maxTopicBytes {
			return violation("more than %d topics or %d bytes of them", maxTopics, maxTopicBytes)
		}
		if t.counts == nil {
			t.counts = map[string]int{}
		}
		t.bytes += len(topic)
	}
	t.counts[string(topic)] = n + 1
	return nil
}

// cancel takes one wish back; what was not asked for is no fault.
func (t *topics) cancel(topic []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch n := t.counts[string(topic)]; n {
	case 0:
	case 1:
		delete(t.counts, string(topic))
		t.bytes -= len(topic)
	default:
		t.counts[string(topic)] = n - 1
	}
}

// match says whether any of the topics is a prefix of the frame.
func (t *topics) match(frame []byte) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.counts[""] > 0 {
		return true
	}
	for topic := range t.counts {
		if len(topic) <= len(frame) && string(frame[:len(topic)]) == topic {
			return true
		}
	}
	return false
}

func (t *topics) any() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.counts) > 0
}

// fits says whether any prefix fits the frame.
func fits(prefixes [][]byte, frame []byte) bool {
	for _, p := range prefixes {
		if bytes.HasPrefix(frame, p) {
			return true
		}
	}
	return false
}
