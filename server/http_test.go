package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kvoracle/kvoracle/internal/gateway/httpjson"

	spb "google.golang.org/genproto/googleapis/rpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// upHTTP starts a server with an HTTP door on a real socket and one worker.
func upHTTP(t *testing.T, cfg Config, opts ...Option) *rig {
	t.Helper()
	cfg.HTTPListen = "127.0.0.1:0"
	r := up(t, cfg, opts...)
	r.worker("w1") // and so it serves
	return r
}

// reply is an answer that was read to its end.
type reply struct {
	code   int
	header http.Header
	text   string
}

// do makes one HTTP call. Headers are "Name: value".
func (r *rig) do(verb, path, body string, headers ...string) reply {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), verb, "http://"+r.s.HTTPAddr().String()+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, h := range headers {
		k, v, _ := strings.Cut(h, ": ")
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/json" {
		r.t.Errorf("%s %s answers as %q", verb, path, got)
	}
	return reply{resp.StatusCode, resp.Header, string(text)}
}

// ok makes a call that must succeed.
func (r *rig) ok(verb, path, body string, into proto.Message) {
	r.t.Helper()
	a := r.do(verb, path, body)
	if a.code != http.StatusOK {
		r.t.Fatalf("%s %s: %+v", verb, path, a)
	}
	if err := protojson.Unmarshal([]byte(a.text), into); err != nil {
		r.t.Fatalf("%s %s: %v in %s", verb, path, err, a.text)
	}
}

// questions are requests as JSON, good and bad, for a server that reads prompts of at most 64 tokens.
func questions() map[string]string {
	long := strings.TrimSuffix(strings.Repeat("1,", 65), ",")
	return map[string]string{
		"tokens":        `{"model":"demo","dry_run":true,"tokens":{"token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}}`,
		"explain":       `{"model":"demo","dryRun":true,"explain":true,"tokens":{"tokenIds":[1,2,3]}}`,
		"hashes":        `{"model":"demo","dry_run":true,"block_hashes":{"hash_scheme":"xxh3-64/1337","block_size":16,"local_hashes":["1",2],"token_count":33}}`,
		"no model":      `{"tokens":{"token_ids":[1]}}`,
		"unknown model": `{"model":"other","tokens":{"token_ids":[1]}}`,
		"no prompt":     `{"model":"demo"}`,
		"empty prompt":  `{"model":"demo","tokens":{"token_ids":[]}}`,
		"long prompt":   `{"model":"demo","tokens":{"token_ids":[` + long + `]}}`,
		"scheme":        `{"model":"demo","block_hashes":{"hash_scheme":"md5","block_size":16,"local_hashes":[],"token_count":1}}`,
		"block size":    `{"model":"demo","block_hashes":{"hash_scheme":"xxh3-64/1337","block_size":32,"local_hashes":[],"token_count":1}}`,
		"text":          `{"model":"demo","dry_run":true,"text":"As it was said, \u00e9 and \ud83d\ude00 included."}`,
		"empty text":    `{"model":"demo","text":""}`,
		"long text":     `{"model":"demo","text":"` + strings.Repeat("x", 257) + `"}`,
		"denied":        `{"model":"demo","denied_workers":["w1"],"tokens":{"token_ids":[1]}}`,
		"wild wait":     `{"model":"demo","max_queue_seconds":-1,"tokens":{"token_ids":[1]}}`,
		"long name":     `{"model":"` + strings.Repeat("m", 300) + `","tokens":{"token_ids":[1]}}`,
		"image":         `{"model":"demo","dry_run":true,"tokens":{"token_ids":[1,2,3]},"multimodal":[{"first_token":1,"token_count":1,"digest":"MTIzNDU2Nzg="}]}`,
	}
}

