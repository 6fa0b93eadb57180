package zmtp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// errSilent ends a connection whose peer said nothing for too long.
var errSilent = errors.New("peer is silent")

// conn is one connection of a socket. Its reader is the goroutine that calls run; its writer is started by run and has
// ended when run returns.
type conn struct {
	s    *Socket
	id   uint64
	net  net.Conn
	addr string // the peer's

	out    *outbox
	topics topics // of the subscriber; PUB only

	// The reader's:
	frames     *frameReader
	introduced bool          // the introduction's deadline no longer holds
	identity   string        // what a ROUTER knows the peer by; not changed after the introduction
	answers    bool          // the peer has answered a PING, so its silence means something
	ttl        time.Duration // the peer's last PING wants us to drop it when it is silent for so long; 0: no wish
	beats      chan struct{} // tells the writer to begin with heartbeats
}

func newConn(s *Socket, id uint64, nc net.Conn, addr string) *conn {
	c := &conn{s: s, id: id, net: nc, addr: addr, out: newOutbox(&s.cfg, &s.changes), beats: make(chan struct{}, 1)}
	cfg := s.cfg
	if cfg.Type == PUB {
		// All that comes is wishes for topics, old style.
		cfg.MaxMessage, cfg.MaxFrame, cfg.MaxFrames = maxCommand, maxCommand, 1
	}
	c.frames = newFrameReader(c, &cfg)
	return c
}

// run lives as long as the connection, closes it, and says whether there was a connection and why it is none any more.
func (c *conn) run() (introduced bool, err error) {
	written := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		err := c.write(stop)
		_ = c.net.Close() // wakes the reader
		written <- err
	}()
	err = c.introduce()
	if err == nil {
		introduced = true
		err = c.read()
	}
	_ = c.net.Close() // wakes the writer; what it says is of no interest, the connection is over
	close(stop)
	c.out.close()
	if failed := <-written; failed != nil && errors.Is(err, net.ErrClosed) {
		err = failed // it was the writer that ended it
	}
	return introduced, err
}

// introduce goes through greeting and READY, and joins the socket.
func (c *conn) introduce() error {
	if err := c.net.SetDeadline(time.Now().Add(c.s.cfg.HandshakeTimeout)); err != nil {
		return err
	}
	c.out.command(greeting())
	minor, err := c.frames.greeting()
	if err != nil {
		return atIntroduction(err)
	}
	c.out.command(encodeReady(c.s.cfg.Type))
	_, _, command, err := c.frames.next()
	if err != nil {
		return atIntroduction(err)
	}
	name, rest, err := splitCommand(command)
	switch {
	case err != nil:
		return err
	case name == cmdError:
		return parseError(rest)
	case name != cmdReady:
		return violation("command %.32q before READY", name)
	}
	in, err := parseReady(rest)
	if err != nil {
		return err
	}
	if !c.s.cfg.Type.accepts(in.socketType) {
		return violation("socket type %.20q cannot talk to %v", in.socketType, c.s.cfg.Type)
	}
	c.introduced = true
	if err := c.net.SetDeadline(time.Time{}); err != nil {
		return err
	}
	for _, t := range c.s.cfg.Topics {
		c.out.command(encodeSubscribe(t, minor))
	}
	if minor >= 1 && c.s.cfg.Heartbeat > 0 {
		c.beats <- struct{}{}
	}
	return c.s.join(c, in.identity)
}

// atIntroduction says what a silent end means there: libzmq hangs up without a word on a mechanism or type it does not want.
func atIntroduction(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("peer hung up on our introduction; does it want a password, encryption or another socket type? %w", err)
	}
	return err
}

// read delivers what comes until there is nothing more.
func (c *conn) read() error {
	for {
		message, size, command, err := c.frames.next()
		if err != nil {
			return err
		}
		if command != nil {
			err = c.command(command)
		} else {
			err = c.message(message, size)
		}
		if err != nil {
			return err
		}
	}
}

