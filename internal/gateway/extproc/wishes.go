package extproc

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// Queue says what a request may ask for while all workers that could take it are at their limits.
type Queue struct {
	// MaxWait is how long a request waits for a place; a header may ask for less. 0: none waits, it is answered with 429. It must
	// be shorter than the proxy's own time limit (message_timeout, in BUFFERED), at which the place in the queue is given up.
	MaxWait time.Duration
	// Objectives are the priorities of objectives by name: the higher goes first. One that is not here has 0.
	Objectives map[string]int32
}

// Names of headers that say what a request wants. Those of the inference extension have a second form, of llm-d 0.8.
const (
	keyRequest   = "x-request-id"                 // Envoy's name of it
	keyPriority  = "x-kvoracle-priority"          // a number
	keyMaxQueue  = "x-kvoracle-max-queue-seconds" // at most Queue.MaxWait
	keyTenant    = "x-gateway-inference-fairness-id"
	keyTenant2   = "x-llm-d-inference-fairness-id"
	keyObjective = "x-gateway-inference-objective"
	keyObj2      = "x-llm-d-inference-objective"
	keyTTFT      = "x-slo-ttft-ms"
	keyTTFT2     = "x-llm-d-slo-ttft-ms"
	keyTPOT      = "x-slo-tpot-ms"
	keyTPOT2     = "x-llm-d-slo-tpot-ms"
)

// longestGoal is the longest time that can be wanted, in seconds, as over the other doors.
const longestGoal = 3600

// wishes are what a request's headers say about it. What is no number, out of range or too long is not heard: a proxy cannot
// tell its client why it is refused.
type wishes struct {
	method, path string
	length       int    // of its body, as it says; 0: it does not
	parent       string // traceparent
	request      string // the proxy's name of it
	session      string
	tenant       string
	objective    string
	priority     int32
	hasPriority  bool
	wait         float64 // seconds; negative: not said
	ttft, tpot   float64 // seconds; 0: not said
}

// note hears one header.
func (w *wishes) note(key, value, sessionHeader string) {
	switch key {
	case ":method":
		w.method = value
	case ":path":
		w.path = value
	case "content-length":
		w.length, _ = strconv.Atoi(value) // whatever is no number is found out when the body comes
	case "traceparent":
		w.parent = value
	case keyRequest:
		if len(value) <= longestSession {
			w.request = value
		}
	case keyTenant, keyTenant2:
		if len(value) <= longestSession {
			w.tenant = value
		}
	case keyObjective, keyObj2:
		w.objective = value
	case keyPriority:
		if n, err := strconv.ParseInt(value, 10, 32); err == nil {
			w.priority, w.hasPriority = int32(n), true
		}
	case keyMaxQueue:
		if s, ok := number(value, math.MaxInt32); ok {
			w.wait = s
		}
	case keyTTFT, keyTTFT2:
		if ms, ok := number(value, longestGoal*1000); ok {
			w.ttft = ms / 1000
		}
	case keyTPOT, keyTPOT2:
		if ms, ok := number(value, longestGoal*1000); ok {
			w.tpot = ms / 1000
		}
	}
	if key == sessionHeader && len(value) <= longestSession {
		w.session = value
	}
}

// heard has the keys of all headers that note hears, by their canonical form.
func heard(sessionHeader string) map[string]string {
	out := make(map[string]string)
	for _, key := range []string{
		"traceparent", keyRequest, keyTenant, keyTenant2, keyObjective, keyObj2, keyPriority, keyMaxQueue, keyTTFT, keyTTFT2, keyTPOT, keyTPOT2, sessionHeader,
	} {
		out[http.CanonicalHeaderKey(key)] = key
	}
	return out
}

// number reads one from 0 to most.
func number(s string, most float64) (float64, bool) {
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && v >= 0 && v <= most
}

// apply says them to the oracle.
func (w *wishes) apply(r *oracle.RouteRequest, q *Queue) {
	r.Session, r.Tenant = w.session, w.tenant
	r.Goals.TTFT, r.Goals.TPOT = w.ttft, w.tpot
	r.Priority = w.priority
	if !w.hasPriority {
		r.Priority = q.Objectives[w.objective]
	}
	r.MaxWait = q.MaxWait
	if w.wait >= 0 && w.wait < q.MaxWait.Seconds() {
		r.MaxWait = time.Duration(w.wait * float64(time.Second))
	}
}

// attributes are where Envoy puts the parts of a request that it is told to send along (request_attributes). Each is named as
// the configuration writes it.
const attributes = "envoy.filters.http.ext_proc"

// keyUpstream is the attribute of a response that says who has served it (response_attributes).
const keyUpstream = "upstream.address"

// attributed hears a request's headers where they come with its body, as attributes: request.method, request.path, and
// request.headers['name']. It says whether there is a path, without which nothing can be made of a body.
func (w *wishes) attributed(m *extprocv3.ProcessingRequest, sessionHeader string) bool {
	for name, v := range m.GetAttributes()[attributes].GetFields() {
		switch value := v.GetStringValue(); name {
		case "request.method":
			w.note(":method", value, sessionHeader)
		case "request.path":
			w.note(":path", value, sessionHeader)
		default:
			rest, ok := strings.CutPrefix(name, "request.headers[")
			if ok && len(rest) > 3 {
				w.note(rest[1:len(rest)-2], value, sessionHeader)
			}
		}
	}
	return w.path != ""
}
