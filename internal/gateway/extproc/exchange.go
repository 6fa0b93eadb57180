package extproc

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
)

// bodyMode is Envoy's word for how it sends bodies.
type bodyMode = extprocfilterv3.ProcessingMode_BodySendMode

const (
	none     = extprocfilterv3.ProcessingMode_NONE
	streamed = extprocfilterv3.ProcessingMode_STREAMED
	buffered = extprocfilterv3.ProcessingMode_BUFFERED
	partial  = extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL
	duplex   = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// stage is how far a request has come.
type stage uint8

const (
	waiting  stage = iota // for its headers, or its body
	passing               // answered; what still comes of its body goes on as it is
	refusing              // answered in the worker's place: nothing more is said
)

// exchange is one stream.
type exchange struct {
	s      *Service
	stream extprocv3.ExternalProcessor_ProcessServer // nil: it is no stream, see Service.Check
	byLog  bool                                      // an access log tells the request's end

	mu         sync.Mutex // guards what follows, and sending
	isFirst    bool       // the first message was seen
	hasHeaders bool       // the request's
	isBodyOnly bool       // they came as attributes of its body
	reqMode    bodyMode
	respMode   bodyMode
	stage      stage
	kind       prompt.Kind
	only       []string // the candidates named; nil: all
	wishes     wishes
	body       [][]byte
	size       int
	late       *time.Timer
	life       *life // nil: nothing is booked
	watching   *life // of an observer; its end is not told by this stream
	isUnheard  bool  // the choice came when the proxy had left: its time was over, and it went on without
	isOver     bool
	isHidden   bool // nothing is answered
	isShadow   bool // and the request is looked at
	hasShadow  bool // it was decided for
}

// errSeen says that a stream has shown all there is to see: an observer's, which Envoy would keep open for some seconds, and a
// picker's of which the access log tells the rest. Its end goes out with its answer, instead of as one to Envoy's own.
var errSeen = errors.New("extproc: nothing more is wanted")

// take handles one message. An error ends the stream.
func (x *exchange) take(m *extprocv3.ProcessingRequest) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch hides := m.GetObservabilityMode(); {
	case x.isFirst && hides != x.isHidden:
		return status.Error(codes.InvalidArgument, "a stream is answered as a whole, or not at all")
	case hides:
		x.isFirst, x.isHidden = true, true
		return x.observe(m)
	}
	if !x.isFirst {
		x.isFirst = true
		// A proxy that does not say how it sends bodies is taken for one that speaks the extension's protocol.
		x.reqMode, x.respMode = duplex, none
		if c := m.GetProtocolConfig(); c != nil {
			x.reqMode, x.respMode = c.GetRequestBodyMode(), c.GetResponseBodyMode()
		}
	}
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		if x.hasHeaders {
			return status.Error(codes.InvalidArgument, "the request's headers have come already")
		}
		x.hasHeaders = true
		x.only = candidates(m.GetMetadataContext())
		return x.headers(r.RequestHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		if !x.hasHeaders && !x.bodyOnly(m) {
			return status.Error(codes.InvalidArgument, "want the request's headers before its body")
		}
		return x.chunk(r.RequestBody.GetBody(), r.RequestBody.GetEndOfStream())
	case *extprocv3.ProcessingRequest_RequestTrailers:
		if !x.hasHeaders {
			return status.Error(codes.InvalidArgument, "want the request's headers before its trailers")
		}
		return x.trailers()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		if x.life != nil {
			tellHeaders(x.life, m, r.ResponseHeaders)
		}
		return x.send(responseHeaders())
	case *extprocv3.ProcessingRequest_ResponseBody:
		b := r.ResponseBody
		if x.life != nil {
			x.life.saw(b.GetBody(), b.GetEndOfStream())
		}
		if x.respMode == duplex {
			return x.echo(b.GetBody(), b.GetEndOfStream(), responseChunk)
		}
		return x.send(responseBody())
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		if x.life != nil {
			x.life.trailed()
		}
		return x.send(responseTrailers())
	default:
		return nil // nothing that is known: a proxy may learn to say more
	}
}

// hear takes a request's headers.
func (x *exchange) hear(all []*corev3.HeaderValue) {
	for _, e := range all {
		v := string(e.GetRawValue())
		if v == "" {
			v = e.GetValue()
		}
		x.wishes.note(e.GetKey(), v, x.s.cfg.SessionHeader)
	}
	x.kind = prompt.KindOf(x.wishes.method, x.wishes.path)
}

// headers begins a request.
func (x *exchange) headers(h *extprocv3.HttpHeaders) error {
	x.hear(h.GetHeaders().GetHeaders())
	switch {
	case h.GetEndOfStream() || x.kind == prompt.None || x.reqMode == none || x.reqMode == streamed:
		return x.passOn(InTurn)
	case x.isOverloaded(x.stream.Context()):
		return x.passOn(Overloaded) // before its body has come: none of it is kept
	case x.wishes.length > x.s.cfg.MaxBody:
		return x.refuse(TooLarge, x.tooLarge())
	case x.reqMode == buffered || x.reqMode == partial:
		return x.send(requestHeaders(nil)) // the body comes when this is answered
	default:
		x.late = time.AfterFunc(x.s.cfg.BodyTimeout, x.isLate)
		return nil
	}
}

