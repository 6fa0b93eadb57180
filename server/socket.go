package server

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
)

const (
	// socketMode lets the owner and the group of a Unix socket connect: a sidecar is seldom of the same user.
	socketMode = 0o660
	// longestSocket is the longest path of a Unix socket that every system takes, in bytes.
	longestSocket = 103
)

// socketPath is the path of a Unix socket's address: "unix:" and the path, as gRPC writes it.
func socketPath(address string) (path string, isUnix bool) {
	path, isUnix = strings.CutPrefix(address, "unix:")
	return strings.TrimPrefix(path, "//"), isUnix
}

// openSocket listens on a Unix socket. The file of a server that has died is in the way and is removed; that of one that lives, and
// a file that is no socket, are not.
func openSocket(ctx context.Context, path string) (net.Listener, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && isAbandoned(ctx, path) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		lis, err = (&net.ListenConfig{}).Listen(ctx, "unix", path)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	return lis, nil
}

// isAbandoned says whether a path is a socket on which nobody listens.
func isAbandoned(ctx context.Context, path string) bool {
	if f, err := os.Lstat(path); err != nil || f.Mode()&os.ModeSocket == 0 {
		return false
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close() // nothing was said
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// AddressOf writes an address as Config.Listen and gRPC's clients take it: "host:port", or "unix:" and a path.
func AddressOf(a net.Addr) string {
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return a.String()
}