// message handles one message.
func (c *conn) message(m [][]byte, size int) error {
	s := c.s
	switch s.cfg.Type {
	case PUB:
		// The old form of SUBSCRIBE and CANCEL.
		if len(m[0]) > 0 && m[0][0] <= 1 {
			return c.subscribe(m[0][0] == 1, m[0][1:])
		}
		s.count.filtered.Add(1)
		return nil
	case SUB:
		if !fits(s.prefixes, m[0]) {
			s.count.filtered.Add(1)
			return nil
		}
	case ROUTER:
		m = append([][]byte{[]byte(c.identity)}, m...)
		size += len(c.identity)
	case DEALER:
	}
	d := Delivery{Message: m, Conn: c.id}
	if s.cfg.DropWhenFull {
		if !s.in.offer(d, size) {
			s.in.drop(Delivery{Event: &Event{Kind: Dropped, Address: c.addr, Dropped: 1}, Conn: c.id})
		}
	} else if !s.in.put(d, size) {
		return ErrClosed
	}
	return nil
}

// command handles one command after the introduction.
func (c *conn) command(b []byte) error {
	name, rest, err := splitCommand(b)
	if err != nil {
		return err
	}
	switch name {
	case cmdPing:
		ttl, context, err := parsePing(rest)
		if err != nil {
			return err
		}
		c.ttl = time.Duration(ttl) * (time.Second / 10)
		c.out.pong(encodeCommand(cmdPong, context))
	case cmdPong:
		c.answers = true
	case cmdSubscribe, cmdCancel:
		if c.s.cfg.Type == PUB {
			return c.subscribe(name == cmdSubscribe, rest)
		}
		c.s.count.ignored.Add(1)
	case cmdError:
		return parseError(rest)
	case cmdReady:
		return violation("second READY")
	default:
		c.s.count.ignored.Add(1)
	}
	return nil
}

func (c *conn) subscribe(wanted bool, topic []byte) error {
	if !wanted {
		c.topics.cancel(topic)
		return nil
	}
	err := c.topics.add(topic)
	c.s.changes.changed()
	return err
}

// Read reads from the peer for the frame reader. During the introduction its deadline holds; after it the peer may be
// silent for as long as the heartbeats allow, counted only while somebody reads.
func (c *conn) Read(p []byte) (int, error) {
	if !c.introduced {
		return c.net.Read(p)
	}
	patience := c.ttl
	if own := c.s.cfg.HeartbeatTimeout; c.answers && (patience == 0 || own < patience) {
		patience = own
	}
	deadline := time.Time{}
	if patience > 0 {
		deadline = time.Now().Add(patience)
	}
	if err := c.net.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	n, err := c.net.Read(p)
	if n > 0 {
		c.ttl = 0 // as in libzmq: a PING's wish holds until something else comes
	}
	if err != nil && n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, errSilent
	}
	return n, err
}

// write sends what the outbox has, and heartbeats, until the connection is over.
func (c *conn) write(stop <-chan struct{}) error {
	var (
		wire  [][]byte
		small []byte
		beat  <-chan time.Time
		n     int
		bytes int
	)
	cfg := &c.s.cfg
	ping := encodePing(uint16(min(cfg.HeartbeatTimeout/(time.Second/10), 1<<16-1)))
	for {
		wire, n, bytes = c.out.batch(wire)
		if len(wire) == 0 {
			select {
			case <-c.out.wake:
			case <-c.beats:
				beat = time.Tick(cfg.Heartbeat)
			case <-beat:
				c.out.command(ping)
			case <-stop:
				return nil
			}
			continue
		}
		var err error
		if small, err = c.writeAll(small[:0], wire); err != nil {
			return err
		}
		clear(wire) // lets go of what was written
		c.out.wrote(n, bytes)
		select {
		case <-beat: // also while there is always something to write
			c.out.command(ping)
		default:
		}
	}
}

// writeAll writes all of wire, what is small in as few pieces as possible. It returns the buffer to use again.
func (c *conn) writeAll(small []byte, wire [][]byte) ([]byte, error) {
	for _, b := range wire {
		if len(b) <= writeBatch {
			small = append(small, b...)
			continue
		}
		if len(small) > 0 {
			if _, err := c.net.Write(small); err != nil {
				return small, err
			}
			small = small[:0]
		}
		if _, err := c.net.Write(b); err != nil {
			return small, err
		}
	}
	if len(small) == 0 {
		return small, nil
	}
	_, err := c.net.Write(small)
	return small, err
}
