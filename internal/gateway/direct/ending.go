package direct

import (
	"errors"
	"os"
)

// Ending is how a connection has ended here. Each has one.
type Ending uint8

// How connections end.
const (
	Broken  Ending = iota // a request or its answer did not come through, or the handler panicked
	Handed                // it goes to net/http with something that is not ours, and is served on
	Left                  // its client has closed it between requests
	Silent                // no request came in time
	Closing               // the server is closing

	numEndings
)

// Endings lists all of them.
func Endings() []Ending {
	out := make([]Ending, numEndings)
	for i := range out {
		out[i] = Ending(i)
	}
	return out
}

// String gives the name in metrics.
func (e Ending) String() string {
	switch e {
	case Broken:
		return "broken"
	case Handed:
		return "handed"
	case Left:
		return "left"
	case Silent:
		return "silent"
	case Closing:
		return "closing"
	default:
		return "invalid"
	}
}

// whileIdle is the end of a connection that could not be read from while it was idle.
func (s *Server) whileIdle(err error) Ending {
	switch {
	case s.closes():
		return Closing
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Silent
	default:
		return Left
	}
}
