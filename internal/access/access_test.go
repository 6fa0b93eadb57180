package access

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"
)

const sample = `
identities:
  - name: gateway-east
    roles: [gateway]
    tokens_sha256: [%s]
  - name: worker-7
    roles: [worker]
    tokens: [plain-token-of-worker-7, its-next-token-of-worker-7]
  - name: bridge
    roles: [worker, monitor]
    workers: ["rack7-*", single]
    certificates: [spiffe://cluster.local/ns/llm/sa/bridge, Bridge.LLM.svc]
  - name: pods
    roles: [worker]
    certificates: ["*.workers.llm.svc", "spiffe://cluster.local/ns/llm/sa/worker-*"]
  - name: nobody-in-particular
    roles: [worker]
    workers: []
    tokens: [0123456789abcdef]
`

func table(t *testing.T) *Table {
	t.Helper()
	sum := sha256.Sum256([]byte("token of gateway-east"))
	tab, err := Parse(fmt.Appendf(nil, sample, hex.EncodeToString(sum[:])))
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func TestTokens(t *testing.T) {
	tab := table(t)
	for token, want := range map[string]string{
		"token of gateway-east": "gateway-east", "plain-token-of-worker-7": "worker-7", "its-next-token-of-worker-7": "worker-7",
		"": "", "plain-token-of-worker-": "", "plain-token-of-worker-77": "", strings.Repeat("x", MaxToken+1): "",
	} {
		id, d := tab.Token(token)
		if got := nameOf(id); got != want {
			t.Errorf("%.40q: %q, want %q", token, got, want)
		}
		if got := nameOf(tab.ByDigest(d)); got != want {
			t.Errorf("%.40q by its digest: %q, want %q", token, got, want)
		}
	}
	if tab.Len() != 5 {
		t.Errorf("%d entries", tab.Len())
	}
	if id, _ := new(Table).Token("x"); id != nil {
		t.Errorf("the empty table knows %q", id.Name)
	}
}

func nameOf(id *Identity) string {
	if id == nil {
		return ""
	}
	return id.Name
}

func leaf(uris, dns []string) *x509.Certificate {
	c := &x509.Certificate{DNSNames: dns}
	c.Subject.CommonName = "bridge.llm.svc"
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			panic(err)
		}
		c.URIs = append(c.URIs, u)
	}
	return c
}

func TestCertificates(t *testing.T) {
	tab := table(t)
	for _, c := range []struct {
		uris, dns []string
		want, own string
	}{
		{[]string{"spiffe://cluster.local/ns/llm/sa/bridge"}, nil, "bridge", ""},
		{nil, []string{"bridge.llm.svc"}, "bridge", ""},
		{nil, []string{"BRIDGE.llm.SVC"}, "bridge", ""},
		{[]string{"spiffe://cluster.local/ns/llm/sa/bridge/x"}, nil, "", ""},
		{[]string{"spiffe://elsewhere/ns/llm/sa/bridge"}, nil, "", ""},
		{nil, nil, "", ""}, // its common name is nobody
		{nil, []string{"w1.workers.llm.svc"}, "pods/w1", "w1"},
		{nil, []string{"a.w1.workers.llm.svc"}, "", ""},
		{nil, []string{".workers.llm.svc"}, "", ""},
		{[]string{"spiffe://cluster.local/ns/llm/sa/worker-9"}, nil, "pods/9", "9"},
		{[]string{"spiffe://cluster.local/ns/llm/sa/worker-9/admin"}, nil, "", ""},
		{[]string{"bridge.llm.svc"}, nil, "", ""},                                                           // no URI may pass for a DNS name
		{nil, []string{"spiffe://cluster.local/ns/llm/sa/bridge"}, "", ""},                                  // nor the other way
		{[]string{"spiffe://unknown/x"}, []string{"w1.workers.llm.svc"}, "pods/w1", "w1"},                   // the first that is listed
		{[]string{"spiffe://cluster.local/ns/llm/sa/bridge"}, []string{"w1.workers.llm.svc"}, "bridge", ""}, // URIs first
	} {
		id := tab.Certificate(leaf(c.uris, c.dns))
		if got := nameOf(id); got != c.want {
			t.Errorf("%v %v: %q, want %q", c.uris, c.dns, got, c.want)
		}
		if c.own != "" && (!id.MayReport(c.own) || id.MayReport(c.own+"x") || id.MayReport(id.Name) || id.MayReport("")) {
			t.Errorf("%v %v: want it to report for %q and nobody else", c.uris, c.dns, c.own)
		}
	}
	if tab.Certificate(nil) != nil {
		t.Error("no certificate is somebody")
	}
}

