package zmtp

import (
	"errors"
	"fmt"
	"time"
)

// Type is what a socket is for.
type Type uint8

// The types. Each talks only to its counterparts: SUB to PUB and XPUB, DEALER to ROUTER, REP and DEALER, PUB to SUB and XSUB,
// ROUTER to DEALER, REQ and ROUTER.
const (
	// SUB reads what publishers send, filtered by topic.
	SUB Type = iota + 1
	// DEALER sends requests and reads replies, both without any envelope of its own.
	DEALER
	// PUB sends to every subscriber whose topics fit, and never waits for one.
	PUB
	// ROUTER reads requests, with the requester's identity as first frame, and sends to the identity in the first frame.
	ROUTER
)

// String is the name used on the wire.
func (t Type) String() string {
	switch t {
	case SUB:
		return "SUB"
	case DEALER:
		return "DEALER"
	case PUB:
		return "PUB"
	case ROUTER:
		return "ROUTER"
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// accepts says whether a peer of the named type is a counterpart.
func (t Type) accepts(peer string) bool {
	switch t {
	case SUB:
		return peer == "PUB" || peer == "XPUB"
	case DEALER:
		return peer == "ROUTER" || peer == "REP" || peer == "DEALER"
	case PUB:
		return peer == "SUB" || peer == "XSUB"
	case ROUTER:
		return peer == "DEALER" || peer == "REQ" || peer == "ROUTER"
	}
	return false
}

// Config says what a socket is and where its bounds are. The zero value of every field but Type and Endpoint is a sensible
// choice.
type Config struct {
	// Type is needed.
	Type Type
	// Endpoint is tcp://HOST:PORT or ipc://PATH; ipc://@NAME is in Linux's abstract namespace. HOST may be a name, an IPv4
	// address or an IPv6 address in brackets; for Listen also * (every address), and PORT may be * or 0 (any free one).
	Endpoint string

	// Topics are prefixes of the first frame that a SUB wants; none: everything. At most 1,024, of 255 bytes each. A message
	// that fits none is dropped and counted, whether or not the publisher filters.
	Topics []string

	// MaxMessage is the greatest number of bytes in all frames of a received message; 0: 64 MiB. A peer that exceeds it is
	// disconnected.
	MaxMessage int
	// MaxFrame is the same for one frame; 0: MaxMessage.
	MaxFrame int
	// MaxFrames is the greatest number of frames in a message, received or sent; 0: 32.
	MaxFrames int

	// QueueMessages and QueueBytes bound what was received and not yet taken by Recv; 0: 65,536 messages, 256 MiB.
	QueueMessages int
	QueueBytes    int
	// DropWhenFull says what happens at that bound. False: reading stops, so that TCP holds the peer back and a publisher
	// begins to drop for us at its own bound. True: what comes is dropped, and told by a Dropped event in its place.
	DropWhenFull bool

	// SendMessages and SendBytes bound what waits to be sent, per connection; 0: 1,000 messages (as libzmq's high-water
	// mark), 64 MiB. Beyond it PUB drops for that subscriber, DEALER and ROUTER wait.
	SendMessages int
	SendBytes    int

	// MaxPeers is the most connections a bound socket has at a time, those that are still introducing themselves included;
	// 0: 256. More are refused.
	MaxPeers int

	// HandshakeTimeout is the longest a peer may take to introduce itself, and the longest an attempt to connect may take; 0: 10 s.
	HandshakeTimeout time.Duration
	// ReconnectMin and ReconnectMax bound the pause before a dialled endpoint is tried again, which doubles from one to the
	// other; the true pause is random between half of it and all; 0: 100 ms, 5 s.
	ReconnectMin time.Duration
	ReconnectMax time.Duration
	// Heartbeat is the time between PINGs; 0: 5 s for SUB and DEALER, none for PUB and ROUTER; negative: none. Only peers
	// that speak ZMTP 3.1 are sent any. A PING is always answered.
	Heartbeat time.Duration
	// HeartbeatTimeout is how long a peer that is sent PINGs may be silent while we read; 0: 3 times Heartbeat. It is also
	// the TTL that our PINGs carry: the peer may drop us when it hears nothing for so long.
	HeartbeatTimeout time.Duration
}

// Errors that are not faults of one peer.
var (
	// ErrClosed is returned by everything once the socket is closed.
	ErrClosed = errors.New("zmtp: socket is closed")
	// ErrConfig is wrapped by errors about a Config; they name the field and its value.
	ErrConfig = errors.New("zmtp: bad config")
	// ErrDirection is returned by Send on a SUB and by Recv on a PUB.
	ErrDirection = errors.New("zmtp: a SUB cannot send, a PUB cannot receive")
	// ErrNoPeer is returned by Send on a ROUTER if nobody of that identity is connected.
	ErrNoPeer = errors.New("zmtp: no peer of this identity")
	// ErrMessage is wrapped by Send's errors about the message.
	ErrMessage = errors.New("zmtp: bad message")
)

const (
	maxTopics   = 1024
	maxTopic    = 255
	maxIdentity = 255
)

// withDefaults checks c and fills in what is zero.
func (c Config) withDefaults() (Config, error) {
	if c.Type < SUB || c.Type > ROUTER {
		return c, fmt.Errorf("%w: type: got %v, want SUB, DEALER, PUB or ROUTER", ErrConfig, c.Type)
	}
	if len(c.Topics) > 0 && c.Type != SUB {
		return c, fmt.Errorf("%w: topics: got %d, want none for a %v", ErrConfig, len(c.Topics), c.Type)
	}
	if len(c.Topics) > maxTopics {
		return c, fmt.Errorf("%w: topics: got %d, want at most %d", ErrConfig, len(c.Topics), maxTopics)
	}
	for _, t := range c.Topics {
		if len(t) > maxTopic {
			return c, fmt.Errorf("%w: topics: got one of %d bytes, want at most %d", ErrConfig, len(t), maxTopic)
		}
	}
	if c.Type == SUB && len(c.Topics) == 0 {
		c.Topics = []string{""}
	}
	for _, n := range []struct {
		name  string
		value *int
		zero  int
	}{
		{"max_message", &c.MaxMessage, 64 << 20},
		{"max_frame", &c.MaxFrame, c.MaxMessage},
		{"max_frames", &c.MaxFrames, 32},
		{"queue_messages", &c.QueueMessages, 65_536},
		{"queue_bytes", &c.QueueBytes, 256 << 20},
		{"send_messages", &c.SendMessages, 1000},
		{"send_bytes", &c.SendBytes, 64 << 20},
		{"max_peers", &c.MaxPeers, 256},
	} {
		if *n.value < 0 {
			return c, fmt.Errorf("%w: %s: got %d, want 0 (the default) or more", ErrConfig, n.name, *n.value)
		}
		if *n.value == 0 {
			*n.value = n.zero
		}
	}
	if c.MaxFrame == 0 {
		c.MaxFrame = c.MaxMessage
	}
	if c.Heartbeat == 0 && (c.Type == SUB || c.Type == DEALER) {
		c.Heartbeat = 5 * time.Second
	}
	c.Heartbeat = max(c.Heartbeat, 0)
	for _, d := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{
		{"handshake_timeout", &c.HandshakeTimeout, 10 * time.Second},
		{"reconnect_min", &c.ReconnectMin, 100 * time.Millisecond},
		{"reconnect_max", &c.ReconnectMax, max(5*time.Second, c.ReconnectMin)},
		{"heartbeat_timeout", &c.HeartbeatTimeout, 3 * c.Heartbeat},
	} {
		if *d.value < 0 {
			return c, fmt.Errorf("%w: %s: got %v, want 0 (the default) or more", ErrConfig, d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.zero
		}
	}
	if c.ReconnectMax < c.ReconnectMin {
		return c, fmt.Errorf("%w: reconnect_max: got %v, want at least reconnect_min, %v", ErrConfig, c.ReconnectMax, c.ReconnectMin)
	}
	return c, nil
}
