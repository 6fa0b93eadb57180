package server

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/replica"
	"github.com/kvoracle/kvoracle/internal/telemetry"
	"github.com/kvoracle/kvoracle/internal/wire"
)

// What one page shows at most. The rest is said to be there.
const (
	statusRanks     = 500
	statusDecisions = 50
)

//go:embed statuspage.html
var statusText string

//go:embed statuspage.css
var statusStyle string

// statusPage is the operator's page for people: one HTML document that wants nothing else, runs no script and, by its
// Content-Security-Policy, could load and run nothing even if somebody's name got into it as markup. Names come from workers
// and gateways; html/template writes them as text wherever they stand.
type statusPage struct {
	s        *Server
	template *template.Template
	policy   string // of contents
}

func newStatusPage(s *Server) *statusPage {
	p := &statusPage{s: s, template: template.Must(template.New("status").Funcs(template.FuncMap{
		"duration": showSeconds, "percent": func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) },
	}).Parse(statusText))}
	sum := sha256.Sum256([]byte(statusStyle))
	p.policy = "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; " +
		"form-action 'none'; frame-ancestors 'none'"
	return p
}

// pageData is what the page shows.
type pageData struct {
	Style          template.CSS
	Version        string
	Policy, Shadow string
	At             time.Time
	Health         []string
	Fleet          statusFleet
	Decisions      []statusDecision
	Error          telemetry.Error
	Log            *replica.Stats // nil: none is kept
}

type statusFleet struct {
	Workers, Booked, InFlight int
	Ranks                     []statusRank
	More                      int // ranks that are not shown
}

type statusRank struct {
	Worker, Address, Model string
	Rank                   int
	State, Cache, Load     string
	Unmatched              bool
	IsDoubtful             bool // what is shown of its cache is worth a look
	Blocks                 int
	InFlight, Booked       int
	Prefill                float64 // seconds
	Decisions              uint64
	Off                    float64 // usual error of a prediction, as a share of it
	Learned                uint64
}

type statusDecision struct {
	ID, Model, Worker string
	Rank              int
	At                time.Time
	Prompt, Matched   int
	Candidates        int
	TTFT              float64
	Reason, Terms     string
	Cache, Load       string
}

// ServeHTTP implements http.Handler.
func (p *statusPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var page bytes.Buffer // an error must not come after half a page
	if err := p.template.Execute(&page, p.look(time.Now())); err != nil {
		p.s.log.LogAttrs(r.Context(), slog.LevelError, "the status page could not be made", slog.String("error", err.Error()))
		plain(w, http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	_, _ = page.WriteTo(w) // a reader that is gone needs no page
}

func (p *statusPage) look(now time.Time) *pageData {
	s, c := p.s, p.s.current.Load()
	_, health := s.health.check(healthReadiness)
	out := &pageData{
		Style: template.CSS(statusStyle), Version: Version(), Policy: c.Policy, Shadow: c.ShadowPolicy, At: now, //nolint:gosec // our own file
		Health: strings.Split(strings.TrimSpace(health), "\n"), Error: s.tel.Error(),
	}
	if s.replica != nil {
		st := s.replica.Stats()
		out.Log = &st
	}
	for _, w := range s.oracle.Workers("", now) {
		out.Fleet.add(&w)
	}
	out.Fleet.cut(statusRanks)
	for _, a := range s.oracle.Recent(statusDecisions) {
		out.Decisions = append(out.Decisions, shownDecision(a))
	}
	return out
}

func (f *statusFleet) add(w *oracle.WorkerStatus) {
	f.Workers++
	for i := range w.Ranks {
		r := &w.Ranks[i]
		held := 0
		for _, n := range r.Held {
			held += n
		}
		f.Booked += r.Load.Booked
		f.InFlight += r.Load.InFlight
		f.Ranks = append(f.Ranks, statusRank{
			Worker: w.Worker.Worker, Address: w.Address, Model: w.Model, Rank: i, State: w.State().String(), Cache: r.Blocks.String(),
			Load: r.Load.Confidence.String(), Unmatched: r.Unmatched, IsDoubtful: r.Unmatched || !r.Blocks.IsTrue() && r.Blocks != oracle.Approximate, Blocks: held, InFlight: r.Load.InFlight, Booked: r.Load.Booked,
			Prefill: r.Load.PendingPrefillSeconds, Decisions: r.Decisions, Off: r.CostError, Learned: r.Learned,
		})
	}
}

// cut leaves the busiest ranks, the others in the order of their names.
func (f *statusFleet) cut(most int) {
	slices.SortStableFunc(f.Ranks, func(a, b statusRank) int {
		return cmp.Or(cmp.Compare(b.Prefill, a.Prefill), cmp.Compare(b.InFlight, a.InFlight))
	})
	if f.More = len(f.Ranks) - most; f.More > 0 {
		f.Ranks = f.Ranks[:most]
	}
}

func shownDecision(a *oracle.Answer) statusDecision {
	return statusDecision{
		ID: wire.DecisionID(a.Decision), Model: a.Model, Worker: a.Target.Worker, Rank: a.Target.Rank, At: a.DecidedAt, Prompt: a.PromptTokens,
		Matched: a.Matched.Total(), Candidates: a.Candidates, TTFT: a.TTFT, Reason: a.Reason.String(), Terms: shownTerms(a),
		Cache: a.Blocks.String(), Load: a.Load.String(),
	}
}

// shownTerms are the parts of a decision's cost that are not zero.
func shownTerms(a *oracle.Answer) string {
	var out []string
	for _, t := range a.Terms.Named() {
		if math.Abs(t.Seconds) >= 0.5e-3 {
			out = append(out, t.Name+" "+showSeconds(t.Seconds))
		}
	}
	return strings.Join(out, ", ")
}

// showSeconds is a duration for people.
func showSeconds(s float64) string {
	if math.Abs(s) < 1 {
		return fmt.Sprintf("%.0f ms", s*1e3)
	}
	return fmt.Sprintf("%.1f s", s)
}
