package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// served makes a call that must be answered whatever else goes on.
func (r *rig) served(token string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	if _, err := kvoraclev1.NewFleetServiceClient(r.as(token, nil)).ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{}); err != nil {
		r.t.Errorf("somebody else is not served: %v", err)
	}
}

// eventually asks again until it is so, or the test's minute is over. Each try is a call, so nobody spins.
func (r *rig) eventually(what, token string, isSo func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !isSo(); r.served(token) {
		if time.Now().After(end) {
			r.t.Fatalf("it never came to this: %s", what)
		}
	}
}

func dialRaw(t *testing.T, r *rig) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestConnectionsThatSayNothing: there are never more of them than MaxNewConnections, and who calls gets in.
func TestConnectionsThatSayNothing(t *testing.T) {
	const most, all = 16, 200
	r := onSocket(t, Config{AccessFile: accessFile(t), MaxNewConnections: most})
	for range all {
		dialRaw(t, r)
	}
	r.eventually("the oldest are closed", "token-of-an-operator", func() bool {
		return r.counted("kvoracle.connections.closed", "reason=idle") >= all-most
	})
	if n := r.counted("kvoracle.connections.closed", "reason=full"); n != 0 {
		t.Errorf("%d connections were turned away", n)
	}
}

// TestConnectionsAreBounded: those that have called stay, and further ones are closed at once.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 8
	r := onSocket(t, Config{AccessFile: accessFile(t), MaxConnections: most, MaxNewConnections: most})
	conns := make([]*grpc.ClientConn, most)
	list := func(conn *grpc.ClientConn, timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := kvoraclev1.NewFleetServiceClient(conn).ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{})
		return err
	}
	for i := range conns {
		conns[i] = r.as("token-of-an-operator", nil)
		if err := list(conns[i], time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	late := dialRaw(t, r)
	if _, err := late.Read(make([]byte, 1)); err == nil {
		t.Error("one too many was served")
	}
	for i, conn := range conns {
		if err := list(conn, time.Minute); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	_ = conns[0].Close() // what leaves makes room
	next := r.as("token-of-an-operator", nil)
	for end := time.Now().Add(time.Minute); list(next, time.Minute) != nil; {
		if time.Now().After(end) {
			t.Fatal("there is never room again")
		}
	}
	if n := r.counted("kvoracle.connections.closed", "reason=full"); n < 1 {
		t.Error("nothing was counted")
	}
}

func TestGuestsOfOneHostPushOutEachOther(t *testing.T) {
	g := newGuests(nil, &Config{MaxConnections: 100, MaxNewConnections: 4}, func(string) {})
	enter := func(host string) (c, victim *guest) {
		c = &guest{of: g, host: host}
		victim, ok := g.enter(c)
		if !ok {
			t.Fatalf("%s was turned away", host)
		}
		return c, victim
	}
	quiet, _ := enter("quiet")
	var flood []*guest
	for i := range 10 {
		c, victim := enter("flood")
		flood = append(flood, c)
		if want := i - 3; want < 0 && victim != nil || want >= 0 && victim != flood[want] {
			t.Errorf("connection %d pushed out %v", i, victim)
		}
	}
	quiet.settle()
	if g.news != 3 || g.count != 4 || quiet.gone {
		t.Errorf("%d new, %d in all", g.news, g.count)
	}
	quiet.settle() // again: nothing happens
	g.drop(quiet)
	g.drop(quiet)
	for _, c := range flood {
		g.drop(c)
	}
	if g.news != 0 || g.count != 0 || len(g.hosts) != 0 {
		t.Errorf("left behind: %d new, %d in all, %d hosts", g.news, g.count, len(g.hosts))
	}
}

// TestStreamsThatNeverBegin: a call whose message does not come is ended; a RouteStream may wait.
func TestStreamsThatNeverBegin(t *testing.T) {
	r := onSocket(t, Config{AccessFile: accessFile(t), FirstMessageTimeout: 200 * time.Millisecond})
	gw, w1 := r.as("token-of-the-gateway", nil), r.as("token-of-worker-one", nil)
	idle, err := kvoraclev1.NewRouteServiceClient(gw).RouteStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late := 0
	far, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for _, ctx := range []context.Context{t.Context(), far} {
		for _, c := range []struct {
			conn   *grpc.ClientConn
			method string
		}{
			{w1, "/kvoracle.v1.RouteService/ReportBlocks"},
			{w1, "/kvoracle.v1.RouteService/ReportLoad"},
			{gw, "/kvoracle.v1.RouteService/ReportProgress"},
			{gw, "/kvoracle.v1.RouteService/Route"},
			{gw, "/kvoracle.v1.FleetService/WatchWorkers"},
		} {
			s, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, c.method)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.RecvMsg(&kvoraclev1.Root{}); status.Code(err) != codes.Canceled {
				t.Errorf("%s: %v", c.method, err)
			}
			late++
		}
	}
	if n := r.counted("kvoracle.requests.refused", "reason=FIRST_MESSAGE_LATE"); n != int64(late) {
		t.Errorf("%d counted, want %d", n, late)
	}
	if err := idle.Send(&kvoraclev1.RouteStreamRequest{Tag: 7, Request: prompt(1)}); err != nil {
		t.Fatal(err)
	}
	if m, err := idle.Recv(); err != nil || m.GetTag() != 7 {
		t.Errorf("a RouteStream that waited: %v, %v", m, err)
	}
}

// TestStreamFlood: an identity has its streams, and others theirs.
func TestStreamFlood(t *testing.T) {
	const most = 8
	r := onSocket(t, Config{AccessFile: accessFile(t), MaxStreams: most})
	gw := kvoraclev1.NewRouteServiceClient(r.as("token-of-the-gateway", nil))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ask := func(s kvoraclev1.RouteService_RouteStreamClient) error {
		if err := s.Send(&kvoraclev1.RouteStreamRequest{Request: prompt(1)}); err != nil && !strings.Contains(err.Error(), "EOF") {
			return err
		}
		_, err := s.Recv()
		return err
	}
	open := func(ctx context.Context) error {
		t.Helper()
		s, err := gw.RouteStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return ask(s)
	}
	refused := 0
	for range 5 * most {
		if err := open(ctx); status.Code(err) == codes.ResourceExhausted {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if want := 4 * most; refused != want || r.counted("kvoracle.requests.refused", "reason=STREAMS_EXCEEDED") != int64(want) {
		t.Errorf("%d refused, want %d, and as many counted", refused, want)
	}
	w1, err := kvoraclev1.NewRouteServiceClient(r.as("token-of-worker-one", nil)).ReportBlocks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w1.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: hello("w1")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w1.Recv(); err != nil {
		t.Errorf("another identity: %v", err)
	}
	cancel()
	r.eventually("streams that end make room", "token-of-an-operator", func() bool { return open(t.Context()) == nil })
}

func TestRateOfOneIdentity(t *testing.T) {
	r := onSocket(t, Config{AccessFile: accessFile(t), MaxRate: 1})
	gw := r.as("token-of-the-gateway", nil)
	refused := 0
	for range 100 {
		_, err := kvoraclev1.NewFleetServiceClient(gw).ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
		if info, _, _, retry := details(t, err); info.GetReason() == "RATE_EXCEEDED" && retry != nil {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused == 0 {
		t.Error("nobody was refused")
	}
	r.served("token-of-an-operator") // its first call of the second
	stream, err := kvoraclev1.NewRouteServiceClient(r.as("token-of-an-operator", nil)).RouteStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		_ = stream.Send(&kvoraclev1.RouteStreamRequest{Request: prompt(1)}) // Recv says why it failed
		m, err := stream.Recv()
		if status.Code(err) == codes.ResourceExhausted || m.GetStatus().GetCode() == int32(codes.ResourceExhausted) {
			return // a question, or the stream itself, was one too many
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("questions of a stream are not counted")
}

// TestOversizedCalls: metadata and messages that are too large, plain and compressed, are refused and others go on.
func TestOversizedCalls(t *testing.T) {
	// Packing the bomb takes this process a while.
	r := onSocket(t, Config{AccessFile: accessFile(t), MaxPromptTokens: 1000, FirstMessageTimeout: 10 * time.Minute})
	gw := kvoraclev1.NewRouteServiceClient(r.as("token-of-the-gateway", nil))
	fat := metadata.AppendToOutgoingContext(t.Context(), "x-fat", strings.Repeat("x", 64<<10))
	if _, err := gw.Route(fat, prompt(1)); err == nil {
		t.Error("64 KiB of metadata were taken")
	}
	many := t.Context()
	md := metadata.MD{}
	for i := range 2000 {
		md.Set(fmt.Sprintf("x-%d", i), "y")
	}
	if _, err := gw.Route(metadata.NewOutgoingContext(many, md), prompt(1)); err == nil {
		t.Error("two thousand headers were taken")
	}
	bomb := prompt(make([]uint32, 4<<20)...) // 16 MiB of zeros: 16 KiB as gzip
	for _, opts := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
		if _, err := gw.Route(t.Context(), bomb, opts...); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%v", err)
		}
	}
	if _, err := gw.Route(t.Context(), prompt(make([]uint32, 1000)...), grpc.UseCompressor(gzip.Name)); status.Code(err) != codes.NotFound {
		t.Errorf("one that fits: %v", err)
	}
	r.served("token-of-an-operator")
}

// TestRefusedCallsLeaveNothing: callers nobody knows, with deadlines an hour away, which gRPC would keep timers for.
func TestRefusedCallsLeaveNothing(t *testing.T) {
	const calls = 4000
	r := onSocket(t, Config{AccessFile: accessFile(t)})
	conn := r.as("token-of-nobody-we-know", nil)
	round := func(n int) {
		for range n {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			err := conn.Invoke(ctx, "/kvoracle.v1.RouteService/Route", &kvoraclev1.Root{}, &kvoraclev1.Root{})
			cancel()
			if status.Code(err) != codes.Unauthenticated {
				t.Fatal(err)
			}
		}
	}
	objects := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapObjects
	}
	round(200)
	before := objects()
	round(calls)
	if after := objects(); after > before+calls {
		t.Errorf("%d objects more after %d calls", after-before, calls)
	}
	if n := r.counted("kvoracle.requests.refused", "reason=CREDENTIALS_UNKNOWN"); n != calls+200 {
		t.Errorf("%d refusals counted, want %d", n, calls+200)
	}
}

// TestPingFlood: a peer that pings without end is sent away.
func TestPingFlood(t *testing.T) {
	r := onSocket(t, Config{AccessFile: accessFile(t)})
	conn := dialRaw(t, r)
	frames := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0, 0, 0, 4, 0, 0, 0, 0, 0) // and empty settings
	ping := append([]byte{0, 0, 8, 6, 0, 0, 0, 0, 0}, make([]byte, 8)...)
	go func() {
		_, err := conn.Write(frames)
		for err == nil {
			_, err = conn.Write(ping)
		}
	}()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("it is still there: %v", err)
	}
	r.served("token-of-an-operator")
}
