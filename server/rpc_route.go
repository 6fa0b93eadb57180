package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/transport"
	"github.com/kvoracle/kvoracle/internal/wire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// routeService is what gateways and workers call. Each method decodes, calls the oracle and encodes; nothing else.
//
// Route and RouteStream do not have the generated form: their messages are read and written by the codec without making
// them, see describe.
type routeService struct {
	kvoraclev1.UnimplementedRouteServiceServer

	s         *Server
	codec     *transport.Codec
	questions sync.Pool // of *transport.Question
	info      *grpc.UnaryServerInfo
	handler   grpc.UnaryHandler
}

func newRouteService(s *Server, codec *transport.Codec) *routeService {
	r := &routeService{s: s, codec: codec}
	r.info = &grpc.UnaryServerInfo{Server: r, FullMethod: kvoraclev1.RouteService_Route_FullMethodName}
	r.handler = r.route
	return r
}

// describe is the generated description of the service with handlers of our own for the two hot methods.
func (r *routeService) describe() *grpc.ServiceDesc {
	d := kvoraclev1.RouteService_ServiceDesc
	d.Methods, d.Streams = slices.Clone(d.Methods), slices.Clone(d.Streams)
	for i := range d.Methods {
		if d.Methods[i].MethodName == "Route" {
			d.Methods[i].Handler = r.unary
		}
	}
	for i := range d.Streams {
		if d.Streams[i].StreamName == "RouteStream" {
			d.Streams[i].Handler = func(_ any, stream grpc.ServerStream) error { return r.answerAll(stream) }
		}
	}
	return &d
}

// unary is gRPC's way into Route.
func (r *routeService) unary(_ any, ctx context.Context, dec func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
	r.s.shedder.begun(ctx)
	q, ok := r.questions.Get().(*transport.Question)
	if !ok {
		q = &transport.Question{}
	}
	defer func() {
		q.Free()
		r.questions.Put(q)
	}()
	if err := dec(q); err != nil {
		return nil, err
	}
	resp, err := chain(ctx, q, r.info, r.handler)
	if a, ok := resp.(*oracle.Answer); ok && err == nil {
		return r.codec.Write(a), nil // now: the question has it, and goes
	}
	return resp, err
}

// route answers one question. An answer goes out as it is; with its reasons it is a message.
func (r *routeService) route(ctx context.Context, req any) (any, error) {
	q, ok := req.(*transport.Question)
	if !ok {
		return nil, toStatus(oracle.Fault(oracle.Internal, oracle.ReasonInternal, "", "", "not a question"))
	}
	a, err := r.decide(ctx, q)
	if err == nil && hasLeft(ctx) {
		r.giveBack(a)
	}
	switch {
	case err != nil:
		return nil, toStatus(err)
	case q.Explain():
		return wire.EncodeAnswer(a, true), nil
	default:
		return a, nil
	}
}

// giveBack ends what was booked for a caller who has left between choice and answer, and so will never speak of it. One
// that has named its request may ask again and is then given the same decision, so that one is left to its lease.
func (r *routeService) giveBack(a *oracle.Answer) {
	if a.Decision != 0 && a.RequestID == "" {
		// The outcome is that of any late step: there is nobody to tell.
		_, _ = r.s.oracle.Progress(&oracle.Event{Decision: a.Decision, Step: oracle.Cancelled, Cached: -1}, time.Now())
	}
}

// decide is one decision with its span, and with the waiting for a place that it may take.
func (r *routeService) decide(ctx context.Context, q *transport.Question) (*oracle.Answer, error) {
	d := decision{r: r, q: q}
	if err := d.begin(ctx, time.Now()); d.ticket == nil {
		return d.answer, err
	}
	return d.wait()
}

// decision is a decision under way.
type decision struct {
	r    *routeService
	q    *transport.Question
	ctx  context.Context //nolint:containedctx // it has the span, and waits no longer than its call
	span trace.Span

	answer *oracle.Answer
	ticket *oracle.Ticket // not nil: it has to wait
}

// begin decides, unless that means waiting.
func (d *decision) begin(ctx context.Context, now time.Time) error {
	s := d.r.s
	d.ctx, d.span = s.tel.StartDecision(ctx)
	req, err := d.q.Request(s.limits)
	if err == nil && d.q.Explain() {
		err = s.guard.mayExplain(d.ctx)
	}
	if err == nil {
		req.Room = &d.q.Room
		d.answer, d.ticket, err = s.oracle.Ask(d.ctx, req, now)
	}
	if d.ticket == nil {
		d.end(err)
	}
	return err
}

// wait is the rest of a decision that has to wait.
func (d *decision) wait() (*oracle.Answer, error) {
	var err error
	d.answer, err = d.ticket.Wait(d.ctx)
	d.end(err)
	return d.answer, err
}

func (d *decision) end(err error) {
	d.r.s.tel.EndDecision(d.span, d.answer, err)
	if d.q.Explain() {
		d.r.s.audit.explained(d.ctx, d.answer, err)
	}
}

