package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var start = time.Unix(1_700_000_000, 0)

func spec(name string) Spec {
	return Spec{Worker: name, Model: "m", BlockSize: 16, DPSize: 1}
}

func mustRegister(t *testing.T, r *Registry, s Spec, incarnation uint64) Change {
	t.Helper()
	c, err := r.Register(s, incarnation, start)
	if err != nil {
		t.Fatalf("Register(%s, %d): %v", s.Worker, incarnation, err)
	}
	return c
}

func TestRegisterRules(t *testing.T) {
	bigger := spec("w")
	bigger.BlockSize = 32
	labelled := spec("w")
	labelled.Labels = map[string]string{"zone": "a"}
	tests := []struct {
		name    string
		before  uint64 // incarnation; the spec is spec("w")
		spec    Spec
		after   uint64
		err     error
		newLife bool
	}{
		{"same incarnation updates in place", 5, labelled, 5, nil, false},
		{"higher incarnation is a new life", 5, spec("w"), 6, nil, true},
		{"lower incarnation is refused", 5, spec("w"), 4, ErrOldIncarnation, false},
		{"same incarnation cannot change its block size", 5, bigger, 5, ErrContradiction, false},
		{"first report of a worker registered by hand goes on", 0, spec("w"), 7, nil, false},
		{"a registration by hand does not end a reported life", 5, labelled, 0, nil, false},
		{"a registration by hand with another block size does", 5, bigger, 0, nil, true},
		{"a first report with another block size does", 0, bigger, 7, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRegistry(10)
			first := mustRegister(t, r, spec("w"), tt.before)
			c, err := r.Register(tt.spec, tt.after, start)
			if !errors.Is(err, tt.err) {
				t.Fatalf("err = %v, want %v", err, tt.err)
			}
			if err != nil {
				if got := r.View().Worker("w"); got != first.Worker {
					t.Errorf("a refused registration changed the worker: %+v", got)
				}
				return
			}
			if c.IsNew != tt.newLife || (c.Worker.Life != first.Worker.Life) != tt.newLife {
				t.Errorf("IsNew = %v, life %d -> %d, want a new life: %v", c.IsNew, first.Worker.Life, c.Worker.Life, tt.newLife)
			}
			if tt.newLife {
				if !slices.Equal(c.Dropped, first.Worker.Targets) {
					t.Errorf("Dropped = %v, want the former targets %v", c.Dropped, first.Worker.Targets)
				}
				if r.View().Target(first.Worker.Targets[0]) != nil {
					t.Error("a target of the former life is still known")
				}
			}
			if got := r.View().Worker("w").Incarnation; !tt.newLife && got != max(tt.before, tt.after) {
				t.Errorf("incarnation = %d, want it never to go down", got)
			}
		})
	}
}

func TestDrainOutlivesTheEngine(t *testing.T) {
	r := NewRegistry(10)
	mustRegister(t, r, spec("w"), 1)
	if _, err := r.SetDraining("w", true); err != nil {
		t.Fatal(err)
	}
	mustRegister(t, r, spec("w"), 2)
	if got := r.View().Worker("w").State(); got != Draining {
		t.Errorf("state after a restart = %v, want draining: it is the operator's wish", got)
	}
	if _, err := r.SetLost("w", true); err != nil {
		t.Fatal(err)
	}
	mustRegister(t, r, spec("w"), 3)
	if w := r.View().Worker("w"); w.IsLost {
		t.Error("a new life is not lost")
	}
}

func TestIDsAreBoundedUnderChurn(t *testing.T) {
	r := NewRegistry(10)
	for i := range 5000 {
		s := spec(fmt.Sprint("w", i))
		s.DPSize = 2
		c := mustRegister(t, r, s, 1)
		if slices.Max(c.Worker.Targets) > 1 {
			t.Fatalf("round %d got ids %v: ids are not recycled", i, c.Worker.Targets)
		}
		w, err := r.Remove(s.Worker)
		if err != nil {
			t.Fatal(err)
		}
		r.Recycle(w.Targets)
	}
}

func TestLimit(t *testing.T) {
	r := NewRegistry(2)
	mustRegister(t, r, spec("a"), 1)
	mustRegister(t, r, spec("b"), 1)
	if _, err := r.Register(spec("c"), 1, start); !errors.Is(err, ErrFull) {
		t.Errorf("third of two: err = %v, want ErrFull", err)
	}
	mustRegister(t, r, spec("a"), 2) // a known one still may
	if _, err := r.Remove("nobody"); !errors.Is(err, ErrUnknown) {
		t.Errorf("Remove(nobody) = %v, want ErrUnknown", err)
	}
	if _, err := r.SetDraining("nobody", true); !errors.Is(err, ErrUnknown) {
		t.Errorf("SetDraining(nobody) = %v, want ErrUnknown", err)
	}
}

