package admit

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func all(int) bool { return true }

// join adds a question and says how many had to go.
func join(t *testing.T, q *Queue[int], id int, tenant string, priority int32, cost time.Duration) []int {
	t.Helper()
	var gone []int
	for _, x := range q.Join(&Item[int]{Value: id, Pool: "m", Tenant: tenant, Priority: priority, Cost: cost, Tokens: 1}) {
		gone = append(gone, x.Value)
	}
	return gone
}

func TestUrgentOnesGoFirst(t *testing.T) {
	q := New[int](Config{})
	join(t, q, 1, "a", 0, time.Second)
	join(t, q, 2, "a", -5, time.Millisecond)
	join(t, q, 3, "b", 7, time.Hour)
	join(t, q, 4, "a", 7, time.Millisecond)
	var order []int
	for it := q.Next("m", all); it != nil; it = q.Next("m", all) {
		order = append(order, it.Value)
		q.Served(it, it.Cost)
	}
	if want := []int{4, 3, 1, 2}; !slices.Equal(order, want) {
		t.Errorf("served in order %v, want %v", order, want)
	}
}

// TestTenantsShareCost has three tenants with always something waiting, whose requests cost very different times: each is
// given as much of it, whatever its requests are like.
func TestTenantsShareCost(t *testing.T) {
	q := New[int](Config{})
	costs := map[string]time.Duration{"small": 20 * time.Millisecond, "middle": 300 * time.Millisecond, "large": 2500 * time.Millisecond}
	spent := map[string]time.Duration{}
	id := 0
	add := func(tenant string) {
		id++
		join(t, q, id, tenant, 0, costs[tenant])
	}
	for _, tenant := range []string{"large", "small", "middle"} {
		add(tenant)
		add(tenant)
	}
	for range 5000 {
		it := q.Next("m", all)
		tenant := it.Tenant
		add(tenant)
		q.Served(it, it.Cost)
		spent[tenant] += it.Cost
		for a := range costs {
			for b := range costs {
				if d := spent[a] - spent[b]; d > costs[a]+costs[b]+2*Quantum {
					t.Fatalf("%s has had %v and %s %v", a, spent[a], b, spent[b])
				}
			}
		}
	}
}

// TestPredictionIsCorrected has two tenants whose requests are predicted alike; those of one come to a tenth, since nearly
// all of their prompts is cached. It is served ten times as often.
func TestPredictionIsCorrected(t *testing.T) {
	q := New[int](Config{})
	for i := range 2 {
		join(t, q, i, "cached", 0, time.Second)
		join(t, q, i, "cold", 0, time.Second)
	}
	served := map[string]int{}
	for i := range 1100 {
		it := q.Next("m", all)
		join(t, q, i, it.Tenant, 0, time.Second)
		cost := time.Second
		if it.Tenant == "cached" {
			cost /= 10
		}
		served[it.Tenant]++
		q.Served(it, cost)
	}
	if a, b := served["cached"], served["cold"]; a < 990 || a > 1010 {
		t.Errorf("the cached one was served %d times, the cold one %d times; want 10 to 1", a, b)
	}
}

func TestPlaceThatSuitsFew(t *testing.T) {
	q := New[int](Config{})
	join(t, q, 1, "a", 0, time.Second)
	join(t, q, 2, "a", 0, time.Second)
	join(t, q, 3, "b", 0, time.Second)
	only := func(id int) func(int) bool { return func(x int) bool { return x == id } }
	if it := q.Next("m", only(2)); it == nil || it.Value != 2 {
		t.Fatalf("a place for question 2 alone was given to %v", it)
	}
	if it := q.Next("m", only(2)); it != nil {
		t.Fatalf("question %d was called twice", it.Value)
	}
	if it := q.Next("other", all); it != nil {
		t.Fatalf("question %d is of another pool", it.Value)
	}
	// The first of the tenant that has had a place was passed over and is still its first.
	if it := q.Next("m", all); it == nil || it.Value != 3 {
		t.Fatalf("called %v, want 3: the other tenant's turn", it)
	}
	if it := q.Next("m", all); it == nil || it.Value != 1 {
		t.Fatalf("called %v, want 1", it)
	}
}

