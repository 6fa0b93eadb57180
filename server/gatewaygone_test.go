package server

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// bookedOn is how many requests a worker has that we know of.
func (r *rig) bookedOn(worker string) uint32 {
	r.t.Helper()
	m, err := r.fleet.GetWorker(r.t.Context(), &kvoraclev1.GetWorkerRequest{WorkerId: worker})
	if err != nil {
		r.t.Fatal(err)
	}
	return m.GetWorker().GetRanks()[0].GetBookedRequests()
}

// gatewayStream opens a gateway's progress stream.
func gatewayStream(t *testing.T, conn grpc.ClientConnInterface, name string) *progressStream {
	t.Helper()
	s, err := kvoraclev1.NewRouteServiceClient(conn).ReportProgress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &progressStream{t: t, stream: s}
	p.say(&kvoraclev1.ReportProgressRequest{Message: &kvoraclev1.ReportProgressRequest_Hello{
		Hello: &kvoraclev1.ProgressHello{GatewayId: name, Incarnation: 1},
	}})
	return p
}

type progressStream struct {
	t        *testing.T
	stream   kvoraclev1.RouteService_ReportProgressClient
	sequence uint64
}

// say sends a message and returns its acknowledgement.
func (p *progressStream) say(m *kvoraclev1.ReportProgressRequest) *kvoraclev1.ReportProgressResponse {
	p.t.Helper()
	p.sequence++
	m.Sequence = p.sequence
	if err := p.stream.Send(m); err != nil {
		p.t.Fatal(err)
	}
	for {
		ack, err := p.stream.Recv()
		if err != nil {
			p.t.Fatal(err)
		}
		if ack.GetAckedSequence() == p.sequence {
			return ack
		}
	}
}

func (p *progressStream) step(e *kvoraclev1.ProgressEvent) *kvoraclev1.ReportProgressResponse {
	p.t.Helper()
	return p.say(&kvoraclev1.ReportProgressRequest{Message: &kvoraclev1.ReportProgressRequest_Event{Event: e}})
}

// TestGatewayThatIsGone: a gateway's host disappears, and its connection with it. After the grace what it had sent is given
// back, long before any lease; what another gateway has sent stays. The order of things over time is in the transcript
// gateway_gone; this is what a socket adds.
func TestGatewayThatIsGone(t *testing.T) {
	r := onSocket(t, Config{GatewayGrace: time.Millisecond, Lease: time.Hour})
	r.dial(r.s.Addr().String())
	defer r.conn.Close()
	r.worker("w1")

	var mu sync.Mutex
	var sockets []*net.TCPConn
	conn, err := grpc.NewClient(r.s.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if socket, ok := c.(*net.TCPConn); ok {
				mu.Lock()
				defer mu.Unlock()
				sockets = append(sockets, socket)
			}
			return c, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	ids := make([]string, 2)
	for i := range ids {
		m, err := r.route.Route(t.Context(), prompt(uint32(i), 2, 3))
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = m.GetDecisionId()
	}
	gone, stays := gatewayStream(t, conn, "gone"), gatewayStream(t, r.conn, "stays")
	for i, p := range []*progressStream{gone, stays} {
		ack := p.step(&kvoraclev1.ProgressEvent{DecisionId: ids[i], Step: &kvoraclev1.ProgressEvent_Dispatched{Dispatched: &kvoraclev1.Dispatched{}}})
		if ack.GetUnknownDecisions()+ack.GetLateEvents()+ack.GetRefusedEvents() != 0 {
			t.Fatalf("dispatched: %v", ack)
		}
	}
	if n := r.bookedOn("w1"); n != 2 {
		t.Fatalf("%d are booked while both streams are open", n)
	}

	mu.Lock()
	for _, s := range sockets {
		_ = s.SetLinger(0) // no goodbye
		_ = s.Close()
	}
	mu.Unlock()
	if _, err := gone.stream.Recv(); err == nil {
		t.Fatal("the stream outlives its socket")
	}
	r.eventually("it is given back", "", func() bool { return r.bookedOn("w1") == 1 })
	finished := func(id string) *kvoraclev1.ProgressEvent {
		return &kvoraclev1.ProgressEvent{DecisionId: id, Step: &kvoraclev1.ProgressEvent_Finished{Finished: &kvoraclev1.Finished{OutputTokens: 1}}}
	}
	if ack := stays.step(finished(ids[1])); ack.GetUnknownDecisions() != 0 {
		t.Errorf("what the other gateway had sent: %v", ack)
	}
	if ack := gatewayStream(t, r.conn, "gone").step(finished(ids[0])); ack.GetUnknownDecisions() != 1 {
		t.Errorf("what was given back: %v", ack)
	}
	if n := r.bookedOn("w1"); n != 0 {
		t.Errorf("%d are booked in the end", n)
	}
	if n := r.counted("kvoracle.bookings.released", "cause=gateway"); n != 1 {
		t.Errorf("released because of a gateway: %d", n)
	}
}
