package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Frame flags (RFC 23, "framing").
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2
)

const (
	greetingSize = 64
	// maxCommand bounds the body of a command; the greatest one known is a READY with an identity and some properties.
	maxCommand = 8 << 10
	// maxPing bounds the context that a PING carries and its PONG repeats (RFC 37).
	maxPing = 16
)

// Commands (RFC 37).
const (
	cmdReady     = "READY"
	cmdError     = "ERROR"
	cmdSubscribe = "SUBSCRIBE"
	cmdCancel    = "CANCEL"
	cmdPing      = "PING"
	cmdPong      = "PONG"
)

// errProtocol is wrapped by everything a peer does wrong.
var errProtocol = errors.New("peer breaks the protocol")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errProtocol, fmt.Sprintf(format, args...))
}

// greeting is what each side sends first: signature, version 3.1, mechanism NULL, not a server, filler.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9] = 0xff, 0x7f
	g[10], g[11] = 3, 1
	copy(g[12:32], "NULL")
	return g
}

// checkSignature refuses at the first byte what is not ZeroMQ at all, so that a stray HTTP client is not waited for.
func checkSignature(first byte) error {
	if first != 0xff {
		return violation("greeting begins with %#x, want 0xff: not ZMTP", first)
	}
	return nil
}

// parseGreeting returns the peer's minor version. Minor versions above ours are served as ours.
func parseGreeting(g *[greetingSize]byte) (minor byte, err error) {
	if err := checkSignature(g[0]); err != nil {
		return 0, err
	}
	if g[9] != 0x7f {
		return 0, violation("signature ends with %#x, want 0x7f", g[9])
	}
	if g[10] < 3 {
		return 0, violation("version %d, want 3 (libzmq 4.0 or newer)", g[10])
	}
	if mechanism := string(bytes.TrimRight(g[12:32], "\x00")); mechanism != "NULL" {
		return 0, violation("mechanism %.20q, want NULL", mechanism)
	}
	return min(g[11], 1), nil
}

// appendFrame appends a frame's header and body.
func appendFrame(b []byte, flags byte, body []byte) []byte {
	return append(appendHeader(b, flags, len(body)), body...)
}

func appendHeader(b []byte, flags byte, size int) []byte {
	if size <= 255 {
		return append(b, flags, byte(size))
	}
	return binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(size))
}

// frameSize is the size of a frame on the wire.
func frameSize(body int) int {
	if body <= 255 {
		return 2 + body
	}
	return 9 + body
}

// encodeMessage is a message on the wire. It has at least one frame.
func encodeMessage(frames [][]byte) []byte {
	n := 0
	for _, f := range frames {
		n += frameSize(len(f))
	}
	b := make([]byte, 0, n)
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, f)
	}
	return b
}

// encodeCommand is a command on the wire: a frame whose body begins with the command's name.
func encodeCommand(name string, body []byte) []byte {
	b := appendHeader(nil, flagCommand, 1+len(name)+len(body))
	b = append(b, byte(len(name)))
	b = append(b, name...)
	return append(b, body...)
}

// splitCommand takes a command's body apart.
func splitCommand(body []byte) (name string, rest []byte, err error) {
	if len(body) == 0 || body[0] == 0 || len(body) < 1+int(body[0]) {
		return "", nil, violation("command without a name")
	}
	n := 1 + int(body[0])
	return string(body[1:n]), body[n:], nil
}

// encodeReady is our introduction.
func encodeReady(t Type) []byte {
	return encodeCommand(cmdReady, appendProperty(nil, "Socket-Type", t.String()))
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(b, byte(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

// introduction is what a peer says of itself in READY.
type introduction struct {
	socketType string
	identity   string
}

// parseReady reads the properties; names are not case-sensitive (RFC 23), and what is not known is skipped.
func parseReady(b []byte) (introduction, error) {
	var in introduction
	for len(b) > 0 {
		n := int(b[0])
		if n == 0 || len(b) < 1+n+4 {
			return in, violation("READY is cut short in a property's name")
		}
		name := string(b[1 : 1+n])
		size := binary.BigEndian.Uint32(b[1+n:])
		b = b[1+n+4:]
		if uint64(size) > uint64(len(b)) {
			return in, violation("READY is cut short in property %.32q", name)
		}
		switch value := string(b[:size]); strings.ToLower(name) {
		case "socket-type":
			in.socketType = value
		case "identity":
			in.identity = value
		}
		b = b[size:]
	}
	if len(in.identity) > maxIdentity {
		return in, violation("identity of %d bytes, want at most %d", len(in.identity), maxIdentity)
	}
	return in, nil
}

// encodeSubscribe is a wish for a topic: a command for peers of minor version 1 on, a message before.
func encodeSubscribe(topic string, minor byte) []byte {
	if minor >= 1 {
		return encodeCommand(cmdSubscribe, []byte(topic))
	}
	return appendFrame(nil, 0, append([]byte{1}, topic...))
}

// encodePing has the TTL in tenths of a second; contexts are not needed, since any PONG says what we want to know.
func encodePing(ttl uint16) []byte {
	return encodeCommand(cmdPing, binary.BigEndian.AppendUint16(nil, ttl))
}

// parsePing returns the TTL in tenths of a second (0: none) and the context to repeat.
func parsePing(b []byte) (ttl uint16, context []byte, err error) {
	if len(b) < 2 || len(b) > 2+maxPing {
		return 0, nil, violation("PING of %d bytes, want 2 to %d", len(b), 2+maxPing)
	}
	return binary.BigEndian.Uint16(b), b[2:], nil
}

// parseError is the reason in an ERROR command.
func parseError(b []byte) error {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return violation("ERROR is cut short")
	}
	return fmt.Errorf("peer refuses us: %q", b[1:1+int(b[0])])
}
