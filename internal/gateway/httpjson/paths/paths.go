// Package paths is the table of the HTTP/JSON door: which verb and path means which method of the gRPC services. The door
// serves from it, and protoc-gen-openapi describes it. It knows nothing generated, so that the generator can be built
// before there is anything.
package paths

import "strings"

// Path is one row.
type Path struct {
	// Verb is the HTTP method.
	Verb string
	// Pattern is the path. A name in braces is a string field of the request message.
	Pattern string
	// Method is the full name of the gRPC method, as in "/package.Service/Method".
	Method string
	// HasBody says that the body is the request message. An empty body is an empty message.
	HasBody bool
	// Query names the string fields of the request message that the URL's query may set.
	Query []string
}

// Paths is the table.
func Paths() []Path {
	const (
		route = "/kvoracle.v1.RouteService/"
		fleet = "/kvoracle.v1.FleetService/"
	)
	return []Path{
		{Verb: "POST", Pattern: "/v1/route", Method: route + "Route", HasBody: true},
		{Verb: "POST", Pattern: "/v1/progress", Method: route + "RecordProgress", HasBody: true},
		{Verb: "GET", Pattern: "/v1/decisions/{decision_id}", Method: fleet + "ExplainDecision"},
		{Verb: "GET", Pattern: "/v1/workers", Method: fleet + "ListWorkers", Query: []string{"model"}},
		{Verb: "POST", Pattern: "/v1/workers", Method: fleet + "RegisterWorker", HasBody: true},
		{Verb: "GET", Pattern: "/v1/workers/{worker_id}", Method: fleet + "GetWorker"},
		{Verb: "DELETE", Pattern: "/v1/workers/{worker_id}", Method: fleet + "RemoveWorker"},
		{Verb: "POST", Pattern: "/v1/workers/{worker_id}/drain", Method: fleet + "DrainWorker", HasBody: true},
		{Verb: "POST", Pattern: "/v1/workers/{worker_id}/invalidate", Method: fleet + "InvalidateWorker"},
	}
}

// Fields names the fields in a pattern's braces.
func (p *Path) Fields() []string {
	var out []string
	for part := range strings.SplitSeq(p.Pattern, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			out = append(out, strings.TrimSuffix(name, "}"))
		}
	}
	return out
}
