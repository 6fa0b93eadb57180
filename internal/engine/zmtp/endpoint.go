package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// keepAlive lets TCP notice a peer whose machine is gone even where no heartbeats are agreed.
const keepAlive = 15 * time.Second

// endpoint is where a socket connects to or binds.
type endpoint struct {
	network string // "tcp" or "unix"
	address string // as package net wants it
}

// parseEndpoint reads ZeroMQ's notation.
func parseEndpoint(s string, bind bool) (endpoint, error) {
	bad := func(want string) (endpoint, error) {
		return endpoint{}, fmt.Errorf("%w: endpoint: got %q, want %s", ErrConfig, s, want)
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return bad("tcp://HOST:PORT or ipc://PATH")
	}
	switch scheme {
	case "ipc":
		if rest == "" || rest == "@" || rest == "*" {
			return bad("a path or @name after ipc://")
		}
		return endpoint{"unix", rest}, nil
	case "tcp":
	default:
		return bad("tcp:// or ipc://")
	}
	if strings.Contains(rest, ";") {
		return bad("no source address")
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		// libzmq takes [::]:PORT and :::PORT alike.
		i := strings.LastIndexByte(rest, ':')
		if i < 0 || net.ParseIP(rest[:i]) == nil {
			return bad("HOST:PORT after tcp://, an IPv6 address in brackets")
		}
		host, port = rest[:i], rest[i+1:]
	}
	if port == "*" && bind {
		port = "0"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 && !bind {
		return bad("a port from 1 to 65535 (0 or * only where it is bound)")
	}
	if host == "*" {
		host = ""
	}
	if host == "" && !bind {
		return bad("a host to connect to")
	}
	return endpoint{"tcp", net.JoinHostPort(host, port)}, nil
}

// dial makes one attempt.
func (e endpoint) dial(ctx context.Context, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout, KeepAlive: keepAlive}
	return d.DialContext(ctx, e.network, e.address)
}

// listen binds. A socket file that nobody answers on is left from a process that died, and is replaced.
func (e endpoint) listen(ctx context.Context) (net.Listener, error) {
	lc := net.ListenConfig{KeepAlive: keepAlive}
	l, err := lc.Listen(ctx, e.network, e.address)
	if err == nil || e.network != "unix" || !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if info, statErr := os.Lstat(e.address); statErr != nil || info.Mode().Type() != os.ModeSocket {
		return nil, err
	}
	if conn, dialErr := e.dial(ctx, time.Second); !errors.Is(dialErr, syscall.ECONNREFUSED) {
		if dialErr == nil {
			_ = conn.Close() // it was only asked whether somebody is there
		}
		return nil, err
	}
	if rmErr := os.Remove(e.address); rmErr != nil {
		return nil, errors.Join(err, rmErr)
	}
	return lc.Listen(ctx, e.network, e.address)
}

// name is a bound address in ZeroMQ's notation.
func name(a net.Addr) string {
	if a.Network() == "unix" {
		return "ipc://" + a.String()
	}
	return "tcp://" + a.String()
}