func TestWhoMayReportForWhom(t *testing.T) {
	tab := table(t)
	token := func(text string) *Identity {
		id, _ := tab.Token(text)
		return id
	}
	bridge := tab.Certificate(leaf(nil, []string{"bridge.llm.svc"}))
	for _, c := range []struct {
		id     *Identity
		worker string
		want   bool
	}{
		{token("plain-token-of-worker-7"), "worker-7", true},
		{token("plain-token-of-worker-7"), "worker-8", false},
		{token("token of gateway-east"), "gateway-east", false}, // it is no worker
		{bridge, "rack7-a", true},
		{bridge, "rack7-", false},
		{bridge, "rack8-a", false},
		{bridge, "single", true},
		{bridge, "bridge", false}, // the list stands instead of the name
		{token("0123456789abcdef"), "nobody-in-particular", false},
		{token("0123456789abcdef"), "", false},
	} {
		if got := c.id.MayReport(c.worker); got != c.want {
			t.Errorf("%s for %s: %v, want %v", c.id.Name, c.worker, got, c.want)
		}
	}
	if got := bridge.Workers(); got != "rack7-*, single" {
		t.Errorf("workers %q", got)
	}
	if got := bridge.Roles.String(); got != "worker or monitor" || Nobody.String() != "none" {
		t.Errorf("roles %q", got)
	}
}

func TestEqual(t *testing.T) {
	find := func(entry string) *Identity {
		t.Helper()
		tab, err := Parse([]byte("identities: [{tokens: [0123456789abcdef], " + entry + "}]"))
		if err != nil {
			t.Fatal(err)
		}
		id, _ := tab.Token("0123456789abcdef")
		return id
	}
	all := []string{
		"name: a, roles: [worker]", "name: b, roles: [worker]", "name: a, roles: [worker, gateway]",
		"name: a, roles: [worker], workers: []", "name: a, roles: [worker], workers: [a]", "name: a, roles: [worker], workers: ['a*']",
	}
	for i, x := range all {
		for k, y := range all {
			if got := find(x).Equal(find(y)); got != (i == k) {
				t.Errorf("%s and %s: %v", x, y, got)
			}
		}
	}
}

func TestMistakesAreNamedAndTokensAreNot(t *testing.T) {
	const token = "hush-hush-hush-hush"
	entry := func(rest string) string { return "identities:\n  - name: x\n    " + rest }
	for name, c := range map[string]struct{ text, want string }{
		"empty":             {"", "empty"},
		"no identities":     {"identities: []", "0 identities"},
		"unknown key":       {entry("rolls: [gateway]"), "line 3"},
		"wrong type":        {entry("roles: [gateway]\n    tokens: {a: " + token + "}"), "line 4"},
		"token as a list":   {entry("roles: [gateway]\n    name: [" + token + "]"), "YAML"},
		"two documents":     {entry("roles: [gateway]\n    tokens: [" + token + "]\n---\na: b"), "one YAML document"},
		"no name":           {"identities:\n  - roles: [gateway]\n    tokens: [" + token + "]", "name"},
		"no role":           {entry("tokens: [" + token + "]"), "roles"},
		"unknown role":      {entry("roles: [king]\n    tokens: [" + token + "]"), "king"},
		"nobody":            {entry("roles: [gateway]"), "nobody could be it"},
		"short token":       {entry("roles: [gateway]\n    tokens: [hush-hush]"), "tokens[0]"},
		"token of spaces":   {entry("roles: [gateway]\n    tokens: ['hush hush hush hush']"), "tokens[0]"},
		"bad digest":        {entry("roles: [gateway]\n    tokens_sha256: [abc]"), "tokens_sha256[0]"},
		"long digest":       {entry("roles: [gateway]\n    tokens_sha256: [" + strings.Repeat("a", 66) + "]"), "tokens_sha256[0]"},
		"two stars":         {entry("roles: [worker]\n    certificates: ['*.*.x']"), "one *"},
		"a star alone":      {entry("roles: [worker]\n    certificates: ['*']"), "alone"},
		"workers of none":   {entry("roles: [gateway]\n    workers: [w]\n    tokens: [" + token + "]"), "workers"},
		"the same token":    {entry("roles: [gateway]\n    tokens: [" + token + ", " + token + "]"), "same token"},
		"name twice":        {entry("roles: [gateway]\n    tokens: [" + token + "]\n  - name: x\n    roles: [gateway]\n    tokens: [other-other-other]"), "twice"},
		"certificate twice": {entry("roles: [gateway]\n    certificates: [a.b, A.b]"), "a.b"},
		"control character": {"identities:\n  - name: \"a\\nb\"\n    roles: [gateway]\n    tokens: [" + token + "]", "control"},
	} {
		_, err := Parse([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want it to name %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: the token is in %q", name, err)
		}
	}
	if _, err := Parse(make([]byte, MaxFile+1)); err == nil {
		t.Error("a huge file was read")
	}
}

// FuzzParse: a file is read or refused, and whoever is in it can be found by the tokens that are in it.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte("identities: [{name: a, roles: [worker], tokens: [0123456789abcdef]}]"))
	f.Add([]byte("identities: &x [*x]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tab, err := Parse(data)
		if err == nil && tab.Len() == 0 {
			t.Error("a table of nobody was accepted")
		}
	})
}

