package extproc

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// entryOf is an entry as Envoy writes it for a request that was answered with a code by a worker.
func entryOf(decision string, worker, code int) *accesslogdatav3.HTTPAccessLogEntry {
	e := &accesslogdatav3.HTTPAccessLogEntry{
		CommonProperties: &accesslogdatav3.AccessLogCommon{
			AccessLogType: accesslogdatav3.AccessLogType_DownstreamEnd,
			ResponseFlags: &accesslogdatav3.ResponseFlags{},
			Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{spaceBalancer: {Fields: map[string]*structpb.Value{
				keyDecision: structpb.NewStringValue(decision),
			}}}},
		},
		Response: &accesslogdatav3.HTTPResponseProperties{},
	}
	if code > 0 {
		e.Response.ResponseCode = wrapperspb.UInt32(uint32(code))
	}
	if worker > 0 {
		e.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "10.0.0." + string(rune('0'+worker)), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
		}}}
	}
	return e
}

// log writes entries by a stream of its own, and waits until they were taken.
func (r *rig) log(entries ...*accesslogdatav3.HTTPAccessLogEntry) []Entry {
	r.t.Helper()
	stream, err := r.logs.StreamAccessLogs(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if err := stream.Send(&accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: entries},
	}}); err != nil {
		r.t.Fatal(err)
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		r.t.Fatal(err)
	}
	var out []Entry
	for range entries {
		out = append(out, next(r.t, r.entries))
	}
	return out
}

// short is a request whose stream ends with its choice, as in a processing mode without the response.
func (r *rig) short() (to []string, decision string) {
	r.t.Helper()
	c, m := r.ask(textPath, question)
	to, decision = choice(r.t, m)
	c.over()
	return to, decision
}

// TestLogSparesTheStream: where only the body is sent and the log tells the rest, the stream ends with its answer, before the proxy
// has ended it, and the booking lives on. Where more is to come by it, or nobody tells the rest, it is left to the proxy.
func TestLogSparesTheStream(t *testing.T) {
	r := start(t, 2, nil)
	r.isLogged = true
	c := r.call(buffered, none)
	c.bodyWith(attributesOf(t, textPath))
	to, decision := choice(t, c.recv())
	if m, err := c.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the answer: %v, %v", m, err)
	}
	if got := r.heard(); got != nil {
		t.Errorf("with the stream's end came %v", got)
	}
	if d := cmp.Diff([]Entry{EntryEnded}, r.log(entryOf(decision, workerAt(to[0]), 200))); d != "" {
		t.Error(d)
	}

	for name, c := range map[string]*call{"bodies to come": r.call(buffered, streamed), "no log": func() *call {
		r.isLogged = false
		return r.call(buffered, none)
	}()} {
		c.bodyWith(attributesOf(t, textPath))
		_, decision := choice(t, c.recv())
		c.answered(to[0], false, ":status", ok)
		if m := c.recv(); m.GetResponseHeaders() == nil {
			t.Errorf("%s: got %v", name, m)
		}
		c.over()
		r.log(entryOf(decision, 1, 200))
	}
	r.s.Tick(time.Now().Add(time.Second)) // no more is to be heard of the bodies
}

// TestLogOfWhatWasNotHeard: of a choice that came when the proxy had just given up its log knows no decision. By the request's name
// the booking ends all the same, at whoever has served it.
func TestLogOfWhatWasNotHeard(t *testing.T) {
	r := start(t, 2, nil)
	r.isLogged = true
	c := r.call(buffered, none)
	c.post(textPath, keyRequest, "r1")
	c.recv()
	c.body(question, true)
	to, _ := choice(t, c.recv())
	c.over()
	other := 3 - workerAt(to[0])
	entry := func(request string, kind accesslogdatav3.AccessLogType) *accesslogdatav3.HTTPAccessLogEntry {
		e := entryOf("", other, 200)
		e.CommonProperties.AccessLogType = kind
		e.Request = &accesslogdatav3.HTTPRequestProperties{RequestId: request}
		return e
	}
	const end = accesslogdatav3.AccessLogType_DownstreamEnd
	got := r.log(entry("r2", end), entry("", end), entry("r1", accesslogdatav3.AccessLogType_DownstreamPeriodic), entry("r1", end), entry("r1", end))
	if d := cmp.Diff([]Entry{EntryForeign, EntryForeign, EntryAlive, EntryEnded, EntryForeign}, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"dispatched applied", "dispatched late", "finished applied"}, r.heard()); d != "" {
		t.Error(d)
	}
	if n := len(r.s.byRequest); n != 0 {
		t.Errorf("%d requests are remembered", n)
	}
}

