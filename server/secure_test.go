package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvoracle/kvoracle/internal/certs/certstest"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// people is an access file with somebody for each role; "w1" may report for itself.
const people = `
identities:
  - {name: gw, roles: [gateway], tokens: [token-of-the-gateway]}
  - {name: w1, roles: [worker], tokens: [token-of-worker-one]}
  - {name: op, roles: [operator], tokens: [token-of-an-operator]}
  - {name: eyes, roles: [monitor], tokens: [token-of-a-monitor]}
  - {name: pods, roles: [worker], certificates: ["*.workers.test"]}
  - {name: ops, roles: [operator], certificates: ["spiffe://test/ops"]}
`

// write makes or replaces a file at once.
func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

func accessFile(t testing.TB) string {
	t.Helper()
	return write(t, filepath.Join(t.TempDir(), "access.yaml"), people)
}

// onSocket starts a server on a real socket.
func onSocket(t testing.TB, cfg Config, opts ...Option) *rig {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	r := newRig(t, cfg, opts...)
	if err := r.s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- r.s.Run(ctx) }()
	t.Cleanup(func() { r.stop() })
	return r
}

// bearer sends a token with each call, over whatever.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if b == "" {
		return map[string]string{}, nil
	}
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return false }

// as connects with a token, and over TLS when a configuration is given.
func (r *rig) as(token string, c *tls.Config) *grpc.ClientConn {
	r.t.Helper()
	creds := insecure.NewCredentials()
	if c != nil {
		creds = credentials.NewTLS(c)
	}
	conn, err := grpc.NewClient(r.s.Addr().String(), grpc.WithTransportCredentials(creds), grpc.WithPerRPCCredentials(bearer(token)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// clientTLS is a client of an authority, with a certificate by that name if there is one.
func clientTLS(t testing.TB, ca *certstest.CA, leaf *certstest.Leaf) *tls.Config {
	t.Helper()
	c := &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS13}
	if leaf != nil {
		cert, key := ca.Issue("client", *leaf)
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// attempt makes any call of the two services as far as it takes to be let in or refused, and says how it was refused; OK is
// any other end.
func attempt(t *testing.T, conn *grpc.ClientConn, method string, isStream bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	if isStream {
		var s grpc.ClientStream
		s, err = conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		if err == nil {
			// No message at all is a short conversation, whoever leads it.
			if err = s.CloseSend(); err == nil {
				err = s.RecvMsg(&kvoraclev1.Root{})
			}
		}
	} else {
		err = conn.Invoke(ctx, method, &kvoraclev1.Root{}, &kvoraclev1.Root{})
	}
	if c := status.Code(err); c == codes.Unauthenticated || c == codes.PermissionDenied {
		return err
	}
	return nil
}

// TestEachCallWantsItsRole walks every method that the server serves with each sort of identity: who has a role that the
// table names gets through, nobody else does. A method without a row fails it.
func TestEachCallWantsItsRole(t *testing.T) {
	r := onSocket(t, Config{AccessFile: accessFile(t), Reflection: true})
	callers := []struct{ token, role string }{
		{"", ""},
		{"token-of-nobody-we-know", "?"},
		{"token-of-the-gateway", "gateway"},
		{"token-of-worker-one", "worker"},
		{"token-of-an-operator", "operator"},
		{"token-of-a-monitor", "monitor"},
	}
	table := rolesOf()
	seen := 0
	for service, info := range r.s.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			method := "/" + service + "/" + m.Name
			roles, ok := table[method]
			if !ok {
				t.Errorf("%s has no row in rolesOf: decide who may call it", method)
				continue
			}
			seen++
			for _, c := range callers {
				want := codes.OK
				switch {
				case roles == 0: // everybody
				case c.role == "" || c.role == "?":
					want = codes.Unauthenticated
				case !slices.Contains(strings.Split(roles.String(), " or "), c.role):
					want = codes.PermissionDenied
				}
				if service == "grpc.health.v1.Health" && m.Name == "Watch" {
					continue // it never ends by itself; TestHealthNeedsNobody
				}
				err := attempt(t, r.as(c.token, nil), method, m.IsClientStream || m.IsServerStream)
				if status.Code(err) != want {
					t.Errorf("%s as %q: %v, want %v", method, c.role, err, want)
				}
				if err != nil && c.token != "" && strings.Contains(err.Error(), c.token) {
					t.Errorf("%s: the token is in %q", method, err)
				}
				if want == codes.PermissionDenied && !strings.Contains(err.Error(), roles.String()) {
					t.Errorf("%s: %v does not say that it wants %s", method, err, roles)
				}
			}
		}
	}
	for method := range table {
		service, name := splitMethod(method)
		if !slices.ContainsFunc(r.s.grpc.GetServiceInfo()[service].Methods, func(m grpc.MethodInfo) bool { return m.Name == name }) {
			t.Errorf("the row %s is about nothing that is served", method)
		}
	}
	if seen < 20 {
		t.Errorf("%d methods: the test has lost its teeth", seen)
	}
	if text := r.logs.String(); strings.Contains(text, "token-of") {
		t.Error("a token is in the log")
	}
	for _, reason := range []string{"CREDENTIALS_MISSING", "CREDENTIALS_UNKNOWN", "ROLE_MISSING"} {
		if n := r.counted("kvoracle.requests.refused", "reason="+reason, "rpc=kvoracle.v1.FleetService/DrainWorker"); n == 0 {
			t.Errorf("%s was not counted", reason)
		}
	}
}

func splitMethod(full string) (service, name string) {
	i := strings.LastIndexByte(full, '/')
	return full[1:i], full[i+1:]
}

func TestHealthNeedsNobody(t *testing.T) {
	r := onSocket(t, Config{AccessFile: accessFile(t)})
	s, err := healthpb.NewHealthClient(r.as("", nil)).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.Recv(); err != nil || m.GetStatus() == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("%v, %v", m, err)
	}
}

func TestForeignServiceIsAnOperators(t *testing.T) {
	r := newRig(t, Config{AccessFile: accessFile(t)})
	r.addMethod(func(context.Context) error { return nil }) // after New: no rule at all
	r.serve()
	for _, token := range []string{"", "token-of-the-gateway", "token-of-an-operator"} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
		err := r.conn.Invoke(ctx, "/test.Service/Unary", &kvoraclev1.Root{}, &kvoraclev1.Root{})
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("%q: %v", token, err)
		}
	}
	desc := &grpc.ServiceDesc{ServiceName: "own.Service", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Do", ServerStreams: true, Handler: func(any, grpc.ServerStream) error { return nil },
	}}}
	own := onSocket(t, Config{AccessFile: accessFile(t)}, WithService(desc, nil))
	for token, want := range map[string]codes.Code{"token-of-the-gateway": codes.PermissionDenied, "token-of-an-operator": codes.OK} {
		if err := attempt(t, own.as(token, nil), "/own.Service/Do", true); status.Code(err) != want {
			t.Errorf("%q: %v, want %v", token, err, want)
		}
	}
}

