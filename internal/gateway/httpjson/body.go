package httpjson

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"google.golang.org/grpc/codes"
)

// budget bounds the bytes of all bodies that are held at one moment.
type budget struct {
	most int64
	held atomic.Int64
}

// take asks for n bytes more.
func (b *budget) take(n int) bool {
	if b.held.Add(int64(n)) > b.most {
		b.held.Add(-int64(n))
		return false
	}
	return true
}

func (b *budget) give(n int) { b.held.Add(-int64(n)) }

// Body reads a request's body for a door beside this one, within the same bounds. What it gives lives until release, which is
// called once.
func (d *Door) Body(r *http.Request) (body []byte, release func(), err error) {
	m, ok := d.memory.Get().(*[]byte)
	if !ok {
		m = new([]byte)
	}
	body, taken, err := d.readBody(r, (*m)[:0])
	return body, func() {
		d.bodies.give(taken)
		if cap(body) <= mostKept {
			*m = body
			d.memory.Put(m)
		}
	}, err
}

// firstRead is the memory that a body of unknown length is given at first. A body's memory follows what has been sent of
// it, never what its headers promise.
const firstRead = 16 << 10

// readBody reads a request's body, appending to dst, which is empty. taken is what was asked of the budget, also with an
// error; the caller gives it back when the body is not needed any more.
func (d *Door) readBody(r *http.Request, dst []byte) (body []byte, taken int, err error) {
	tooLarge := &fault{
		code: codes.ResourceExhausted, http: http.StatusRequestEntityTooLarge, reason: reasonBodyTooLarge,
		text: fmt.Sprintf("the body is larger than %d bytes", d.cfg.MaxBody),
	}
	if r.ContentLength > int64(d.cfg.MaxBody) {
		return dst, 0, tooLarge
	}
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, make([]byte, max(firstRead, cap(dst)))...)[:len(dst)]
		}
		if more := cap(dst) - taken; more > 0 {
			if !d.bodies.take(more) {
				return dst, taken, &fault{
					code: codes.ResourceExhausted, reason: reasonBodiesFull,
					text: "too many large bodies are being read; ask again later",
				}
			}
			taken += more
		}
		n, err := r.Body.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if len(dst) > d.cfg.MaxBody {
			return dst, taken, tooLarge
		}
		switch {
		case errors.Is(err, io.EOF):
			return dst, taken, nil
		case err != nil:
			return dst, taken, cut(err)
		}
	}
}

// cut is the fault of a body that did not come to its end.
func cut(err error) error {
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return &fault{code: codes.DeadlineExceeded, http: http.StatusRequestTimeout, reason: reasonBodySlow, text: "the body came too slowly"}
	}
	return &fault{code: codes.Canceled, reason: reasonBodyInvalid, text: "the body ended early"}
}
