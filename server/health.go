package server

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/health"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvoracle/kvoracle/internal/gateway/extproc"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// The components of the server's health, by the names under which grpc.health.v1 knows them.
const (
	// healthLiveness: the process works. Down only before start and after the end; a drain does not touch it.
	healthLiveness = "liveness"
	// healthFleet: ExpectedWorkers workers have had fresh block reports at one moment since the start.
	healthFleet = "fleet"
	// healthIndex: what was saved before the start is in force; at once where nothing is.
	healthIndex = "index"
	// healthReplication: what is reported here gets into the log, for the other replicas, and what they say from there; or for
	// the next life of this process, with DataDir. Only where there is a log.
	healthReplication = "replication"
	// healthReadiness: send traffic here. Serving, not draining, fleet and index well, and what other replicas knew at the
	// start is known; later this one goes on without them.
	healthReadiness = "readiness"
	// healthServer is the server as a whole: the same as readiness.
	healthServer = ""
)

// components lists all names, in the order in which pages show them. The services are up while calls are answered,
// even before the fleet is well: workers must be able to report for it to become so.
func components() []string {
	return []string{
		healthLiveness, healthReadiness, healthFleet, healthIndex,
		kvoraclev1.RouteService_ServiceDesc.ServiceName, kvoraclev1.FleetService_ServiceDesc.ServiceName, extproc.Name,
		healthServer,
	}
}

// board is the server's health: named components that start unwell. It mirrors itself to the gRPC health service and
// logs transitions only.
//
// Safe for concurrent use. mu guards all fields below it; the gRPC health server's own lock is taken inside.
type board struct {
	rpc   *health.Server
	log   *slog.Logger
	names []string

	mu                sync.Mutex
	isServing         bool
	isDraining        bool
	isLoaded          bool // what was saved is in force
	isJoined          bool // what other replicas knew at the start is known
	isReplicating     bool
	fresh, most, want int // workers with fresh reports now, the most ever, and those wanted
	up                map[string]bool
}

func newBoard(expectedWorkers int, isReplica bool, log *slog.Logger) *board {
	b := &board{rpc: health.NewServer(), log: log, names: components(), isJoined: !isReplica, want: expectedWorkers, up: make(map[string]bool)}
	if isReplica {
		b.names = append(b.names, healthReplication)
	}
	for _, c := range b.names {
		b.rpc.SetServingStatus(c, healthpb.HealthCheckResponse_NOT_SERVING)
	}
	return b
}

// serving says that calls are answered.
func (b *board) serving() { b.change(func() { b.isServing = true }) }

// loaded says that what was saved is in force.
func (b *board) loaded() { b.change(func() { b.isLoaded = true }) }

// replication says whether this replica has joined the others, which it then has for good, and whether they hear each other.
func (b *board) replication(isJoined, isWell bool) {
	b.change(func() { b.isJoined, b.isReplicating = isJoined, isJoined && isWell })
}

// draining says that the server is going.
func (b *board) draining() { b.change(func() { b.isDraining = true }) }

// ended says that calls are not answered any more; the gRPC health service then ignores what comes later.
func (b *board) ended() {
	b.change(func() { b.isServing = false })
	b.rpc.Shutdown()
}

// workers says how many workers have fresh block reports.
func (b *board) workers(fresh int) {
	b.change(func() { b.fresh, b.most = fresh, max(b.most, fresh) })
}

// expect says how many workers are wanted from now on. Once there were enough it stays well.
func (b *board) expect(workers int) {
	b.change(func() {
		if b.most < b.want {
			b.want = workers
		}
	})
}

// isWarm says whether enough workers have been fresh at once; then counting them again changes no component.
func (b *board) isWarm() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most >= b.want
}

// change edits the facts and derives the components from them.
func (b *board) change(edit func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	edit()
	answering := b.isServing && !b.isDraining
	warm := b.isServing && b.most >= b.want
	loaded := b.isServing && b.isLoaded
	ready := answering && warm && loaded && b.isJoined
	if slices.Contains(b.names, healthReplication) {
		b.set(healthReplication, b.isServing && b.isReplicating)
	}
	b.set(healthLiveness, b.isServing)
	b.set(healthFleet, warm)
	b.set(healthIndex, loaded)
	b.set(kvoraclev1.RouteService_ServiceDesc.ServiceName, answering)
	b.set(kvoraclev1.FleetService_ServiceDesc.ServiceName, answering)
	b.set(healthReadiness, ready)
	b.set(extproc.Name, ready) // a proxy does better by its own rules until we know the fleet
	b.set(healthServer, ready)
}

// set shows one component. mu is held.
func (b *board) set(component string, up bool) {
	if b.up[component] == up {
		return
	}
	b.up[component] = up
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if up {
		state = healthpb.HealthCheckResponse_SERVING
	}
	b.rpc.SetServingStatus(component, state)
	b.log.Info("health", slog.String("component", shown(component)), slog.String("status", state.String()))
}

// shown names a component to people.
func shown(component string) string {
	if component == healthServer {
		return "server"
	}
	return component
}

// check is one component's state, with every component's for people to read.
func (b *board) check(component string) (up bool, page string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var s strings.Builder
	for _, c := range b.names {
		state := "not serving"
		if b.up[c] {
			state = "serving"
		}
		fmt.Fprintf(&s, "%s: %s", shown(c), state)
		switch {
		case c != healthFleet:
		case b.want == 0:
			fmt.Fprintf(&s, " (%d workers fresh, none expected)", b.fresh)
		default:
			fmt.Fprintf(&s, " (%d of %d expected workers fresh)", b.fresh, b.want)
		}
		s.WriteByte('\n')
	}
	return b.up[component], s.String()
}
