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
	rank   int
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
		o: o, target: w.Targets[rank], rank: rank, worker: w,
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
	b, err := s.o.sample(s.target, &sample, now)
	if err != nil {
		return Belief{}, workerGone(s.worker.Worker)
	}
	s.o.obs.Sample(!b.Ignored)
	if t := s.o.teller; t != nil && !b.Ignored {
		t.Sample(&Sampled{Worker: w.Worker, Rank: s.rank, Incarnation: w.Incarnation, Sample: sample})
	}
	return b, nil
}

// sample applies a sample to a target, at this oracle's price of a token.
func (o *Oracle) sample(id fleet.TargetID, sample *Sample, now time.Time) (Belief, error) {
	f := o.feed(id)
	if f != nil {
		sample.SecondsPerToken = f.pricing.Load().cost.PrefillPerToken
	}
	b, err := o.load.Report(id, *sample, now)
	if err != nil {
		return Belief{}, err
	}
	if f != nil && !b.Ignored && sample.TotalBlocks.Known {
		f.kvBlocks.Store(uint64(max(sample.TotalBlocks.Value, 0)))
	}
	o.freed(now, id)
	return b, nil
}