// TestWhoMustGo fills a queue of four.
func TestWhoMustGo(t *testing.T) {
	fill := func() *Queue[int] {
		q := New[int](Config{MaxItems: 4, MaxTokens: 100})
		join(t, q, 1, "a", 0, time.Second)
		join(t, q, 2, "a", 0, time.Second)
		join(t, q, 3, "a", 0, time.Second)
		join(t, q, 4, "b", 1, time.Second)
		return q
	}
	for _, tc := range []struct {
		name   string
		come   *Item[int]
		called int // of the first ones
		want   []int
	}{
		{"as urgent, its tenant has most", &Item[int]{Tenant: "a"}, 0, []int{9}},
		{"as urgent, another has most", &Item[int]{Tenant: "c"}, 0, []int{3}},
		{"as urgent, and nothing to choose between", &Item[int]{Tenant: "c", Cost: 3 * time.Second}, 0, []int{9}},
		{"less urgent than all", &Item[int]{Tenant: "c", Priority: -1}, 0, []int{9}},
		{"more urgent", &Item[int]{Tenant: "a", Priority: 5}, 0, []int{3}},
		{"long, and at last of the tenant with most", &Item[int]{Tenant: "c", Tokens: 99}, 0, []int{9}},
		{"long", &Item[int]{Tenant: "c", Tokens: 98}, 0, []int{3, 2}},
		{"too long", &Item[int]{Tenant: "c", Tokens: 101, Priority: 9}, 0, []int{9}},
		{"those called stay", &Item[int]{Tenant: "c", Priority: 9}, 3, []int{3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := fill()
			for range tc.called {
				q.Next("m", all)
			}
			tc.come.Value, tc.come.Pool, tc.come.Tokens = 9, "m", max(tc.come.Tokens, 1)
			tc.come.Cost = max(tc.come.Cost, time.Second)
			var got []int
			for _, x := range q.Join(tc.come) {
				got = append(got, x.Value)
			}
			if fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("%v had to go, want %v", got, tc.want)
			}
			if q.Len() > 4 || q.Tokens() > 100 {
				t.Errorf("%d of %d tokens wait", q.Len(), q.Tokens())
			}
		})
	}
}

// TestRefusalChangesNothing has a long question that would have made others go and is refused in the end.
func TestRefusalChangesNothing(t *testing.T) {
	p := newPair(t, Config{MaxItems: 10, MaxTokens: 30})
	for i := range 9 {
		p.step(0, 0, i, 1, 10, 3)
	}
	p.step(3, 0, 0, 0, 0, 0)
	p.step(0, 0, 9, 1, 39, 29)
	if p.q.Len() != 9 {
		t.Fatalf("%d questions wait, want the 9 that were there", p.q.Len())
	}
	for range 9 {
		p.step(3, 0, 0, 0, 0, 0)
	}
}

func TestNobodyMayWait(t *testing.T) {
	q := New[int](Config{MaxItems: -1})
	if gone := join(t, q, 1, "a", 5, time.Second); len(gone) != 1 || gone[0] != 1 || q.Len() != 0 {
		t.Errorf("%v had to go and %d wait", gone, q.Len())
	}
}

func BenchmarkNext(b *testing.B) {
	for _, tenants := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			q := New[int](Config{})
			for i := range 1024 {
				q.Join(&Item[int]{Value: i, Pool: "m", Tenant: fmt.Sprint(i % tenants), Cost: time.Duration(i%97) * 10 * time.Millisecond})
			}
			b.ReportAllocs()
			for b.Loop() {
				q.Back(q.Next("m", all))
			}
		})
	}
}
