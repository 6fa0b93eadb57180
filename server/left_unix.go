//go:build unix

package server

import (
	"errors"
	"net"
	"syscall"
)

// isClosed says whether the other side of a plain connection has closed it. Nothing is read.
func isClosed(conn net.Conn) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true // it is closed on our side
	}
	isEnd := false
	err = raw.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		isEnd = err == nil && n == 0 || errors.Is(err, syscall.ECONNRESET)
	})
	return isEnd || err != nil
}
