package direct

import (
	"net"
	"syscall"
)

// handed is a connection of which something was read.
type handed struct {
	net.Conn

	first []byte
}

// Read implements net.Conn.
func (h *handed) Read(p []byte) (int, error) {
	if len(h.first) == 0 {
		h.first = nil
		return h.Conn.Read(p)
	}
	n := copy(p, h.first)
	h.first = h.first[n:]
	return n, nil
}

// SyscallConn implements syscall.Conn.
func (h *handed) SyscallConn() (syscall.RawConn, error) {
	c, ok := h.Conn.(syscall.Conn)
	if !ok {
		return nil, syscall.EINVAL
	}
	return c.SyscallConn()
}