func TestMeterRate(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	s := NewMeters(Limits{Rate: 10, Identities: 4})
	m := s.Of("a", now)
	granted := func(at time.Time, tries int) (n int) {
		for range tries {
			if m.Take(at) {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 10}, {0, 0}, {100 * time.Millisecond, 1}, {time.Second, 10}, {time.Hour, 10}, {-time.Hour, 0}} {
		if now = now.Add(step.after); granted(now, 50) != step.want {
			t.Errorf("after %v: want %d", step.after, step.want)
		}
	}
	if b := s.Of("b", now); !b.Take(now) {
		t.Error("one identity takes from another")
	}
	free := NewMeters(Limits{}).Of("a", now)
	for range 1000 {
		if !free.Take(now) || !free.Open() {
			t.Fatal("no limit limits")
		}
	}
}

func TestMeterStreams(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	m := NewMeters(Limits{Streams: 2, Identities: 1}).Of("a", now)
	for n := range 4 {
		if got := m.Open(); got != (n < 2) {
			t.Fatalf("stream %d: %v, want two streams", n, got)
		}
	}
	m.Close()
	for n := range 2 {
		if got := m.Open(); got != (n < 1) {
			t.Errorf("after one has ended, stream %d: %v", n, got)
		}
	}
}

func TestMetersTakeOtherLimits(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	s := NewMeters(Limits{Streams: 1, Identities: 2})
	m := s.Of("a", now)
	if !m.Open() || m.Open() {
		t.Fatal("want one stream")
	}
	s.Limit(3, 2)
	if !m.Open() || m.Open() || !s.HasRate() {
		t.Error("want two streams, and a rate")
	}
	take := func(want int) {
		t.Helper()
		for n := range want + 1 {
			if got := m.Take(now); got != (n < want) {
				t.Fatalf("call %d of %d: %v", n, want, got)
			}
		}
	}
	now = now.Add(time.Second)
	take(3)
	now = now.Add(time.Hour)
	s.Limit(2, 1)
	take(2) // what was saved up under the former limit is not more than the new one
	m.Close()
	if m.Open() {
		t.Error("one of two streams was closed, and one is the limit")
	}
	s.Limit(0, 0)
	if !m.Take(now) || !m.Open() || s.HasRate() {
		t.Error("no limit limits")
	}
}

func TestMetersAreBounded(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	s := NewMeters(Limits{Rate: 5, Streams: 1, Identities: 8})
	busy := s.Of("busy", now)
	if !busy.Open() {
		t.Fatal("no stream")
	}
	for i := range 10_000 {
		s.Of(fmt.Sprint(i), now).Take(now)
		if s.Len() > 8 {
			t.Fatalf("%d meters", s.Len())
		}
	}
	if s.Of("x", now) != s.Of("y", now) || s.Of("x", now).Take(now) {
		t.Error("those that have no room share one meter")
	}
	now = now.Add(time.Minute) // all but one are idle
	if m := s.Of("x", now); m == s.Of("y", now) || !m.Take(now) {
		t.Error("idle ones make no room")
	}
	if s.Of("busy", now) != busy {
		t.Error("one with a stream was forgotten")
	}
}

func BenchmarkToken(b *testing.B) {
	tab, err := Parse([]byte("identities: [{name: a, roles: [gateway], tokens: [0123456789abcdef0123456789abcdef]}]"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if id, _ := tab.Token("0123456789abcdef0123456789abcdef"); id == nil {
			b.Fatal("unknown")
		}
	}
}
