package oracle

import (
	"strings"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// HostPort is the part of a worker's address that a proxy connects to: "http://10.0.0.1:8000/" is reached at "10.0.0.1:8000".
func HostPort(address string) string {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address = rest
	}
	host, _, _ := strings.Cut(address, "/")
	return host
}

// Addresses lists where the workers are reached that could be chosen, of all models, ordered by name. only is as in
// RouteRequest.Addresses. O(workers).
func (o *Oracle) Addresses(only []string) []string {
	wanted := newNames(only)
	var out []string
	for _, w := range o.fleet.View().Workers() {
		at := HostPort(w.Address)
		if at != "" && w.State() == fleet.Ready && (only == nil || wanted.has(at)) {
			out = append(out, at)
		}
	}
	return out
}

// OnlyModel is the model of all workers; false: there are several, or none.
func (o *Oracle) OnlyModel() (model string, ok bool) { return o.fleet.View().OnlyModel() }

// At finds the worker that is reached at a host and port, of a model. O(workers of the model).
func (o *Oracle) At(model, hostPort string) (worker string, ok bool) {
	for _, w := range o.fleet.View().Model(model) {
		if HostPort(w.Address) == hostPort {
			return w.Worker, true
		}
	}
	return "", false
}