// TestLogOfReplicas: where others decide too, an entry about a decision of theirs goes to the oracle, and a booking of ours of which
// the end was told there is not waited for.
func TestLogOfReplicas(t *testing.T) {
	for _, has := range []bool{false, true} {
		r := start(t, 2, func(c *Config) { c.HasReplicas = has })
		r.isLogged = true
		_, ours := r.short()
		a, err := r.o.Route(t.Context(), &oracle.RouteRequest{Model: "m", Prompt: oracle.TextPrompt([][]byte{[]byte(question)})}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		theirs := strconv.FormatUint(uint64(a.Decision), 16)
		alive, want := entryOf(theirs, 1, 0), []Entry{EntryUnknown, EntryUnknown, EntryUnknown, EntryUnknown}
		alive.CommonProperties.AccessLogType = accesslogdatav3.AccessLogType_DownstreamPeriodic
		if has {
			want = []Entry{EntryAlive, EntryEnded, EntryUnknown, EntryUnknown}
		}
		if d := cmp.Diff(want, r.log(alive, entryOf(theirs, 1, 200), entryOf(theirs, 1, 200), entryOf("no number", 1, 200))); d != "" {
			t.Errorf("with replicas %v (-want +got):\n%s", has, d)
		}
		id, err := strconv.ParseUint(ours, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []oracle.DecisionID{a.Decision, oracle.DecisionID(id)} {
			if _, err := r.o.Progress(&oracle.Event{Decision: d, Step: oracle.Finished, Cached: -1}, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		r.s.Tick(time.Now().Add(renewEvery - time.Second))
		if n := len(r.s.lives); n != 1 {
			t.Errorf("%d are waited for at once, want 1", n)
		}
		r.s.Tick(time.Now().Add(renewEvery))
		if n := len(r.s.lives); n != map[bool]int{false: 1, true: 0}[has] {
			t.Errorf("with replicas %v %d are waited for", has, n)
		}
		r.s.Tick(time.Now().Add(2 * defaultLogSilence))
	}
}

// TestUnheardChoice: a choice that comes when the proxy has left at its message_timeout is not booked until the log's silence: the log
// will say nothing of it.
func TestUnheardChoice(t *testing.T) {
	leave := make(chan func(), 1)
	var r *rig
	r = start(t, 2, func(c *Config) {
		c.Route = func(ctx context.Context, _ string, q *oracle.RouteRequest) (*oracle.Answer, error) {
			a, err := r.o.Route(ctx, q, time.Now())
			(<-leave)()
			<-ctx.Done()
			return a, err
		}
	})
	r.isLogged = true
	c := r.call(buffered, none)
	leave <- c.cancel
	c.bodyWith(attributesOf(t, textPath))
	if got := next(t, r.steps); got != "cancelled applied" {
		t.Errorf("it went on with %s", got)
	}
}

func workerAt(address string) int { return int(address[len("10.0.0.")] - '0') }

// TestLogEnds: where the stream ends with the choice, the log says how the request has ended.
func TestLogEnds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		code   int
		change func(*accesslogdatav3.AccessLogCommon)
		want   []string
	}{
		{"well", 200, nil, []string{"dispatched applied", "finished applied"}},
		{"refused", 404, nil, []string{"dispatched applied", "cancelled applied"}},
		{"broken", 503, nil, []string{"dispatched applied", "failed applied"}},
		{"the client left before an answer", 0, func(c *accesslogdatav3.AccessLogCommon) {
			c.ResponseFlags.DownstreamConnectionTermination = true
		}, []string{"dispatched applied", "cancelled applied"}},
		{"the client left in the middle", 200, func(c *accesslogdatav3.AccessLogCommon) {
			c.ResponseFlags.DownstreamRemoteReset = true
		}, []string{"dispatched applied", "cancelled applied"}},
		{"cut in the middle", 200, func(c *accesslogdatav3.AccessLogCommon) {
			c.ResponseFlags.UpstreamConnectionTermination = true
		}, []string{"dispatched applied", "failed applied"}},
		{"of a proxy that knows no types", 200, func(c *accesslogdatav3.AccessLogCommon) {
			c.AccessLogType = accesslogdatav3.AccessLogType_NotSet
		}, []string{"dispatched applied", "finished applied"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, 2, nil)
			r.isLogged = true
			to, decision := r.short()
			if got := r.heard(); got != nil {
				t.Errorf("with the stream's end came %v", got)
			}
			e := entryOf(decision, workerAt(to[0]), tt.code)
			if tt.change != nil {
				tt.change(e.CommonProperties)
			}
			// A second one of the same changes nothing.
			if d := cmp.Diff([]Entry{EntryEnded, EntryUnknown}, r.log(e, e)); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(tt.want, r.heard()); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestLogFollowsTheRetry: the booking is where the upstream really was, already while it goes on.
func TestLogFollowsTheRetry(t *testing.T) {
	r := start(t, 3, nil)
	r.isLogged = true
	to, decision := r.short()
	on := func() string {
		for _, w := range r.o.Workers("", time.Now()) {
			if w.Ranks[0].Load.InFlight > 0 {
				return w.Address
			}
		}
		return ""
	}
	second := entryOf(decision, workerAt(to[1]), 0)
	second.CommonProperties.AccessLogType = accesslogdatav3.AccessLogType_DownstreamPeriodic
	if d := cmp.Diff([]Entry{EntryAlive}, r.log(second)); d != "" {
		t.Error(d)
	}
	if got := on(); got != to[1] {
		t.Errorf("it is at %q, want %s", got, to[1])
	}
	third := entryOf(decision, workerAt(to[2]), 200)
	r.log(third)
	if d := cmp.Diff([]string{"dispatched applied", "dispatched applied", "finished applied"}, r.heard()); d != "" {
		t.Error(d)
	}
}

// TestLogBesideOthers: with what the stream itself and an observer tell, in any order, each step is told once and what was
// cached is not lost.
func TestLogBesideOthers(t *testing.T) {
	for _, tt := range []struct {
		name     string
		logFirst bool
	}{{"the log last", false}, {"the log first", true}} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, 1, nil)
			r.isLogged = true
			c, m := r.ask(textPath, question)
			to, decision := choice(t, m)
			look := r.watch(to[0], decision)
			if got := next(t, r.steps); got != "dispatched applied" {
				t.Fatalf("first came %q", got)
			}
			c.answered(to[0], false, ":status", ok, "content-type", streaming)
			c.recv()
			c.over()
			end := entryOf(decision, workerAt(to[0]), 200)
			if tt.logFirst {
				if got := r.log(end); !slices.Equal(got, []Entry{EntryEnded}) {
					t.Errorf("the log: %v", got)
				}
			}
			look.hides = true
			look.responded(events, true)
			look.over()
			if d := cmp.Diff([]string{"first_token applied", "matched 0 cached 8", "finished applied"}, r.heard()); d != "" {
				t.Error(d)
			}
			if got := r.log(end); !slices.Equal(got, []Entry{EntryUnknown}) {
				t.Errorf("of one that is over: %v", got)
			}
		})
	}
	// An observer that says no more is waited for a moment.
	r := start(t, 1, nil)
	r.isLogged = true
	c, m := r.ask(textPath, question)
	to, decision := choice(t, m)
	r.watch(to[0], decision)
	next(t, r.steps)
	c.over()
	r.log(entryOf(decision, workerAt(to[0]), 200))
	r.s.Tick(time.Now())
	if got := r.heard(); got != nil {
		t.Errorf("heard %v while the observer looks", got)
	}
	r.s.Tick(time.Now().Add(2 * observerWait))
	if d := cmp.Diff([]string{"finished applied"}, r.heard()); d != "" {
		t.Error(d)
	}
}

// TestLogKeepsLongOnes: entries on the way renew a booking; without any it is given up.
func TestLogKeepsLongOnes(t *testing.T) {
	r := start(t, 1, func(c *Config) { c.LogSilence = time.Hour })
	r.isLogged = true
	_, decision := r.short()
	news := entryOf(decision, 0, 0)
	news.CommonProperties.AccessLogType = accesslogdatav3.AccessLogType_DownstreamPeriodic
	r.log(news)
	if got := next(t, r.steps); got != "generating applied" {
		t.Errorf("heard %q", got)
	}
	r.s.Tick(time.Now().Add(59 * time.Minute))
	if got := r.heard(); got != nil {
		t.Errorf("within the hour: %v", got)
	}
	r.s.Tick(time.Now().Add(61 * time.Minute))
	if d := cmp.Diff([]string{"cancelled applied"}, r.heard()); d != "" {
		t.Error(d)
	}
	if got := next(t, r.entries); got != EntryLost {
		t.Errorf("counted as %v", got)
	}
	if d := cmp.Diff([]Entry{EntryUnknown}, r.log(entryOf(decision, 1, 200))); d != "" {
		t.Error(d)
	}
}

// TestLogBound: no more wait for the log than may, and what is over makes room.
func TestLogBound(t *testing.T) {
	r := start(t, 1, func(c *Config) { c.MaxAwaited = 2 })
	r.isLogged = true
	_, first := r.short()
	r.short()
	if got := r.heard(); got != nil {
		t.Errorf("of the first two: %v", got)
	}
	r.short()
	if d := cmp.Diff([]string{"cancelled applied"}, r.heard()); d != "" {
		t.Errorf("of one too many: %s", d)
	}
	r.log(entryOf(first, 1, 200))
	r.heard()
	r.short()
	if got := r.heard(); got != nil {
		t.Errorf("when there is room: %v", got)
	}
	r.s.Tick(time.Now().Add(2 * defaultLogSilence))
}

// TestLogForeign: entries of what was not booked here, and whatever is no entry of HTTP.
func TestLogForeign(t *testing.T) {
	r := start(t, 1, nil)
	got := r.log(&accesslogdatav3.HTTPAccessLogEntry{}, entryOf("", 1, 200), entryOf("not a name", 1, 200), entryOf("ff", 1, 200))
	if d := cmp.Diff([]Entry{EntryForeign, EntryForeign, EntryUnknown, EntryUnknown}, got); d != "" {
		t.Error(d)
	}
	// Without the word in its metadata a stream that ends is a client that left.
	if r.short(); !slices.Equal(r.heard(), []string{"cancelled applied"}) {
		t.Error("a booking waits for a log that nobody writes")
	}
}

// TestLogFirstByte: it is a token where that was said, and the answer comes in pieces.
func TestLogFirstByte(t *testing.T) {
	for _, tt := range []struct {
		isToken bool
		content string
		want    []string
	}{
		{true, streaming, []string{"dispatched applied", "first_token applied", "finished applied"}},
		{true, "application/json", []string{"dispatched applied", "finished applied"}},
		{false, streaming, []string{"dispatched applied", "finished applied"}},
	} {
		r := start(t, 1, func(c *Config) { c.FirstByteIsToken = tt.isToken })
		r.isLogged = true
		to, decision := r.short()
		e := entryOf(decision, workerAt(to[0]), 200)
		e.CommonProperties.TimeToFirstUpstreamTxByte = durationpb.New(time.Millisecond)
		e.CommonProperties.TimeToFirstUpstreamRxByte = durationpb.New(3 * time.Millisecond)
		e.Response.ResponseHeaders = map[string]string{"content-type": tt.content}
		if got := r.s.firstByte(e); tt.isToken && tt.content == streaming && got != 2*time.Millisecond {
			t.Errorf("it took %v, want 2ms", got)
		}
		r.log(e)
		if d := cmp.Diff(tt.want, r.heard()); d != "" {
			t.Errorf("%v, %s: %s", tt.isToken, tt.content, d)
		}
	}
}