// answerAll is RouteStream. Questions are answered in the order they came, but for those that have to wait for a place: each
// of those has a goroutine, of which there are no more than may wait, and holds up nobody. A refused one is answered with its
// status and the stream goes on. Other questions are read and answered in one goroutine, without handing them over; another
// waits for the server's going.
func (r *routeService) answerAll(stream grpc.ServerStream) error {
	x := &exchange{r: r, stream: stream}
	ended := make(chan error, 1)
	go func() { ended <- r.s.rescuedLoop(stream.Context(), x.run) }()
	leave := r.s.leaving()
	defer leave.stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-leave.going:
			if err := x.send(&kvoraclev1.RouteStreamResponse{
				Result: &kvoraclev1.RouteStreamResponse_GoAway{GoAway: leave.notice()},
			}); err != nil {
				return x.close(err)
			}
		case <-leave.over:
			return x.close(nil)
		}
	}
}

// exchange is one RouteStream.
type exchange struct {
	r      *routeService
	stream grpc.ServerStream
	q      *transport.Question

	mu       sync.Mutex // held while a message is sent: gRPC takes one at a time
	out      transport.StreamAnswer
	isClosed bool

	waiting sync.WaitGroup // for places
}

// run answers until the questions end, and those that wait are answered too: who has asked all still wants to know. After
// close it ends by itself: gRPC ends the reading when the handler returns, and with it the waiting.
func (x *exchange) run() error {
	ctx, cancel := context.WithCancel(x.stream.Context())
	defer cancel()
	x.q = newStreamed()
	defer func() { x.q.Free() }()
	for {
		err := x.stream.RecvMsg(x.q)
		if err != nil {
			if err = ended(err); err != nil {
				cancel()
			}
			x.waiting.Wait()
			return err
		}
		if err = x.answer(ctx, time.Now()); err != nil {
			cancel()
			x.waiting.Wait()
			return err
		}
		x.q.Free()
	}
}

func newStreamed() *transport.Question {
	q := &transport.Question{}
	q.IsStreamed = true
	return q
}

func (x *exchange) send(m any) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.isClosed {
		return io.EOF
	}
	return x.stream.SendMsg(m)
}

// sendAnswer sends an answer as it is.
func (x *exchange) sendAnswer(tag uint64, a *oracle.Answer) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.isClosed {
		return io.EOF
	}
	x.out = transport.StreamAnswer{Tag: tag, Answer: a}
	return x.stream.SendMsg(&x.out)
}

// close lets nothing more out.
func (x *exchange) close(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.isClosed = true
	return err
}

func (x *exchange) answer(ctx context.Context, at time.Time) error {
	q, s := x.q, x.r.s
	ctx = s.tel.ContextFromTraceparent(ctx, q.Traceparent())
	d := decision{r: x.r, q: q}
	var err error
	if limit := q.Timeout(); limit > 0 && time.Since(at) > limit {
		err = oracle.Fault(oracle.Expired, oracle.ReasonDeadline, "timeout_ms", "", "the question waited too long")
	} else if err = s.guard.mayAskMore(ctx, at); err == nil {
		err = d.begin(ctx, at)
	}
	if d.ticket != nil {
		x.waitAside(d, at)
		return nil
	}
	return x.reply(ctx, q, d.answer, err, at)
}

// waitAside has a question wait in a goroutine of its own, which takes the question with it. d is a copy, so that those that
// need not wait leave nothing on the heap.
func (x *exchange) waitAside(d decision, at time.Time) {
	x.q = newStreamed()
	cancel := context.CancelFunc(func() {})
	if limit := d.q.Timeout(); limit > 0 {
		d.ctx, cancel = context.WithDeadline(d.ctx, at.Add(limit))
	}
	x.waiting.Go(func() {
		defer d.q.Free()
		defer cancel()
		a, err := d.wait()
		if lost := x.reply(d.ctx, d.q, a, err, at); lost != nil && a != nil {
			x.r.giveBack(a)
		}
	})
}

// reply sends what came out of a question.
func (x *exchange) reply(ctx context.Context, q *transport.Question, a *oracle.Answer, err error, at time.Time) error {
	s := x.r.s
	switch {
	case err != nil:
		err = toStatus(err)
		s.watch.failed(ctx, kvoraclev1.RouteService_RouteStream_FullMethodName, err, time.Since(at))
		st := status.Convert(err).Proto()
		return x.send(&kvoraclev1.RouteStreamResponse{Tag: q.Tag(), Result: &kvoraclev1.RouteStreamResponse_Status{
			Status: &kvoraclev1.ErrorStatus{Code: st.GetCode(), Message: st.GetMessage(), Details: st.GetDetails()},
		}})
	case q.Explain():
		return x.send(&kvoraclev1.RouteStreamResponse{
			Tag: q.Tag(), Result: &kvoraclev1.RouteStreamResponse_Response{Response: wire.EncodeAnswer(a, true)},
		})
	default:
		return x.sendAnswer(q.Tag(), a)
	}
}

// ended turns the end of a peer's messages into the end of the stream: a half-close is a normal one, and a peer that is
// gone (nil) hears nothing anyway.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