func TestCredentialsInOtherForms(t *testing.T) {
	r := onSocket(t, Config{AccessFile: accessFile(t)})
	fleet := kvoraclev1.NewFleetServiceClient(r.as("", nil))
	for _, c := range []struct {
		headers []string
		want    codes.Code
	}{
		{[]string{"Bearer token-of-an-operator"}, codes.OK},
		{[]string{"bearer token-of-an-operator"}, codes.OK},
		{[]string{"token-of-an-operator"}, codes.Unauthenticated},
		{[]string{"Basic token-of-an-operator"}, codes.Unauthenticated},
		{[]string{"Bearer  token-of-an-operator"}, codes.Unauthenticated},
		{[]string{"Bearer "}, codes.Unauthenticated},
		{[]string{""}, codes.Unauthenticated},
		{[]string{"Bearer " + strings.Repeat("x", 4000)}, codes.Unauthenticated},
		{[]string{"Bearer token-of-an-operator", "Bearer token-of-an-operator"}, codes.Unauthenticated},
	} {
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{"authorization": c.headers})
		if _, err := fleet.ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{}); status.Code(err) != c.want {
			t.Errorf("%.60q: %v, want %v", c.headers, err, c.want)
		}
	}
}

// TestAWorkerReportsForItself is case B117.
func TestAWorkerReportsForItself(t *testing.T) {
	ca := certstest.NewCA(t)
	cert, key := ca.Issue("server", certstest.Leaf{})
	r := onSocket(t, Config{AccessFile: accessFile(t), TLSCert: cert, TLSKey: key, TLSClientCA: ca.File, TLSClientAuth: "optional"})
	w1 := r.as("token-of-worker-one", clientTLS(t, ca, nil))
	pod := r.as("", clientTLS(t, ca, &certstest.Leaf{DNS: []string{"w7.workers.test"}}))
	for _, c := range []struct {
		conn   *grpc.ClientConn
		worker string
		want   codes.Code
	}{{w1, "w1", codes.OK}, {w1, "w2", codes.PermissionDenied}, {pod, "w7", codes.OK}, {pod, "w1", codes.PermissionDenied}} {
		route := kvoraclev1.NewRouteServiceClient(c.conn)
		blocks, err := route.ReportBlocks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := blocks.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: hello(c.worker)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := blocks.Recv(); status.Code(err) != c.want {
			t.Errorf("blocks of %s: %v, want %v", c.worker, err, c.want)
		}
		load, err := route.ReportLoad(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := load.Send(&kvoraclev1.ReportLoadRequest{Message: &kvoraclev1.ReportLoadRequest_Hello{Hello: &kvoraclev1.LoadHello{
			Target: &kvoraclev1.Target{WorkerId: c.worker}, Incarnation: hello(c.worker).GetIncarnation(),
		}}}); err != nil {
			t.Fatal(err)
		}
		if err := load.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err = load.Recv(); (status.Code(err) == codes.PermissionDenied) != (c.want == codes.PermissionDenied) {
			t.Errorf("load of %s: %v, want %v", c.worker, err, c.want)
		}
	}
	if n := r.counted("kvoracle.requests.refused", "reason=NOT_YOUR_WORKER"); n != 4 {
		t.Errorf("%d refusals counted, want 4", n)
	}
}

func TestReasonsAreForOperators(t *testing.T) {
	r := onSocket(t, Config{AccessFile: accessFile(t)})
	r.fleet = kvoraclev1.NewFleetServiceClient(r.as("token-of-an-operator", nil))
	r.worker("w9")
	m := prompt(make([]uint32, 40)...)
	ask := func(token string, explain bool) (*kvoraclev1.RouteResponse, error) {
		m.Explain = explain
		return kvoraclev1.NewRouteServiceClient(r.as(token, nil)).Route(t.Context(), m)
	}
	plain, err := ask("token-of-the-gateway", false)
	if err != nil || len(plain.GetCandidates()) > 0 {
		t.Fatal(plain, err)
	}
	if _, err := ask("token-of-the-gateway", true); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a gateway sees reasons: %v", err)
	}
	full, err := ask("token-of-an-operator", true)
	if err != nil || len(full.GetCandidates()) == 0 {
		t.Errorf("an operator sees none: %v", err)
	}
	stream, err := kvoraclev1.NewRouteServiceClient(r.as("token-of-the-gateway", nil)).RouteStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, explain := range []bool{true, false} {
		m.Explain = explain
		if err := stream.Send(&kvoraclev1.RouteStreamRequest{Request: m}); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil || (answer.GetStatus().GetCode() == int32(codes.PermissionDenied)) != explain {
			t.Errorf("explain %v: %v, %v", explain, answer, err)
		}
	}
	for _, line := range r.logs.lines(t, "audit") {
		t.Log(line)
	}
	audit := auditLines(t, r)
	want := []string{
		"op RegisterWorker w9 OK", "gw Route  PERMISSION_DENIED", "op Route " + full.GetDecisionId() + " OK", "gw Route  PERMISSION_DENIED",
	}
	if !slices.Equal(audit, want) {
		t.Errorf("audit:\n%s\nwant:\n%s", strings.Join(audit, "\n"), strings.Join(want, "\n"))
	}
}

