package direct

import (
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"
)

// errSent refuses what is written to an answer that is out.
var errSent = errors.New("direct: the answer was sent")

// answer is an http.ResponseWriter that writes all at once.
type answer struct {
	s       *Server
	conn    net.Conn
	isHead  bool // the request is HEAD: no body is sent
	isLast  bool // of the connection; known when it is sent
	timeout time.Duration

	header http.Header
	code   int
	body   []byte
	isSent bool
	err    error
	out    []byte
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	if a.isSent {
		return 0, errSent
	}
	a.WriteHeader(http.StatusOK)
	a.body = append(a.body, b...)
	return len(b), nil
}

// FlushError sends the answer, see http.ResponseController.
func (a *answer) FlushError() error {
	if a.isSent {
		return a.err
	}
	a.isSent, a.isLast = true, a.s.closes()
	a.WriteHeader(http.StatusOK)
	out := a.out[:0]
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(a.code), 10)
	out = append(append(append(out, ' '), http.StatusText(a.code)...), "\r\n"...)
	for name, values := range a.header {
		if name == "Content-Length" || name == "Connection" {
			continue // said below
		}
		for _, v := range values {
			out = append(append(out, name...), ": "...)
			for i := range len(v) {
				c := v[i]
				if c == '\r' || c == '\n' {
					c = ' '
				}
				out = append(out, c)
			}
			out = append(out, "\r\n"...)
		}
	}
	if _, isSaid := a.header["Date"]; !isSaid {
		out = append(time.Now().UTC().AppendFormat(append(out, "Date: "...), http.TimeFormat), "\r\n"...)
	}
	if a.isLast {
		out = append(out, "Connection: close\r\n"...)
	}
	out = strconv.AppendInt(append(out, "Content-Length: "...), int64(len(a.body)), 10)
	out = append(out, "\r\n\r\n"...)
	if !a.isHead {
		out = append(out, a.body...)
	}
	a.out = out
	if a.err = a.conn.SetWriteDeadline(time.Now().Add(a.timeout)); a.err == nil {
		_, a.err = a.conn.Write(out)
	}
	return a.err
}