func (x *exchange) isOverloaded(ctx context.Context) bool {
	return x.s.cfg.Overloaded != nil && x.s.cfg.Overloaded(ctx)
}

// bodyOnly begins a request whose headers are not sent, only what attributes say of them: Envoy waits for one answer instead of
// two. It must keep the body, since the answer to the body is then where headers are changed.
func (x *exchange) bodyOnly(m *extprocv3.ProcessingRequest) bool {
	if x.reqMode != buffered && x.reqMode != partial || !x.wishes.attributed(m, x.s.cfg.SessionHeader) {
		return false
	}
	x.hasHeaders, x.isBodyOnly = true, true
	x.only = candidates(m.GetMetadataContext())
	x.kind = prompt.KindOf(x.wishes.method, x.wishes.path)
	return true
}

// passOn answers the headers of a request whose prompt is not looked at.
func (x *exchange) passOn(o Outcome) error {
	v := x.inTurn(o)
	if v.refusal != nil {
		return x.refuse(v.outcome, v.refusal)
	}
	x.stage = passing
	x.s.cfg.Observer.Picked(v.outcome)
	return x.send(requestHeaders(&v))
}

// isLate lets a request go whose body takes too long.
func (x *exchange) isLate() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stage != waiting || x.isOver {
		return
	}
	v := x.inTurn(Late)
	_ = x.release(&v, false) // the stream ends by itself if it cannot be sent on
}

// chunk takes the next piece of the request's body.
func (x *exchange) chunk(body []byte, isEnd bool) error {
	switch {
	case x.stage == refusing:
		return nil
	case x.stage == passing && x.reqMode == duplex:
		return x.echo(body, isEnd, requestChunk)
	case x.stage == passing:
		return x.send(requestBody(nil))
	}
	if x.size += len(body); x.size > x.s.cfg.MaxBody {
		return x.refuse(TooLarge, x.tooLarge())
	}
	if len(body) > 0 {
		x.body = append(x.body, body)
	}
	if x.reqMode == duplex && !isEnd {
		return nil
	}
	return x.answer(isEnd)
}

// trailers end a request's body.
func (x *exchange) trailers() error {
	if x.stage == waiting {
		if err := x.answer(false); err != nil {
			return err
		}
	}
	if x.stage == refusing {
		return nil
	}
	return x.send(requestTrailers())
}

// answer decides for a body that is complete.
func (x *exchange) answer(isEnd bool) error {
	v := x.decide(x.stream.Context())
	if v.refusal != nil {
		return x.refuse(v.outcome, v.refusal)
	}
	if x.reqMode == duplex {
		return x.release(&v, isEnd)
	}
	x.stage, x.body = passing, nil
	x.s.cfg.Observer.Picked(v.outcome)
	err := x.send(requestBody(&v))
	x.isUnheard = err != nil || x.stream.Context().Err() != nil
	if err != nil || !x.byLog || !x.isBodyOnly || x.respMode != none {
		return err
	}
	return errSeen
}

// release answers the headers and gives back the body that was kept. isEnd says that it is complete, without trailers.
func (x *exchange) release(v *verdict, isEnd bool) error {
	if v.refusal != nil {
		return x.refuse(v.outcome, v.refusal)
	}
	x.stop()
	if isEnd {
		v.length = x.size
	} else {
		v.length = -1
	}
	x.stage = passing
	x.s.cfg.Observer.Picked(v.outcome)
	if err := x.send(requestHeaders(v)); err != nil {
		return err
	}
	body := x.body
	x.body = nil
	for i, p := range body {
		if err := x.echo(p, isEnd && i == len(body)-1, requestChunk); err != nil {
			return err
		}
	}
	if isEnd && len(body) == 0 {
		return x.echo(nil, true, requestChunk)
	}
	return nil
}

// longestChunk is the most of a body that goes back in one message; Envoy takes 64 KiB.
const longestChunk = 62_000

// echo gives a piece of a body back.
func (x *exchange) echo(body []byte, isEnd bool, in func([]byte, bool) *extprocv3.ProcessingResponse) error {
	for len(body) > longestChunk {
		if err := x.send(in(body[:longestChunk], false)); err != nil {
			return err
		}
		body = body[longestChunk:]
	}
	return x.send(in(body, isEnd))
}

// refuse answers in the worker's place.
func (x *exchange) refuse(o Outcome, r *extprocv3.ProcessingResponse) error {
	x.stop()
	x.stage, x.body = refusing, nil
	x.s.cfg.Observer.Picked(o)
	return x.send(r)
}