// TestHTTPIsGRPC: the same message is answered with the same message, or refused with the same status.
func TestHTTPIsGRPC(t *testing.T) {
	r := upHTTP(t, Config{MaxPromptTokens: 64})
	for name, text := range questions() {
		t.Run(name, func(t *testing.T) {
			m := &kvoraclev1.RouteRequest{}
			if err := protojson.Unmarshal([]byte(text), m); err != nil {
				t.Fatal(err)
			}
			want, wantErr := r.route.Route(t.Context(), m)
			a := r.do("POST", "/v1/route", text)
			if wantErr != nil {
				st := status.Convert(wantErr)
				got := &spb.Status{}
				if err := protojson.Unmarshal([]byte(a.text), got); err != nil {
					t.Fatalf("%v in %s", err, a.text)
				}
				if diff := cmp.Diff(st.Proto(), got, protocmp.Transform()); diff != "" {
					t.Errorf("(-gRPC +HTTP)\n%s", diff)
				}
				if code := httpjson.HTTPStatus(st.Code()); a.code != code {
					t.Errorf("HTTP status %d for %v, want %d", a.code, st.Code(), code)
				}
				return
			}
			got := &kvoraclev1.RouteResponse{}
			if err := protojson.Unmarshal([]byte(a.text), got); err != nil || a.code != http.StatusOK {
				t.Fatalf("%v in %+v", err, a)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-gRPC +HTTP)\n%s", diff)
			}
		})
	}
	const refused = "kvoracle.requests.refused"
	if n := r.counted(refused, "rpc=kvoracle.v1.RouteService/Route", "reason=MODEL_UNKNOWN"); n != 2 {
		t.Errorf("two calls named a model that is not there, and %d are counted", n)
	}
}

// TestHTTPLife is a request's life and a worker's, over HTTP alone.
func TestHTTPLife(t *testing.T) {
	r := upHTTP(t, Config{})
	registered := &kvoraclev1.RegisterWorkerResponse{}
	r.ok("POST", "/v1/workers", `{"spec":{"worker_id":"rack/2","address":"10.0.0.2:8000","model":"demo","block_size":16}}`, registered)
	r.ok("POST", "/v1/workers/w1/drain", ``, &kvoraclev1.DrainWorkerResponse{})

	d := &kvoraclev1.RouteResponse{}
	r.ok("POST", "/v1/route", `{"request_id":"r1","model":"demo","tokens":{"token_ids":"AQAAAAIAAAADAAAA"}}`, d)
	if d.GetTarget().GetWorkerId() != "rack/2" || d.GetPromptTokens() != 3 || d.GetDecisionId() == "" {
		t.Fatalf("the decision is %v", d)
	}
	progress := &kvoraclev1.RecordProgressResponse{}
	r.ok("POST", "/v1/progress", fmt.Sprintf(`{"events":[{"decision_id":%q,"dispatched":{}},
		{"decision_id":%[1]q,"first_token":{"ttft_seconds":0.25}},{"decision_id":%[1]q,"finished":{"output_tokens":7,"cached_tokens":0}}]}`,
		d.GetDecisionId()), progress)
	if progress.GetApplied() != 3 {
		t.Errorf("of three steps %d were applied", progress.GetApplied())
	}
	explained := &kvoraclev1.ExplainDecisionResponse{}
	r.ok("GET", "/v1/decisions/"+d.GetDecisionId(), "", explained)
	if explained.GetRequestId() != "r1" || len(explained.GetDecision().GetCandidates()) == 0 {
		t.Errorf("the explanation is %v", explained)
	}
	list := &kvoraclev1.ListWorkersResponse{}
	r.ok("GET", "/v1/workers?model=demo", "", list)
	if len(list.GetWorkers()) != 2 {
		t.Errorf("%d workers, want 2", len(list.GetWorkers()))
	}
	r.ok("GET", "/v1/workers?model=none", "", list)
	if len(list.GetWorkers()) != 0 {
		t.Errorf("%d workers of no model", len(list.GetWorkers()))
	}
	one := &kvoraclev1.GetWorkerResponse{}
	r.ok("GET", "/v1/workers/w1", "", one)
	if one.GetWorker().GetState() != kvoraclev1.WorkerState_WORKER_STATE_DRAINING {
		t.Errorf("w1 is %v", one.GetWorker().GetState())
	}
	r.ok("POST", "/v1/workers/w1/drain", `{"undo":true}`, &kvoraclev1.DrainWorkerResponse{})
	r.ok("POST", "/v1/workers/rack%2F2/invalidate", "", &kvoraclev1.InvalidateWorkerResponse{})
	r.ok("DELETE", "/v1/workers/rack%2F2", "", &kvoraclev1.RemoveWorkerResponse{})
	if a := r.do("GET", "/v1/workers/rack%2F2", ""); a.code != http.StatusNotFound || !strings.Contains(a.text, "WORKER_UNKNOWN") {
		t.Errorf("a worker that was removed: %+v", a)
	}
}

