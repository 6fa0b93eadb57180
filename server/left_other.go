//go:build !unix

package server

import "net"

// isClosed cannot tell here; the HTTP server does a little later.
func isClosed(net.Conn) bool { return false }
