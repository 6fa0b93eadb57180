package zmtp

import "sync"

const (
	// writeBatch is how many bytes of small messages are put together for one write.
	writeBatch = 64 << 10
	// maxUrgent bounds the commands that wait to be sent; a peer that asks for more PONGs than it reads gets fewer.
	maxUrgent = 16
)

// outbox is the send queue of one connection: whole messages as they go on the wire, and commands, which overtake them.
// What is being written counts until it is written.
type outbox struct {
	maxItems int
	maxBytes int
	wake     chan struct{} // holds a token when there may be something to write
	changed  *signal       // told when something was written, and at the end

	mu     sync.Mutex
	items  ring[[]byte]
	urgent [][]byte
	count  int // messages waiting or being written
	bytes  int
	closed bool
}

func newOutbox(c *Config, changed *signal) *outbox {
	return &outbox{maxItems: c.SendMessages, maxBytes: c.SendBytes, wake: make(chan struct{}, 1), changed: changed}
}

// offer queues a message if there is room; one above the byte bound is taken if nothing else waits.
func (o *outbox) offer(wire []byte) bool {
	o.mu.Lock()
	if o.closed || o.count >= o.maxItems || o.count > 0 && o.bytes+len(wire) > o.maxBytes {
		o.mu.Unlock()
		return false
	}
	o.items.push(wire)
	o.count++
	o.bytes += len(wire)
	o.mu.Unlock()
	token(o.wake)
	return true
}

// command queues a command before all messages.
func (o *outbox) command(wire []byte) {
	o.mu.Lock()
	o.urgent = append(o.urgent, wire)
	o.mu.Unlock()
	token(o.wake)
}

// pong is command, unless too many wait already.
func (o *outbox) pong(wire []byte) {
	o.mu.Lock()
	if len(o.urgent) < maxUrgent {
		o.urgent = append(o.urgent, wire)
	}
	o.mu.Unlock()
	token(o.wake)
}

// batch takes what is to be written next into the given slice: commands, then messages up to writeBatch bytes, at least
// one.
func (o *outbox) batch(wire [][]byte) (_ [][]byte, messages, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	wire = append(wire[:0], o.urgent...)
	clear(o.urgent)
	o.urgent = o.urgent[:0]
	for o.items.n > 0 && (messages == 0 || bytes+len(*o.items.at(0)) <= writeBatch) {
		m := o.items.pop()
		wire = append(wire, m)
		messages++
		bytes += len(m)
	}
	return wire, messages, bytes
}

// wrote takes what was written off the counts.
func (o *outbox) wrote(messages, bytes int) {
	o.mu.Lock()
	o.count -= messages
	o.bytes -= bytes
	o.mu.Unlock()
	o.changed.changed()
}

// waiting is how many messages are not written yet; 0 once closed.
func (o *outbox) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return 0
	}
	return o.count
}

// close lets go of everything.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.items = ring[[]byte]{}
	o.urgent = nil
	o.mu.Unlock()
	o.changed.changed()
}