// TestHTTPRefusals: what the door refuses by itself is refused with a reason, and counted once it names a method.
func TestHTTPRefusals(t *testing.T) {
	r := upHTTP(t, Config{MaxPromptTokens: 1000})
	const route = "rpc=kvoracle.v1.RouteService/Route"
	for name, c := range map[string]struct {
		verb, path, body string
		headers          []string
		code             int
		reason           string
		isCounted        bool
	}{
		"path":        {"GET", "/v2/route", "", nil, 404, "PATH_UNKNOWN", false},
		"verb":        {"PUT", "/v1/route", "", nil, 405, "VERB_UNSERVED", false},
		"type":        {"POST", "/v1/route", "{}", []string{"Content-Type: text/plain"}, 415, "BODY_TYPE", true},
		"compressed":  {"POST", "/v1/route", "{}", []string{"Content-Encoding: gzip"}, 415, "BODY_TYPE", true},
		"not JSON":    {"POST", "/v1/route", "tokens", nil, 400, "BODY_INVALID", true},
		"two forms":   {"POST", "/v1/route", `{"model":"demo","text":"x","tokens":{"token_ids":[1]}}`, nil, 400, "BODY_INVALID", true},
		"no field":    {"POST", "/v1/route", `{"nonsense":1}`, nil, 400, "BODY_INVALID", true},
		"not base64":  {"POST", "/v1/route", `{"tokens":{"token_ids":"!"}}`, nil, 400, "FIELD_INVALID", true},
		"large":       {"POST", "/v1/route", strings.Repeat(" ", 300_000), nil, 413, "BODY_TOO_LARGE", true},
		"two names":   {"POST", "/v1/workers/w1/drain", `{"worker_id":"w2"}`, nil, 400, "FIELD_INVALID", false},
		"cross-site":  {"POST", "/v1/route", `{}`, []string{"Sec-Fetch-Site: cross-site"}, 403, "CROSS_ORIGIN", false},
		"cross-orign": {"POST", "/v1/route", `{}`, []string{"Origin: https://example.org"}, 403, "CROSS_ORIGIN", false},
	} {
		t.Run(name, func(t *testing.T) {
			before := r.counted("kvoracle.requests.refused", route, "reason="+c.reason)
			a := r.do(c.verb, c.path, c.body, c.headers...)
			if a.code != c.code || !strings.Contains(a.text, `"`+c.reason+`"`) {
				t.Errorf("%+v; want %d, %s", a, c.code, c.reason)
			}
			if n := r.counted("kvoracle.requests.refused", route, "reason="+c.reason) - before; c.isCounted != (n == 1) {
				t.Errorf("counted %d times", n)
			}
		})
	}
	if a := r.do("PUT", "/v1/workers", ""); a.header.Get("Allow") != "GET, POST" {
		t.Errorf("workers allow %q", a.header.Get("Allow"))
	}
}

// TestHTTPIsShedAsGRPC: when calls are refused over gRPC they are refused here.
func TestHTTPIsShedAsGRPC(t *testing.T) {
	r := upHTTP(t, Config{})
	r.s.shedder.mu.Lock()
	r.s.shedder.end = time.Now().Add(time.Hour) // of a window in which all are refused
	r.s.shedder.share.Store(allShares)
	r.s.shedder.mu.Unlock()
	a := r.do("POST", "/v1/route", `{"model":"demo","tokens":{"token_ids":[1]}}`)
	if a.code != http.StatusTooManyRequests || !strings.Contains(a.text, "OVERLOADED") || a.header.Get("Retry-After") != "1" {
		t.Errorf("%+v", a)
	}
	if n := r.counted("kvoracle.requests.refused", "reason=OVERLOADED"); n != 1 {
		t.Errorf("counted %d times", n)
	}
}

