package zmtp

import "fmt"

// Delivery is what Recv returns: a message, or something that happened to a connection.
type Delivery struct {
	// Message has at least one frame; nil: this is an event. The receiver may keep and change it.
	Message [][]byte
	// Event is what happened; nil: this is a message.
	Event *Event
	// Conn is the number of the connection, from 1, in the order in which connections were made or tried. Equal numbers:
	// nothing was lost on our side or by a reconnect between two messages, unless a Dropped event lies between them. A
	// publisher may have dropped for itself; only its own sequence numbers tell.
	Conn uint64
}

// EventKind is what happened to a connection.
type EventKind uint8

const (
	// Connected means that the peer has introduced itself; a SUB's subscriptions are on their way. What a publisher sends before they
	// arrive is lost.
	Connected EventKind = iota + 1
	// Disconnected means that nothing more comes by this connection. A dialled endpoint is tried again.
	Disconnected
	// Dropped means that messages were dropped here because the queue was full; only with DropWhenFull.
	Dropped
	// Failed means that a dialled endpoint could not be reached, or did not get through its introduction; there was no Connected. Only
	// the first failure of a series is told. Who fails at a bound socket is only counted: it may be a port scanner.
	Failed
)

// String names the kind.
func (k EventKind) String() string {
	switch k {
	case Connected:
		return "connected"
	case Disconnected:
		return "disconnected"
	case Dropped:
		return "dropped"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is something that happened to a connection, in order with its messages.
type Event struct {
	// Kind says what.
	Kind EventKind
	// Address is the peer's, as the system says it; for Failed the endpoint.
	Address string
	// Dropped is how many messages a Dropped event stands for; 0 for other kinds.
	Dropped uint64
	// Err is why, for Disconnected and Failed; nil otherwise. io.EOF: the peer closed in order.
	Err error
}

// Stats are totals since the socket was made, and what is so now.
type Stats struct {
	// Received and ReceivedBytes count messages that were queued for Recv, and the bytes of their frames.
	Received      uint64
	ReceivedBytes uint64
	// Dropped counts messages dropped because the receive queue was full.
	Dropped uint64
	// Filtered counts messages that fitted none of a SUB's topics, or came to a PUB.
	Filtered uint64
	// Sent and SentBytes count messages queued to be sent, once for each receiver, and their bytes on the wire.
	Sent      uint64
	SentBytes uint64
	// SendDropped counts messages that PUB dropped because a subscriber's queue was full, once for each.
	SendDropped uint64
	// Connects and Disconnects count connections that got through the introduction, and their ends.
	Connects    uint64
	Disconnects uint64
	// Failures counts attempts that never became a connection: endpoint unreachable, or introduction wrong or too slow.
	Failures uint64
	// Refused counts connections closed at once because MaxPeers was reached.
	Refused uint64
	// Violations counts peers disconnected for breaking the protocol or a bound.
	Violations uint64
	// Ignored counts commands of unknown names.
	Ignored uint64
	// Timeouts counts peers disconnected because they were silent.
	Timeouts uint64

	// Peers is how many connections there are.
	Peers int
	// Queued and QueuedBytes are the messages and events that wait for Recv, and the memory they take (frames, and 64 bytes and
	// 24 bytes a frame).
	Queued      int
	QueuedBytes int
	// LastError is why the last connection or attempt ended; nil: none has.
	LastError error
}
