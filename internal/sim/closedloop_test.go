package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvoracle/kvoracle/internal/block"
)

// sessionRow is a line with a session.
func sessionRow(millis float64, session string, delay float64, input, output int, hashes ...uint32) string {
	return strings.TrimSuffix(row(millis, input, output, hashes...), "}") + fmt.Sprintf(`,"session_id":%q,"delay":%v}`, session, delay)
}

// asks notes who asks when, and sends everything to engine 0.
type asks struct {
	noReports

	at      []float64
	request []*Request
	open    map[string]bool // sessions with a request in flight
	t       *testing.T
}

func (a *asks) Attach(o *Options) error {
	o.Observer = a
	return nil
}

func (a *asks) Choose(t float64, r *Request, _ *Fleet) int {
	if a.open[r.Session] {
		a.t.Errorf("session %s asks before its answer is there", r.Session)
	}
	a.open[r.Session] = true
	a.at, a.request = append(a.at, t), append(a.request, r)
	return 0
}

func (a *asks) Finished(_ float64, j *Job) { a.open[j.Request.Session] = false }

func TestClosedLoop(t *testing.T) {
	// Two sessions that share block 0; the second request of each continues the first.
	tr := readLines(t, ReadOptions{BlockSize: 4},
		sessionRow(0, "a", 0, 8, 2, 0, 1), sessionRow(1, "b", 0, 8, 2, 0, 5),
		sessionRow(2, "a", 3000, 12, 2, 0, 1, 2), sessionRow(3, "b", 5000, 12, 2, 0, 5, 6))
	a := &asks{open: map[string]bool{}, t: t}
	o := RunOptions{Options: Options{Engines: 1, Model: dyadic(), BlockSize: 4}, Users: 1, Horizon: 100, Warmup: 0.3, Keep: true}
	r := mustRun(t, tr, a, o)
	if len(a.at) < 8 || r.N == 0 || r.N == len(a.at) {
		t.Fatalf("%d asked, %d measured", len(a.at), r.N)
	}
	for _, s := range r.Requests {
		if s.Arrived < 30 || s.Finished <= s.FirstToken || s.FirstToken <= s.Arrived {
			t.Errorf("measured: %+v", s)
		}
	}
	chains := map[block.ID]string{}
	for i, q := range a.request {
		c := q.Chain(0, 4)
		if c[0] != a.request[0].Chain(0, 4)[0] {
			t.Errorf("request %d does not begin with what all share", i)
		}
		for _, id := range c[1:] {
			if s, ok := chains[id]; ok && s != q.Session {
				t.Errorf("sessions %s and %s have a private block in common", s, q.Session)
			}
			chains[id] = q.Session
		}
	}
	for i := 1; i < len(a.at); i++ {
		// Of one user, the next request comes a thought after the former one's end, which is at least its two iterations.
		thought := 1.0
		if a.request[i].Session == a.request[i-1].Session {
			thought = a.request[i].Delay
		}
		if gap := a.at[i] - a.at[i-1]; gap < thought+2*dyadic().IterationBase {
			t.Errorf("request %d comes %v s after the former one, thinking takes %v", i, gap, thought)
		}
	}
	if last := a.at[len(a.at)-1]; last > 100 || last < 80 {
		t.Errorf("the last request came at %v", last)
	}

	b := &asks{open: map[string]bool{}, t: t}
	if d := cmp.Diff(r, mustRun(t, tr, b, o)); d != "" {
		t.Errorf("the same run differs:\n%s", d)
	}
	o.Users = 7
	o.Seed = 3
	mustRun(t, tr, &asks{open: map[string]bool{}, t: t}, o)
}

func TestClosedLoopRefuses(t *testing.T) {
	tr := readLines(t, ReadOptions{BlockSize: 4}, row(0, 8, 2, 0, 1))
	o := RunOptions{Options: Options{Engines: 1, Model: dyadic(), BlockSize: 4}, Users: 1}
	if _, err := Run(tr, RoundRobin(), o); err == nil || !strings.Contains(err.Error(), "no sessions") {
		t.Errorf("a trace without sessions: %v", err)
	}
	o.Users = -1
	if _, err := Run(tr, RoundRobin(), o); err == nil {
		t.Error("-1 users")
	}
}

// A user whose request no engine can hold goes on with the next.
func TestClosedLoopSkipsWhatIsTooLong(t *testing.T) {
	m := dyadic()
	m.KVTokens = 16
	tr := readLines(t, ReadOptions{BlockSize: 4},
		sessionRow(0, "a", 0, 17, 2, 0, 1, 2, 3, 4), sessionRow(1, "a", 1000, 8, 2, 0, 1))
	a := &asks{open: map[string]bool{}, t: t}
	r := mustRun(t, tr, a, RunOptions{Options: Options{Engines: 1, Model: m, BlockSize: 4}, Users: 2, Horizon: 60})
	if r.Refused < 5 || r.N < 5 {
		t.Errorf("%d refused, %d served", r.Refused, r.N)
	}
}