// TestViewEqualsModel compares the registry with plain maps over random operations.
func TestViewEqualsModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 1))
	r := NewRegistry(100)
	type life struct {
		spec        Spec
		incarnation uint64
		targets     []TargetID
	}
	model := map[string]life{}
	for step := range 4_000 {
		name := fmt.Sprint("w", rnd.IntN(12))
		switch rnd.IntN(4) {
		case 0, 1:
			s := spec(name)
			s.Model = fmt.Sprint("m", rnd.IntN(3))
			s.DPSize = 1 + rnd.IntN(3)
			inc := uint64(rnd.IntN(6))
			c, err := r.Register(s, inc, start)
			if err != nil {
				continue
			}
			r.Recycle(c.Dropped)
			model[name] = life{s, max(inc, c.Worker.Incarnation), c.Worker.Targets}
		case 2:
			w, err := r.Remove(name)
			if _, ok := model[name]; ok != (err == nil) {
				t.Fatalf("seed %d step %d: Remove(%s) = %v, known %v", seed, step, name, err, ok)
			}
			if err == nil {
				r.Recycle(w.Targets)
				delete(model, name)
			}
		case 3:
			_, err := r.SetDraining(name, rnd.IntN(2) == 0)
			if _, ok := model[name]; ok != (err == nil) {
				t.Fatalf("seed %d step %d: SetDraining(%s) = %v, known %v", seed, step, name, err, ok)
			}
		}
		v := r.View()
		var names []string
		byModel := map[string][]string{}
		owners := map[TargetID]string{}
		for _, w := range v.Workers() {
			names = append(names, w.Worker)
			m := model[w.Worker]
			if diff := cmp.Diff(m.spec, w.Spec); diff != "" || m.incarnation != w.Incarnation {
				t.Fatalf("seed %d step %d: %s: incarnation %d want %d, spec (-want +got)\n%s", seed, step, w.Worker, w.Incarnation, m.incarnation, diff)
			}
			for _, id := range w.Targets {
				if other, taken := owners[id]; taken {
					t.Fatalf("seed %d step %d: id %d belongs to %s and %s", seed, step, id, other, w.Worker)
				}
				owners[id] = w.Worker
				if v.Target(id) != w {
					t.Fatalf("seed %d step %d: Target(%d) is not %s", seed, step, id, w.Worker)
				}
			}
			byModel[w.Model] = append(byModel[w.Model], w.Worker)
		}
		if len(names) != len(model) || !slices.IsSorted(names) {
			t.Fatalf("seed %d step %d: workers %v, want the %d of the model in order", seed, step, names, len(model))
		}
		for _, m := range []string{"m0", "m1", "m2"} {
			var got []string
			for _, w := range v.Model(m) {
				got = append(got, w.Worker)
			}
			if !slices.Equal(got, byModel[m]) {
				t.Fatalf("seed %d step %d: Model(%s) = %v, want %v", seed, step, m, got, byModel[m])
			}
		}
	}
}

func TestReadersSeeWholeViews(t *testing.T) {
	r := NewRegistry(100)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v := r.View()
				for _, w := range v.Workers() {
					for _, id := range w.Targets {
						if v.Target(id) != w {
							t.Error("a view names a worker whose target it does not know")
							return
						}
					}
				}
			}
		})
	}
	for i := range 2000 {
		name := fmt.Sprint("w", i%7)
		c := mustRegister(t, r, spec(name), uint64(i+1))
		r.Recycle(c.Dropped)
		if i%5 == 0 {
			w, err := r.Remove(name)
			if err != nil {
				t.Fatal(err)
			}
			r.Recycle(w.Targets)
		}
	}
	close(stop)
	wg.Wait()
}

func TestRolesServe(t *testing.T) {
	for _, tt := range []struct {
		have, want Roles
		ok         bool
	}{
		{0, Aggregated, true},
		{0, Prefill, true},
		{Aggregated, Decode, true},
		{Prefill, Prefill, true},
		{Prefill, Decode, false},
		{Prefill, Aggregated, false},
		{Prefill | Decode, Decode, true},
	} {
		if got := tt.have.Serves(tt.want); got != tt.ok {
			t.Errorf("Roles(%b).Serves(%b) = %v, want %v", tt.have, tt.want, got, tt.ok)
		}
	}
}
