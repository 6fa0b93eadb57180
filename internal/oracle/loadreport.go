package oracle

import (
	"strconv"
	"time"

	"github.com/kvoracle/kvoracle/internal/fleet"
)

// LoadSession is one open load stream. Used by one goroutine.
type LoadSession struct {
	o      *Oracle
	target fleet.TargetID
	worker *fleet.Worker // the life it speaks for
}

// OpenLoad opens a load stream for a rank of a known worker.
func (o *Oracle) OpenLoad(worker string, rank int, incarnation uint64) (*LoadSession, error) {
	w := o.fleet.View().Worker(worker)
	if w == nil {
		return nil, workerUnknown(worker)
	}
	if rank >= len(w.Targets) {
		return nil, rankUnknown("hello.target.dp_rank", rank, len(w.Targets))
	}
	if incarnation != 0 && incarnation < w.Incarnation {
		return nil, Fault(FailedPrecondition, ReasonOldIncarnation, "hello.incarnation", utoa(incarnation),
			"want at least "+utoa(w.Incarnation)+", the known one")
	}
	o.load.Reconnected(w.Targets[rank])
	return &LoadSession{
		o: o, target: w.Targets[rank], worker: w,
	}, nil
}

func rankUnknown(field string, rank, size int) *Error {
	return Fault(InvalidArgument, ReasonFieldInvalid, field, strconv.Itoa(rank), "want a rank below "+strconv.Itoa(size))
}

// Sample applies one look at the engine's gauges and says what is believed now.
func (s *LoadSession) Sample(sample Sample, now time.Time) (Belief, error) {
	// The id may have been recycled: only the life this stream was opened for counts.
	w := s.o.fleet.View().Target(s.target)
	if w == nil || !sameLife(w, s.worker) {
		return Belief{}, workerGone(s.worker.Worker)
	}
	if f := s.o.feed(s.target); f != nil {
		sample.SecondsPerToken = f.pricing.Load().cost.PrefillPerToken
	}
	b, err := s.o.load.Report(s.target, sample, now)
	if err != nil {
		return Belief{}, workerGone(s.worker.Worker)
	}
	if f := s.o.feed(s.target); f != nil && !b.Ignored && sample.TotalBlocks.Known {
		f.kvBlocks.Store(uint64(max(sample.TotalBlocks.Value, 0)))
	}
	s.o.obs.Sample(!b.Ignored)
	s.o.freed(now, s.target)
	return b, nil
}