// auditLines are the audit's lines, short.
func auditLines(t *testing.T, r *rig) (out []string) {
	t.Helper()
	for _, line := range r.logs.lines(t, "audit") {
		g, ok := line["audit"].(map[string]any)
		if !ok {
			t.Fatalf("no group in %v", line)
		}
		if g["from"] != "127.0.0.1" {
			t.Errorf("from %v", g["from"])
		}
		out = append(out, fmt.Sprint(g["identity"], " ", g["action"], " ", g["target"], " ", g["outcome"]))
	}
	return out
}

func TestOperatorsActionsAreWrittenDown(t *testing.T) {
	r := onSocket(t, Config{AccessFile: accessFile(t)})
	op := kvoraclev1.NewFleetServiceClient(r.as("token-of-an-operator", nil))
	ctx := t.Context()
	r.fleet = op
	r.worker("w9")
	_, _ = op.DrainWorker(ctx, &kvoraclev1.DrainWorkerRequest{WorkerId: "w9"})
	_, _ = op.InvalidateWorker(ctx, &kvoraclev1.InvalidateWorkerRequest{WorkerId: "w9"})
	if s, err := op.VerifyWorker(ctx, &kvoraclev1.VerifyWorkerRequest{Target: &kvoraclev1.Target{WorkerId: "w9"}}); err != nil {
		t.Error(err)
	} else if _, err := io.ReadAll(readerOf(s)); err != nil {
		t.Error(err)
	}
	_, _ = op.ExplainDecision(ctx, &kvoraclev1.ExplainDecisionRequest{DecisionId: "nonsense"})
	_, _ = op.ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{})
	_, _ = op.RemoveWorker(ctx, &kvoraclev1.RemoveWorkerRequest{WorkerId: "w9"})
	_, _ = kvoraclev1.NewFleetServiceClient(r.as("token-of-the-gateway", nil)).RemoveWorker(ctx, &kvoraclev1.RemoveWorkerRequest{WorkerId: "w9"})
	want := []string{
		"op RegisterWorker w9 OK", "op DrainWorker w9 OK", "op InvalidateWorker w9 OK", "op VerifyWorker w9 OK",
		"op ExplainDecision nonsense NOT_FOUND", "op RemoveWorker w9 OK",
	}
	if got := auditLines(t, r); !slices.Equal(got, want) {
		t.Errorf("audit:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// readerOf reads a server's stream to its end.
func readerOf(s grpc.ClientStream) io.Reader { return streamReader{s} }

type streamReader struct{ s grpc.ClientStream }

// Read implements io.Reader.
func (r streamReader) Read([]byte) (int, error) {
	return 0, r.s.RecvMsg(&kvoraclev1.VerifyWorkerResponse{})
}

// TestANewAccessFileHoldsAtOnce takes a token away under an open connection and an open stream, and gives it another role.
func TestANewAccessFileHoldsAtOnce(t *testing.T) {
	path := accessFile(t)
	r := onSocket(t, Config{AccessFile: path})
	gw, w1 := r.as("token-of-the-gateway", nil), r.as("token-of-worker-one", nil)
	list := func() codes.Code {
		_, err := kvoraclev1.NewFleetServiceClient(gw).ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{})
		return status.Code(err)
	}
	open := func(conn *grpc.ClientConn) kvoraclev1.RouteService_ReportBlocksClient {
		t.Helper()
		s, err := kvoraclev1.NewRouteServiceClient(conn).ReportBlocks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: hello("w1")}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	stream := open(w1)
	watch, err := kvoraclev1.NewFleetServiceClient(gw).WatchWorkers(t.Context(), &kvoraclev1.WatchWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	if c := list(); c != codes.OK {
		t.Fatal(c)
	}

	write(t, path, "identities: []") // a mistake changes nothing
	r.s.reload(time.Now())
	r.s.reload(time.Now())
	if c := list(); c != codes.OK {
		t.Errorf("after a bad file: %v", c)
	}
	write(t, path, strings.ReplaceAll(strings.ReplaceAll(people, "token-of-the-gateway", "another-one-entirely"), "name: w1, roles: [worker]", "name: w1, roles: [worker, monitor]"))
	r.s.reload(time.Now())
	r.s.reload(time.Now())
	if c := list(); c != codes.Unauthenticated {
		t.Errorf("a token that was taken out: %v", c)
	}
	for {
		if _, err = watch.Recv(); err != nil {
			break
		}
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stream of it: %v", err)
	}
	for {
		if _, err = stream.Recv(); err != nil {
			break
		}
	}
	// gRPC itself says CANCELED to a peer when reading from it is ended; coming again it hears why.
	if c := status.Code(err); c != codes.Canceled && c != codes.Unauthenticated {
		t.Errorf("a stream of one that is not what it was: %v", err)
	}
	stream = open(w1)
	write(t, path, strings.ReplaceAll(people, "name: w1, roles: [worker]", "name: w1, roles: [worker, monitor]"))
	r.s.reload(time.Now())
	if err := stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: &kvoraclev1.BlockBatch{Sequence: 1}}}); err != nil {
		t.Error(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetAck() == nil {
		t.Errorf("a stream of one that is what it was: %v, %v", m, err)
	}
	for outcome, want := range map[string]int64{"applied": 2, "refused": 1} {
		if n := r.counted("kvoracle.reloads", "file=access", "outcome="+outcome); n != want {
			t.Errorf("%s: %d counted, want %d", outcome, n, want)
		}
	}
}

func TestCertificateRotation(t *testing.T) {
	ca := certstest.NewCA(t)
	cert, key := ca.Issue("server", certstest.Leaf{})
	r := onSocket(t, Config{OpsListen: "127.0.0.1:0", AccessFile: accessFile(t), TLSCert: cert, TLSKey: key, TLSClientCA: ca.File})
	shown := func() string {
		t.Helper()
		c := clientTLS(t, ca, &certstest.Leaf{URIs: []string{"spiffe://test/ops"}})
		var serial string
		c.VerifyConnection = func(s tls.ConnectionState) error { serial = s.PeerCertificates[0].SerialNumber.String(); return nil }
		if _, err := kvoraclev1.NewFleetServiceClient(r.as("", c)).ListWorkers(t.Context(), &kvoraclev1.ListWorkersRequest{}); err != nil {
			t.Fatal(err)
		}
		return serial
	}
	first := shown()
	write(t, cert, "nothing of the sort")
	r.s.reload(time.Now())
	r.s.reload(time.Now())
	if shown() != first {
		t.Error("a bad file is in force")
	}
	ca.Issue("server", certstest.Leaf{})
	r.s.reload(time.Now())
	second := shown()
	if second == first {
		t.Error("the new certificate is not in force")
	}
	for outcome, want := range map[string]int64{"applied": 1, "refused": 1} {
		if n := r.counted("kvoracle.reloads", "file=certificate", "outcome="+outcome); n != want {
			t.Errorf("%s: %d counted, want %d", outcome, n, want)
		}
	}
	if n := len(r.logs.lines(t, "a file that has changed cannot be used; the former stays in force")); n != 1 {
		t.Errorf("%d lines of the bad file, want 1", n)
	}

	for name, c := range map[string]*tls.Config{
		"no certificate": clientTLS(t, ca, nil),
		"a stranger's":   clientTLS(t, certstest.NewCA(t), &certstest.Leaf{URIs: []string{"spiffe://test/ops"}}),
	} {
		c.RootCAs = ca.Pool()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := kvoraclev1.NewFleetServiceClient(r.as("token-of-an-operator", c)).ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{})
		cancel()
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v, want no connection", name, err)
		}
	}
	unlisted := r.as("", clientTLS(t, ca, &certstest.Leaf{URIs: []string{"spiffe://test/unknown"}}))
	if err := attempt(t, unlisted, "/kvoracle.v1.FleetService/ListWorkers", false); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a certificate that nobody listed: %v", err)
	}

	// The operator's port: the same certificate, none wanted, and one that is shown counts.
	get := func(path string, c *tls.Config, token string) int {
		t.Helper()
		client := http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.s.OpsAddr().String()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if s := resp.TLS.PeerCertificates[0].SerialNumber.String(); s != second {
			t.Errorf("%s: another certificate", path)
		}
		return resp.StatusCode
	}
	none, ops := clientTLS(t, ca, nil), clientTLS(t, ca, &certstest.Leaf{URIs: []string{"spiffe://test/ops"}})
	for _, c := range []struct {
		path, token string
		tls         *tls.Config
		want        int
	}{
		{"/healthz", "", none, 200},
		{"/", "", none, 200},
		{"/metrics", "", none, 401},
		{"/metrics", "token-of-a-monitor", none, 200},
		{"/metrics", "token-of-the-gateway", none, 403},
		{"/metrics", "", ops, 200},
		{"/debug/pprof/", "", ops, 200},
		{"/debug/pprof/", "token-of-a-monitor", none, 403},
		{"/debug/pprof/", "token-of-an-operator", none, 200},
		{"/metrics", "wrong", ops, 401},
	} {
		if got := get(c.path, c.tls, c.token); got != c.want {
			t.Errorf("%s with %q: %d, want %d", c.path, c.token, got, c.want)
		}
	}
}

