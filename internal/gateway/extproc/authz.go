package extproc

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
)

// spaceAuthz is where Envoy's ext_authz filter puts what it is told to keep of an answer's headers.
const spaceAuthz = "envoy.filters.http.ext_authz"

// The canonical form of names, as http.Header has them.
const (
	headerChoice   = "X-Gateway-Destination-Endpoint"
	headerDecision = "X-Kvoracle-Decision"
)

// Check answers a request as Envoy's ext_authz filter asks over HTTP: with the request's own method, path and body, and the headers
// that it is configured to send. The choice is in headers, by the names of the metadata that they become:
//
//	200 with x-gateway-destination-endpoint and x-kvoracle-decision   the choice
//	200 without                                                       no choice; a client's own header of that name is removed
//	413, 429                                                          as over ext_proc, for the client
//	429 where ext_proc says 503                                       Envoy takes 5xx for a picker that is ill, and goes on without it
//
// The access log tells the booking's end, as for a stream that says so. hasLeft says whether Envoy has given the call up; it is asked
// when all is said.
func (s *Service) Check(w http.ResponseWriter, r *http.Request, body []byte, hasLeft func() bool) {
	x := &exchange{s: s, byLog: true, reqMode: buffered, isFirst: true, hasHeaders: true, isBodyOnly: true, wishes: wishes{wait: -1}}
	defer x.close()
	for name, values := range r.Header {
		if key, ok := s.heard[name]; ok {
			x.wishes.note(key, values[0], s.cfg.SessionHeader)
		}
	}
	x.kind = prompt.KindOf(r.Method, r.URL.Path)
	var v verdict
	if len(body) > s.cfg.MaxBody {
		v = verdict{outcome: TooLarge, refusal: x.tooLarge()}
	} else {
		x.body = [][]byte{body}
		v = x.decide(r.Context())
	}
	x.stage = passing
	s.cfg.Observer.Picked(v.outcome)
	err := v.write(w)
	x.isUnheard = err != nil || hasLeft()
}

// write says it over HTTP.
func (v *verdict) write(w http.ResponseWriter) error {
	h, code := w.Header(), http.StatusOK
	var body []byte
	switch refused := v.refusal.GetImmediateResponse(); {
	case refused != nil:
		code, body = int(refused.GetStatus().GetCode()), refused.GetBody()
		if code == http.StatusServiceUnavailable {
			code = http.StatusTooManyRequests
			h.Set("Retry-After", "1")
		}
		for _, e := range refused.GetHeaders().GetSetHeaders() {
			h.Set(e.GetHeader().GetKey(), string(e.GetHeader().GetRawValue()))
		}
	case len(v.to) == 0:
		h["X-Envoy-Auth-Headers-To-Remove"] = []string{keyChoice}
	default:
		h[headerChoice] = []string{strings.Join(v.to, ",")}
		if name := v.decision(); name != "" {
			h[headerDecision] = []string{name}
		}
	}
	h["Date"] = nil // nobody reads it
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(code)
	if _, err := w.Write(body); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush() // so that whether it was heard is known
}