// TestHTTPHook: a hook sees a call as it would over gRPC, and refuses it likewise.
func TestHTTPHook(t *testing.T) {
	var seen []string
	r := upHTTP(t, Config{}, WithAuth(func(ctx context.Context, method string) (context.Context, error) {
		token := metadata.ValueFromIncomingContext(ctx, "authorization")
		p, _ := peer.FromContext(ctx)
		seen = append(seen, fmt.Sprint(method, " ", token, " ", strings.HasPrefix(p.Addr.String(), "127.0.0.1:")))
		if len(token) == 1 && token[0] == "Bearer no" {
			return nil, status.Error(codes.Unauthenticated, "no")
		}
		return ctx, nil
	}))
	seen = nil
	a := r.do("POST", "/v1/route", `{"model":"demo","dry_run":true,"tokens":{"token_ids":[1]}}`, "Authorization: Bearer yes")
	if a.code != http.StatusOK {
		t.Errorf("%+v", a)
	}
	a = r.do("GET", "/v1/workers", "", "Authorization: Bearer no")
	if a.code != http.StatusUnauthorized || a.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("%+v", a)
	}
	want := []string{
		"/kvoracle.v1.RouteService/Route [Bearer yes] true",
		"/kvoracle.v1.FleetService/ListWorkers [Bearer no] true",
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
}

// TestHTTPPanic: a panic behind the door is an answer, and the server goes on.
func TestHTTPPanic(t *testing.T) {
	r := upHTTP(t, Config{})
	list := r.s.local.methods[kvoraclev1.FleetService_ListWorkers_FullMethodName]
	list.impl = (*fleetService)(nil)
	r.s.local.methods[kvoraclev1.FleetService_ListWorkers_FullMethodName] = list
	if a := r.do("GET", "/v1/workers", ""); a.code != http.StatusInternalServerError || strings.Contains(a.text, "nil pointer") {
		t.Errorf("%+v", a)
	}
	r.ok("GET", "/v1/workers/w1", "", &kvoraclev1.GetWorkerResponse{})
}

// TestHTTP2 speaks HTTP/2 by prior knowledge.
func TestHTTP2(t *testing.T) {
	r := upHTTP(t, Config{})
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.s.HTTPAddr().String()+"/v1/workers", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
		t.Errorf("%s over %s", resp.Status, resp.Proto)
	}
}

// TestHTTPKeepsConnectionsAndDrains: many calls share a connection, and one that idles does not hold up the end.
func TestHTTPKeepsConnectionsAndDrains(t *testing.T) {
	r := upHTTP(t, Config{})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.s.HTTPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for range 3 {
		if _, err := io.WriteString(conn, "GET /v1/workers HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	r.stop()
	if _, err := in.ReadByte(); err == nil {
		t.Error("the server has ended and says more")
	}
}

// TestOpenAPI: the document is served, and what it refers to is there.
func TestOpenAPI(t *testing.T) {
	r := upHTTP(t, Config{})
	text := r.do("GET", "/v1/openapi.json", "").text
	var doc struct {
		Paths      map[string]map[string]any
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Paths["/v1/route"]["post"] == nil || doc.Paths["/v1/workers/{worker_id}"]["delete"] == nil {
		t.Errorf("paths are missing: %v", doc.Paths)
	}
	for rest := []byte(text); ; {
		_, after, ok := bytes.Cut(rest, []byte(`"#/components/schemas/`))
		if !ok {
			break
		}
		name, _, _ := bytes.Cut(after, []byte(`"`))
		if doc.Components.Schemas[string(name)] == nil {
			t.Errorf("%s is not described", name)
		}
		rest = after
	}
}