// TestTheHTTPDoorWantsTheSame: calls over HTTP have identities like any other.
func TestTheHTTPDoorWantsTheSame(t *testing.T) {
	ca := certstest.NewCA(t)
	cert, key := ca.Issue("server", certstest.Leaf{})
	r := onSocket(t, Config{
		HTTPListen: "127.0.0.1:0", AccessFile: accessFile(t), TLSCert: cert, TLSKey: key, TLSClientCA: ca.File, TLSClientAuth: "optional",
	})
	none, ops := clientTLS(t, ca, nil), clientTLS(t, ca, &certstest.Leaf{URIs: []string{"spiffe://test/ops"}})
	for _, c := range []struct {
		verb, path, body, token string
		tls                     *tls.Config
		want                    int
	}{
		{"GET", "/v1/workers", "", "", none, 401},
		{"GET", "/v1/workers", "", "token-of-nobody-we-know", none, 401},
		{"GET", "/v1/workers", "", "token-of-worker-one", none, 403},
		{"GET", "/v1/workers", "", "token-of-the-gateway", none, 200},
		{"GET", "/v1/workers", "", "", ops, 200},
		{"POST", "/v1/route", `{"model":"demo","tokens":{"token_ids":[1]}}`, "token-of-the-gateway", none, 404}, // no such model
		{"POST", "/v1/route", `{"model":"demo","explain":true,"tokens":{"token_ids":[1]}}`, "token-of-the-gateway", none, 403},
		{"POST", "/v1/route", `{"model":"demo","tokens":{"token_ids":[1]}}`, "", none, 401},
	} {
		client := http.Client{Transport: &http.Transport{TLSClientConfig: c.tls, ForceAttemptHTTP2: true, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), c.verb, "https://"+r.s.HTTPAddr().String()+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.want || resp.ProtoMajor != 2 {
			t.Errorf("%s %s %s with %q: HTTP/%d, %d %s; want %d", c.verb, c.path, c.body, c.token, resp.ProtoMajor, resp.StatusCode, text, c.want)
		}
	}
	if n := r.counted("kvoracle.requests.refused", "reason=CREDENTIALS_MISSING"); n != 2 {
		t.Errorf("%d refusals counted, want 2", n)
	}
}

func TestNoServerWithoutItsFiles(t *testing.T) {
	clearEnv(t)
	ca := certstest.NewCA(t)
	cert, key := ca.Issue("server", certstest.Leaf{})
	missing := filepath.Join(t.TempDir(), "missing")
	for name, c := range map[string]struct {
		cfg  Config
		want []string
	}{
		"certificate":  {Config{TLSCert: missing, TLSKey: key}, []string{"TLSCert", missing}},
		"authorities":  {Config{TLSCert: cert, TLSKey: key, TLSClientCA: missing}, []string{"TLSClientCA", missing}},
		"access":       {Config{AccessFile: missing}, []string{"AccessFile", missing}},
		"empty access": {Config{AccessFile: write(t, filepath.Join(t.TempDir(), "a"), "")}, []string{"AccessFile", "empty"}},
	} {
		_, err := New(c.cfg)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want it to name %s", name, err, want)
			}
		}
	}
	all := Config{Listen: "0.0.0.0:0", TLSCert: cert, TLSKey: key, AccessFile: accessFile(t)}
	s, err := New(all)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
