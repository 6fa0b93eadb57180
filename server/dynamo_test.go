package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
	"github.com/kvoracle/kvoracle/internal/script"
)

// want makes a call that must end with a code, and reads its JSON.
func (r *rig) want(code int, verb, path, body string) map[string]any {
	r.t.Helper()
	a := r.do(verb, path, body)
	if a.code != code {
		r.t.Fatalf("%s %s: %d, want %d: %s", verb, path, a.code, code, a.text)
	}
	var out map[string]any
	if strings.HasPrefix(a.text, "{") {
		if err := json.Unmarshal([]byte(a.text), &out); err != nil {
			r.t.Fatal(err)
		}
	}
	return out
}

// upDynamo starts a server with two workers that were registered as Dynamo's callers do.
func upDynamo(t *testing.T) *rig {
	t.Helper()
	r := up(t, Config{HTTPListen: "127.0.0.1:0"})
	if _, err := r.fleet.ListWorkers(t.Context(), nil); err != nil {
		t.Fatal(err) // it serves
	}
	for id := 1; id <= 2; id++ {
		got := r.want(http.StatusCreated, "POST", "/workers", fmt.Sprintf(`{"worker_id":%d,"model_name":"m","endpoint":"http://w%[1]d:8000",
			"block_size":16,"data_parallel_size":1,"total_kv_blocks":1000,"kv_events_endpoints":{"0":"tcp://w%[1]d:5557"},"unknown":1}`, id))
		if got["lifecycle"] != "schedulable" || got["worker_id"] != float64(id) {
			t.Errorf("got %v", got)
		}
	}
	return r
}