func (x *exchange) send(r *extprocv3.ProcessingResponse) error {
	if x.isOver {
		return nil
	}
	return x.stream.Send(r)
}

func (x *exchange) stop() {
	if x.late != nil {
		x.late.Stop()
		x.late = nil
	}
}

// close ends what the stream has begun.
func (x *exchange) close() {
	x.mu.Lock()
	x.isOver = true
	x.stop()
	if x.isFirst && x.stage == waiting {
		x.s.cfg.Observer.Picked(Abandoned)
	}
	l, isUnheard := x.life, x.isUnheard
	x.mu.Unlock()
	switch {
	case l == nil:
	case isUnheard:
		l.unheard()
	default:
		l.left()
	}
}

// decide is x.verdict with its booking noted.
func (x *exchange) decide(ctx context.Context) verdict {
	if x.isBodyOnly { // what the headers would have been asked
		switch {
		case x.kind == prompt.None:
			return x.inTurn(InTurn)
		case x.isOverloaded(ctx):
			return x.inTurn(Overloaded)
		}
	}
	v := x.verdict(ctx)
	if v.answer != nil && v.answer.Decision != 0 {
		// No log knows of a shadow's decision.
		x.life = x.s.begin(v.answer, x.respMode != none, x.byLog && !x.isShadow, x.wishes.request, time.Now())
	}
	return v
}

// observe takes a message of a stream that nothing is answered to: an observer's, which sees responses alone, or a shadow's, which
// sees requests as well. x.mu is held.
func (x *exchange) observe(m *extprocv3.ProcessingRequest) error {
	x.stage = passing
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		x.isShadow, x.respMode = true, m.GetProtocolConfig().GetResponseBodyMode()
		x.only = candidates(m.GetMetadataContext())
		x.hear(r.RequestHeaders.GetHeaders().GetHeaders())
		if r.RequestHeaders.GetEndOfStream() {
			x.kind = prompt.None
		}
		if x.kind == prompt.None {
			x.s.cfg.Observer.Picked(InTurn)
			return errSeen
		}
	case *extprocv3.ProcessingRequest_RequestBody:
		return x.shadow(r.RequestBody.GetBody(), r.RequestBody.GetEndOfStream())
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return x.shadow(nil, true)
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		l := x.life
		if !x.isShadow {
			l = x.observed(m)
		}
		if l == nil {
			return errSeen
		}
		tellHeaders(l, m, r.ResponseHeaders)
		x.watching = l
		if r.ResponseHeaders.GetEndOfStream() {
			return errSeen
		}
	case *extprocv3.ProcessingRequest_ResponseBody:
		if x.watching == nil {
			return errSeen
		}
		x.watching.saw(r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream())
		if r.ResponseBody.GetEndOfStream() {
			return errSeen
		}
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		if x.watching != nil {
			x.watching.trailed()
		}
		return errSeen
	}
	return nil
}

// observed finds the life that a response belongs to; nil: there is nothing to add.
func (x *exchange) observed(m *extprocv3.ProcessingRequest) *life {
	x.s.hasObservers.Store(true)
	name := decisionIn(m.GetMetadataContext())
	l := x.s.find(name)
	if l == nil && name != "" {
		x.s.cfg.Observer.Unobserved()
	}
	if l == nil || l.seesAll {
		return nil
	}
	l.watched()
	return l
}

// shadow takes the next piece of the body of a request that goes on without us. When it is complete a worker is chosen and booked as
// for any other; the response then tells who has served it, and the booking moves there.
func (x *exchange) shadow(body []byte, isEnd bool) error {
	if !x.isShadow || x.hasShadow {
		return nil
	}
	if x.size += len(body); x.size > x.s.cfg.MaxBody {
		x.body = nil
		x.s.cfg.Observer.Picked(TooLarge)
		return errSeen
	}
	if len(body) > 0 {
		x.body = append(x.body, body)
	}
	if !isEnd {
		return nil
	}
	x.hasShadow = true
	v := verdict{outcome: Overloaded}
	if !x.isOverloaded(x.stream.Context()) {
		v = x.decide(x.stream.Context())
	}
	x.body = nil
	x.s.cfg.Observer.Picked(v.outcome)
	if x.life == nil {
		return errSeen
	}
	return nil
}

// tellHeaders tells a life what a response's headers say.
func tellHeaders(l *life, m *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) {
	code, isStream := 0, false
	for _, e := range h.GetHeaders().GetHeaders() {
		switch e.GetKey() {
		case ":status":
			code, _ = strconv.Atoi(string(e.GetRawValue())) // 0 is like 200
		case "content-type":
			isStream = isEventStream(string(e.GetRawValue()))
		}
	}
	served := ofBalancer(m.GetMetadataContext(), keyServed)
	if served == "" { // not a balancer that we choose for
		served = m.GetAttributes()[attributes].GetFields()[keyUpstream].GetStringValue()
	}
	l.answered(served, code, isStream, h.GetEndOfStream())
}
