package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

type workersCmd struct {
	Model string `help:"Only workers of this model."`
}

// Run lists.
func (c *workersCmd) Run(e *env) error {
	conn, err := e.dial()
	if err != nil {
		return err
	}
	ctx, cancel := e.call()
	defer cancel()
	m, err := kvoraclev1.NewFleetServiceClient(conn).ListWorkers(ctx, &kvoraclev1.ListWorkersRequest{Model: c.Model})
	if err != nil {
		return err
	}
	return printWorkers(e.out, m.GetWorkers())
}

func printWorkers(out io.Writer, ws []*kvoraclev1.Worker) error {
	if len(ws) == 0 {
		_, err := fmt.Fprintln(out, "no workers")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WORKER\tRANK\tMODEL\tBLOCK\tSTATE\tCACHE\tBLOCKS\tLOAD\tIN FLIGHT\tPREFILL\tDECISIONS")
	for _, x := range ws {
		for _, r := range x.GetRanks() {
			fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\t%s\t%d\t%s\t%d\t%.0f ms\t%d\n",
				x.GetSpec().GetWorkerId(), r.GetDpRank(), x.GetSpec().GetModel(), x.GetSpec().GetBlockSize(),
				word(x.GetState(), "WORKER_STATE_"), word(r.GetConfidence().GetBlocks(), "BLOCK_CONFIDENCE_"),
				r.GetDeviceBlocks()+r.GetHostBlocks()+r.GetDiskBlocks()+r.GetSharedBlocks(),
				word(r.GetConfidence().GetLoad(), "LOAD_CONFIDENCE_"), r.GetInFlight(), r.GetPendingPrefillSeconds()*1e3, r.GetDecisions())
		}
	}
	return w.Flush()
}

type watchCmd struct {
	Model    string        `help:"Only workers of this model."`
	Interval time.Duration `help:"Least time between two lists." default:"1s"`
}

// Run watches until interrupted.
func (c *watchCmd) Run(e *env) error {
	conn, err := e.dial()
	if err != nil {
		return err
	}
	stream, err := kvoraclev1.NewFleetServiceClient(conn).WatchWorkers(e.ctx, &kvoraclev1.WatchWorkersRequest{
		Model: c.Model, IntervalMs: uint32(c.Interval.Milliseconds()),
	})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) || (err != nil && e.ctx.Err() != nil) {
			return nil //nolint:nilerr // being interrupted is how watching ends
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(e.out, "%s\n", time.Now().Format("15:04:05"))
		if err := printWorkers(e.out, m.GetWorkers()); err != nil {
			return err
		}
		fmt.Fprintln(e.out)
	}
}

type drainCmd struct {
	Worker string `arg:"" help:"Name of the worker."`
	Undo   bool   `help:"Put it back into service."`
}

// Run drains.
func (c *drainCmd) Run(e *env) error {
	conn, err := e.dial()
	if err != nil {
		return err
	}
	ctx, cancel := e.call()
	defer cancel()
	m, err := kvoraclev1.NewFleetServiceClient(conn).DrainWorker(ctx, &kvoraclev1.DrainWorkerRequest{WorkerId: c.Worker, Undo: c.Undo})
	if err != nil {
		return err
	}
	return printWorkers(e.out, []*kvoraclev1.Worker{m.GetWorker()})
}

type removeCmd struct {
	Worker string `arg:"" help:"Name of the worker."`
}

// Run removes.
func (c *removeCmd) Run(e *env) error {
	conn, err := e.dial()
	if err != nil {
		return err
	}
	ctx, cancel := e.call()
	defer cancel()
	m, err := kvoraclev1.NewFleetServiceClient(conn).RemoveWorker(ctx, &kvoraclev1.RemoveWorkerRequest{WorkerId: c.Worker})
	if err != nil {
		return err
	}
	fmt.Fprintf(e.out, "%s is gone: %d blocks forgotten, %d bookings released\n", c.Worker, m.GetDroppedBlocks(), m.GetReleasedBookings())
	return nil
}
