package demo

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/sim"
)

// model is what all workers of the demonstration serve.
const model = "demo"

// workerName is the name of an engine.
func workerName(i int) string { return fmt.Sprintf("worker-%d", i) }

// reporting is one engine's sink: it tells the oracle what the engine tells it, through the client library.
type reporting struct {
	reporter *client.Reporter
	held     int   // blocks in the engine's cache, as it said
	err      error // the first that the library refused to take
}

// newReporting makes the reporter of engine i.
func newReporting(conn grpc.ClientConnInterface, i int, o Options) (*reporting, error) {
	r, err := client.NewReporter(conn, client.Worker{
		ID:          workerName(i),
		Address:     fmt.Sprintf("127.0.0.1:%d", 8000+i),
		Model:       model,
		BlockSize:   o.BlockSize,
		Incarnation: 1,
		Repeats:     client.RepeatsSet,
	})
	if err != nil {
		return nil, err
	}
	return &reporting{reporter: r}, nil
}

var _ sim.Sink = (*reporting)(nil)

// Stored implements sim.Sink.
func (r *reporting) Stored(_ float64, parent block.ID, isRoot bool, ids []block.ID) {
	p := client.After(parent)
	if isRoot {
		p = client.Root()
	}
	r.held += len(ids)
	r.note(r.reporter.Store(p, ids, client.TierDevice))
}

// Removed implements sim.Sink.
func (r *reporting) Removed(_ float64, ids []block.ID) {
	r.held -= len(ids)
	r.note(r.reporter.Remove(ids, client.TierDevice))
}

// Load implements sim.Sink.
func (r *reporting) Load(_ float64, s sim.LoadSample) {
	r.reporter.Load(client.LoadSample{
		Running:              &s.Running,
		Waiting:              &s.Waiting,
		WaitingPrefillTokens: &s.WaitingPrefillTokens,
		UsedBlocks:           &s.UsedBlocks,
		TotalBlocks:          &s.TotalBlocks,
	})
}

func (r *reporting) note(err error) {
	if r.err == nil {
		r.err = err
	}
}

// gateway follows requests through their life and tells the oracle, as a gateway does.
type gateway struct {
	router    *client.Router
	decisions map[*sim.Job]client.Decision
}

var _ sim.Observer = (*gateway)(nil)

// FirstToken implements sim.Observer.
func (g *gateway) FirstToken(_ float64, j *sim.Job) {
	g.router.FirstToken(g.decisions[j], seconds(j.FirstToken-j.Arrived))
}

// Finished implements sim.Observer.
func (g *gateway) Finished(_ float64, j *sim.Job) {
	g.router.Finished(g.decisions[j], j.Request.Output, j.Cached)
	delete(g.decisions, j)
}