// TestDynamoFlow is the flow of Dynamo's documentation: select, reserve, prefill, output, end, by hashes and by tokens.
func TestDynamoFlow(t *testing.T) {
	r := upDynamo(t)
	got := r.want(http.StatusOK, "POST", "/select", `{"selection_id":"s1","model_name":"m","routing_group":"default",
		"block_hashes":[11,-12],"sequence_hashes":[21,22],"isl_tokens":40,"session_id":"x","allowed_worker_ids":[2]}`)
	want := map[string]any{
		"selection_id": "s1", "model_name": "m", "routing_group": "default", "worker_id": 2.0, "dp_rank": 0.0, "endpoint": "http://w2:8000",
		"block_size": 16.0, "effective_prefill_tokens": 40.0,
		"overlap": map[string]any{"longest_matched": 0.0, "gpu": 0.0, "dp": map[string]any{"0": 0.0}, "cpu": 0.0, "disk": 0.0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := r.inFlight("2"); n != 0 {
		t.Errorf("a selection booked %d requests", n)
	}
	reservation := r.want(http.StatusCreated, "POST", "/reservations", `{"selection_id":"s1","model_name":"m"}`)
	wantReserved := map[string]any{
		"selection_id": "s1", "model_name": "m", "routing_group": "default", "worker_id": 2.0, "dp_rank": 0.0, "endpoint": "http://w2:8000",
	}
	if diff := cmp.Diff(wantReserved, reservation); diff != "" {
		t.Error(diff)
	}
	if n := r.inFlight("2"); n != 1 {
		t.Errorf("a reservation booked %d requests", n)
	}
	if e := r.want(http.StatusNotFound, "POST", "/reservations", `{"selection_id":"s1","model_name":"m"}`); !strings.HasPrefix(fmt.Sprint(e["error"]), "no pending selection s1") {
		t.Errorf("booked twice: %v", e)
	}
	if e := r.want(http.StatusConflict, "POST", "/select_and_reserve", `{"selection_id":"s1","model_name":"m","token_ids":[1]}`); e["error"] == "" {
		t.Errorf("the same id twice: %v", e)
	}
	r.want(http.StatusOK, "POST", "/reservations/s1/prefill_complete", "")
	r.want(http.StatusOK, "POST", "/reservations/s1/output_block", "")
	r.want(http.StatusOK, "DELETE", "/reservations/s1", "")
	r.want(http.StatusNotFound, "DELETE", "/reservations/s1", "") // freed already
	r.want(http.StatusNotFound, "POST", "/reservations/s1/prefill_complete", "")
	if n := r.inFlight("2"); n != 0 {
		t.Errorf("%d requests in flight after the end", n)
	}

	got = r.want(http.StatusOK, "POST", "/select_and_reserve", `{"model_name":"m","token_ids":[1,2,3],"pinned_worker":{"worker_id":1,"dp_rank":0}}`)
	id, _ := got["selection_id"].(string)
	if id == "" || got["worker_id"] != 1.0 || got["isl_tokens"] != 3.0 || got["track_prefill_tokens"] != true {
		t.Errorf("got %v", got)
	}
	r.want(http.StatusOK, "DELETE", "/reservations/"+id, "")
	r.want(http.StatusCreated, "POST", "/reservations", `{"selection_id":"e1","model_name":"m","worker_id":2,"dp_rank":0,"token_ids":[1,2,3]}`)
	if n := r.inFlight("2"); n != 1 {
		t.Errorf("an explicit reservation booked %d requests", n)
	}
}

func (r *rig) inFlight(name string) (n uint32) {
	r.t.Helper()
	a := r.do("GET", "/loads?model_name=m", "")
	var loads []struct {
		Loads []struct {
			ID     int    `json:"worker_id"`
			Active uint32 `json:"active_requests"`
		} `json:"loads"`
	}
	if err := json.Unmarshal([]byte(a.text), &loads); err != nil || len(loads) != 1 {
		r.t.Fatalf("%v in %s", err, a.text)
	}
	for _, l := range loads[0].Loads {
		if fmt.Sprint(l.ID) == name {
			return l.Active
		}
	}
	r.t.Fatalf("no load of %s in %s", name, a.text)
	return 0
}

// TestDynamoPinsRanks: a rank that is pinned is the one that is selected, shown and booked, by each of the three ways; one that the
// worker does not have is refused, and books nothing.
func TestDynamoPinsRanks(t *testing.T) {
	r := up(t, Config{HTTPListen: "127.0.0.1:0"})
	if _, err := r.fleet.ListWorkers(t.Context(), nil); err != nil {
		t.Fatal(err) // it serves
	}
	r.want(http.StatusCreated, "POST", "/workers", `{"worker_id":1,"model_name":"m","endpoint":"http://w1:8000","block_size":16,"data_parallel_size":4}`)
	active := func() (out []float64) {
		t.Helper()
		var loads []map[string]any
		if err := json.Unmarshal([]byte(r.do("GET", "/loads", "").text), &loads); err != nil {
			t.Fatal(err)
		}
		ranks, _ := loads[0]["loads"].([]any)
		for _, l := range ranks {
			l, _ := l.(map[string]any)
			n, _ := l["active_requests"].(float64)
			out = append(out, n)
		}
		return out
	}
	var want []float64
	for rank := range 4 {
		pinned := fmt.Sprintf(`"model_name":"m","token_ids":[1,2,3],"pinned_worker":{"worker_id":1,"dp_rank":%d}}`, rank)
		got := r.want(http.StatusOK, "POST", "/select", fmt.Sprintf(`{"selection_id":"s%d",%s`, rank, pinned))
		if got["dp_rank"] != float64(rank) {
			t.Errorf("selected %v, want rank %d", got, rank)
		}
		if got := r.want(http.StatusCreated, "POST", "/reservations", fmt.Sprintf(`{"selection_id":"s%d","model_name":"m"}`, rank)); got["dp_rank"] != float64(rank) {
			t.Errorf("booked what was selected as %v, want rank %d", got, rank)
		}
		overlap, _ := r.want(http.StatusOK, "POST", "/select_and_reserve", "{"+pinned)["overlap"].(map[string]any)
		if dp, _ := overlap["dp"].(map[string]any); dp[fmt.Sprint(rank)] == nil {
			t.Errorf("overlap of %v, want rank %d", overlap, rank)
		}
		r.want(http.StatusCreated, "POST", "/reservations", fmt.Sprintf(`{"selection_id":"e%d","model_name":"m","worker_id":1,"dp_rank":%[1]d,"token_ids":[1]}`, rank))
		want = append(want, 3)
	}
	for path, more := range map[string]string{
		"/select": `"pinned_worker":{"worker_id":1,"dp_rank":4}`, "/select_and_reserve": `"pinned_worker":{"worker_id":1,"dp_rank":4}`,
		"/reservations": `"selection_id":"x","worker_id":1,"dp_rank":4`,
	} {
		r.want(http.StatusServiceUnavailable, "POST", path, `{"model_name":"m","token_ids":[1],`+more+`}`)
	}
	if diff := cmp.Diff(want, active()); diff != "" {
		t.Errorf("requests by rank (-want +got):\n%s", diff)
	}
}

// TestDynamoPatches: a patch changes what it names and nothing else, also of a worker that was registered over another door; of two at
// once neither is lost.
func TestDynamoPatches(t *testing.T) {
	r := upDynamo(t)
	spec := &kvoraclev1.WorkerSpec{
		WorkerId: "3", Address: "http://w3:8000", Model: "m", BlockSize: 16, DpSize: 1, MaxRequests: 7, Labels: map[string]string{"zone": "a"},
		Capacities: []*kvoraclev1.TierCapacity{{Tier: kvoraclev1.Tier_TIER_HOST, Blocks: 5}, {Tier: kvoraclev1.Tier_TIER_DEVICE, Blocks: 9}},
	}
	if _, err := r.fleet.RegisterWorker(t.Context(), &kvoraclev1.RegisterWorkerRequest{Spec: spec}); err != nil {
		t.Fatal(err)
	}
	got := r.want(http.StatusOK, "PATCH", "/workers/3", `{"endpoint":"http://moved:8000","total_kv_blocks":10,"max_num_batched_tokens":512}`)
	if got["endpoint"] != "http://moved:8000" || got["total_kv_blocks"] != 10.0 || got["max_num_batched_tokens"] != 512.0 || got["block_size"] != 16.0 {
		t.Errorf("patched to %v", got)
	}
	var wait sync.WaitGroup
	wait.Go(func() { r.do("PATCH", "/workers/3", `{"kv_events_endpoints":{"0":"tcp://w3:1"}}`) })
	wait.Go(func() { r.do("PATCH", "/workers/3", `{"total_kv_blocks":11}`) })
	wait.Wait()
	now, err := r.fleet.GetWorker(t.Context(), &kvoraclev1.GetWorkerRequest{WorkerId: "3"})
	if err != nil {
		t.Fatal(err)
	}
	spec.Address = "http://moved:8000"
	spec.Labels = map[string]string{"zone": "a", "dynamo.max_num_batched_tokens": "512", "dynamo.kv_events.0": "tcp://w3:1"}
	spec.Capacities[1].Blocks = 11
	if d := cmp.Diff(spec, now.GetWorker().GetSpec(), protocmp.Transform(), protocmp.SortRepeatedFields(&kvoraclev1.WorkerSpec{}, "capacities")); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	for body, want := range map[string]int{`{"block_size":0}`: 400, `{"endpoint":""}`: 400, `{"taints":["x"]}`: 400, `{"block_size":"x"}`: 422, `{`: 400} {
		r.want(want, "PATCH", "/workers/3", body)
	}
	r.want(http.StatusNotFound, "PATCH", "/workers/9", `{}`)
	r.want(http.StatusBadRequest, "PATCH", "/workers/x", `{}`)
}

// TestDynamoCountsWhatItRefuses: what the door refuses by itself is counted by its path, what the oracle refuses once, as the
// oracle's.
func TestDynamoCountsWhatItRefuses(t *testing.T) {
	r := upDynamo(t)
	for _, x := range []struct {
		code               int
		method, path, body string
		rpc, reason        string
	}{
		{400, "POST", "/select", "{", "POST /select", "INVALID_ARGUMENT"},
		{422, "PATCH", "/workers/1", `{"block_size":"x"}`, "PATCH /workers/{worker_id}", "INVALID_ARGUMENT"},
		{404, "DELETE", "/reservations/none", "", "DELETE /reservations/{id}", "NOT_FOUND"},
		{501, "GET", "/dump", "", "GET /dump", "UNIMPLEMENTED"},
		{404, "DELETE", "/workers/9", "", strings.TrimPrefix(kvoraclev1.FleetService_GetWorker_FullMethodName, "/"), "WORKER_UNKNOWN"},
	} {
		before := r.counted("kvoracle.requests.refused")
		r.want(x.code, x.method, x.path, x.body)
		if n := r.counted("kvoracle.requests.refused") - before; n != 1 {
			t.Errorf("%s %s is counted %d times", x.method, x.path, n)
		}
		if n := r.counted("kvoracle.requests.refused", "rpc="+x.rpc, "reason="+x.reason); n != 1 {
			t.Errorf("%s %s: %d refusals of %s for %s", x.method, x.path, n, x.rpc, x.reason)
		}
	}
}

// TestDynamoShowsOverlap: of each rank, what it holds of a prompt, tier by tier, and what would wait there.
func TestDynamoShowsOverlap(t *testing.T) {
	r := up(t, Config{HTTPListen: "127.0.0.1:0"})
	run := script.New(r.conn)
	defer run.Close()
	for _, step := range []string{
		"worker 1 addr=http://w1:8000", "worker 2 addr=http://w2:8000", "RB 1 e1 s1 +[A AB]", "RB 1 s2 tier=host +[A AB ABC]", "RB 1 s3 tier=disk +[A AB ABC ABCD]",
		"RB 2 e1 s1 +[A]",
	} {
		if _, err := run.Step(t.Context(), step); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
	var ids []string
	for _, letter := range "ABCDE" { // as the script spells them
		for i := range rune(4) {
			ids = append(ids, strconv.Itoa(int(letter<<8|i)))
		}
	}
	body := `{"model_name":"m","token_ids":[` + strings.Join(ids, ",") + `,1]}` // five blocks, and one token more
	want := map[string]any{
		"block_size": 4.0, "num_blocks": 5.0,
		"workers": []any{
			map[string]any{
				"worker_id": 1.0, "dp_rank": 0.0, "device_blocks": 2.0, "host_pinned_blocks": 3.0, "disk_blocks": 4.0,
				"host_pinned_extension_blocks": 1.0, "disk_extension_blocks": 1.0, "shared_beyond_device_blocks": nil,
			},
			map[string]any{
				"worker_id": 2.0, "dp_rank": 0.0, "device_blocks": 1.0, "host_pinned_blocks": 1.0, "disk_blocks": 1.0,
				"host_pinned_extension_blocks": 0.0, "disk_extension_blocks": 0.0, "shared_beyond_device_blocks": nil,
			},
		},
		"shared_cache": map[string]any{"enabled": false, "total_hit_blocks": 0.0, "ranges": []any{}, "error": nil},
	}
	if d := cmp.Diff(want, r.want(http.StatusOK, "POST", "/overlap_scores", body)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	loads := func() (out []rankShown) {
		t.Helper()
		if err := json.Unmarshal([]byte(r.do("POST", "/potential_loads", body).text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if d := cmp.Diff([]rankShown{{ID: 1, Prefill: 5}, {ID: 2, Prefill: 17}}, loads()); d != "" {
		t.Errorf("idle (-want +got)\n%s", d)
	}
	r.want(http.StatusOK, "POST", "/select_and_reserve", `{"model_name":"m","token_ids":[9,9,9],"allowed_worker_ids":[2]}`)
	if got := loads(); got[0].Active != 0 || got[1].Active != 1 || got[1].Prefill <= 17 || got[0].Prefill != 5 {
		t.Errorf("with one request at 2: %v", got)
	}
}

// rankShown is a rank as /potential_loads shows it.
type rankShown struct {
	ID      int `json:"worker_id"`
	Rank    int `json:"dp_rank"`
	Prefill int `json:"potential_prefill_tokens"`
	Active  int `json:"active_requests"`
}

// TestDynamoSeesWhatIsReported: a worker that reports under a name of its own has an id, and its cache counts.
func TestDynamoSeesWhatIsReported(t *testing.T) {
	r := upDynamo(t)
	run := script.New(r.conn)
	defer run.Close()
	if _, err := run.Step(t.Context(), "RB w1 e1 s1 +[A]"); err != nil {
		t.Fatal(err)
	}
	var all []map[string]any
	a := r.do("GET", "/workers", "")
	if err := json.Unmarshal([]byte(a.text), &all); err != nil || len(all) != 3 {
		t.Fatalf("%v in %s", err, a.text)
	}
	for _, w := range all {
		id, _ := w["worker_id"].(float64)
		if w["model_name"] == "m" {
			continue
		}
		if id < 1<<52 {
			t.Errorf("a name is shown as %v", id)
		}
		got := r.want(http.StatusOK, "POST", "/select", fmt.Sprintf(`{"model_name":%q,"token_ids":[1,2,3],"allowed_worker_ids":[%d]}`, w["model_name"], uint64(id)))
		if got["worker_id"] != id {
			t.Errorf("allowed %v, selected %v", id, got["worker_id"])
		}
		r.want(http.StatusOK, "DELETE", fmt.Sprintf("/workers/%d", uint64(id)), "")
	}
}

// TestDynamoRefusals: what is not served is named, in Dynamo's form of errors.
func TestDynamoRefusals(t *testing.T) {
	r := upDynamo(t)
	for body, want := range map[string]string{
		`{"model_name":"m"}`:                                                                          "block_hashes is required without token_ids",
		`{"model_name":"m","block_hashes":[1]}`:                                                       "sequence_hashes is required without token_ids",
		`{"model_name":"m","block_hashes":[1],"sequence_hashes":[1]}`:                                 "isl_tokens is required without token_ids",
		`{"model_name":"m","block_hashes":[1],"sequence_hashes":[],"isl_tokens":16}`:                  "must match",
		`{"model_name":"m","token_ids":[1],"router_config_override":{"x":1}}`:                         "router_config_override is not served",
		`{"model_name":"m","token_ids":[1],"routing_constraints":{"required":["x"]}}`:                 "routing_constraints is not served",
		`{"model_name":"m","block_hashes":[1],"sequence_hashes":[1],"isl_tokens":16,"lora_name":"l"}`: "send token_ids",
		`{"model_name":"m","token_ids":[]}`:                                                           "want at least 1",
		`{"model_name":`:                                                                              "JSON",
	} {
		if e := r.want(http.StatusBadRequest, "POST", "/select", body); !strings.Contains(fmt.Sprint(e["error"]), want) {
			t.Errorf("%s: %v, want %q", body, e, want)
		}
	}
	r.want(http.StatusServiceUnavailable, "POST", "/select", `{"model_name":"other","token_ids":[1]}`)
	r.want(http.StatusServiceUnavailable, "POST", "/select", `{"model_name":"m","token_ids":[1],"allowed_worker_ids":[7]}`)
	r.want(http.StatusBadRequest, "POST", "/workers", `{"worker_id":3,"endpoint":"x","block_size":16,"data_parallel_start_rank":4}`)
	for path, verb := range map[string]string{
		"/dump": "GET", "/replica_sync/peers": "GET", "/replica_sync/register_peer": "POST", "/replica_sync/deregister_peer": "POST",
	} {
		if e := r.want(http.StatusNotImplemented, verb, path, ""); !strings.Contains(fmt.Sprint(e["error"]), path+" is not served: ") {
			t.Errorf("%s: %v", path, e)
		}
	}
	r.want(http.StatusOK, "GET", "/health", "")
	if got := r.want(http.StatusOK, "GET", "/ready", ""); got["ready"] != true || got["schedulable_workers"] != 2.0 {
		t.Errorf("got %v", got)
	}
	r.want(http.StatusOK, "DELETE", "/workers/1", "")
	r.want(http.StatusOK, "DELETE", "/workers/2", "")
	r.want(http.StatusNotFound, "DELETE", "/workers/2", "")
	r.want(http.StatusServiceUnavailable, "GET", "/ready", "")
}

// TestDynamoAnswersAsDynamo plays calls whose answers were recorded from dynamo.select_service 1.6.1 (testdata/record.py):
// the same statuses, and the same answers but for texts of errors and what the two know of load.
func TestDynamoAnswersAsDynamo(t *testing.T) {
	r := up(t, Config{HTTPListen: "127.0.0.1:0"})
	if _, err := r.fleet.ListWorkers(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../internal/gateway/dynamo/testdata/select_service-1.6.1.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		var c struct {
			Verb, Path string
			Body       json.RawMessage
			Status     int
			Answer     any
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		n++
		body := string(c.Body)
		if body == "null" {
			body = ""
		}
		a := r.do(c.Verb, c.Path, body)
		if a.code != c.Status {
			t.Errorf("%d: %s %s %.80s: %d, Dynamo answers %d: %s", n, c.Verb, c.Path, body, a.code, c.Status, a.text)
			continue
		}
		var got any
		if err := json.Unmarshal([]byte(a.text), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(alike(c.Answer), alike(got)); diff != "" {
			t.Errorf("%d: %s %s (-Dynamo +kvoracle)\n%s", n, c.Verb, c.Path, diff)
		}
	}
	if n < 45 {
		t.Errorf("only %d calls were recorded", n)
	}
}

// alike leaves out what may differ.
func alike(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			switch name {
			case "error", "not_schedulable_reasons":
				v[name] = "some text"
			case "potential_prefill_tokens", // an estimate of ours
				"device_blocks", "host_pinned_blocks", "disk_blocks": // Dynamo has heard of no cache, and ours are guessed
				v[name] = "a number"
			case "potential_decode_blocks": // not known here, so not said
				delete(v, name)
			default:
				v[name] = alike(member)
			}
		}
	case []any:
		for i := range v {
			v[i] = alike(v[i])
		}
	}
	return v
}

// TestDynamoPriority: while all workers are full bookings wait, the most urgent first.
func TestDynamoPriority(t *testing.T) {
	r := up(t, Config{HTTPListen: "127.0.0.1:0", GatewayMaxQueue: time.Hour})
	spec := &kvoraclev1.WorkerSpec{WorkerId: "1", Address: "http://w1:8000", Model: "m", BlockSize: 16, MaxRequests: 1}
	if _, err := r.fleet.RegisterWorker(t.Context(), &kvoraclev1.RegisterWorkerRequest{Spec: spec}); err != nil {
		t.Fatal(err)
	}
	ask := func(id string, priority int) string {
		return fmt.Sprintf(`{"selection_id":%q,"model_name":"m","token_ids":[1,2,3],"strict_priority":%d}`, id, priority)
	}
	r.want(http.StatusOK, "POST", "/select_and_reserve", ask("first", 0))
	var wait sync.WaitGroup
	booked := make(chan string, 2)
	for i, id := range []string{"usual", "urgent"} {
		wait.Go(func() {
			if a := r.do("POST", "/select_and_reserve", ask(id, 5*i)); a.code != http.StatusOK {
				t.Errorf("%s: %d %s", id, a.code, a.text)
			}
			booked <- id
		})
		for deadline := time.Now().Add(time.Minute); r.s.oracle.Stats(time.Now()).Waiting != i+1; <-time.After(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s does not wait", id)
			}
		}
	}
	for i, id := range []string{"first", "urgent"} {
		r.want(http.StatusOK, "DELETE", "/reservations/"+id, "")
		if got, want := <-booked, []string{"urgent", "usual"}[i]; got != want {
			t.Errorf("booked %s, want %s", got, want)
		}
	}
	wait.Wait()
}
