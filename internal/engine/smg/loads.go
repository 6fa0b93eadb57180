package smg

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvoracle/kvoracle/internal/engine/metrics"
)

// ParseRecord reads the load record of a batch (smg.grpc.common.EngineLoad) as rank's. Its counts are said even if they are
// zero, which the wire leaves out; optional ones are not.
func ParseRecord(rank int, record []byte) (metrics.Reading, error) {
	var g metrics.Gauges
	var running, waiting, usage float64
	var active *float64
	r := metrics.Reading{Facts: metrics.Facts{Source: "the load record"}}
	err := each(record, func(f field) {
		switch f.number {
		case 1:
			running = f.count()
		case 2:
			waiting = f.count()
		case 3:
			g.WaitingPrefillTokens = new(f.count())
		case 4:
			usage = f.ratio()
		case 6:
			metrics.TakeFact(&r.Facts.MaxRunning, f.count())
		case 11:
			g.UsedTokens = new(f.count())
		case 12:
			g.TotalTokens = new(f.count())
		case 18: // without what is cached and can be evicted, which is what we want to know
			active = new(f.ratio())
		}
	})
	if err != nil {
		return metrics.Reading{}, fmt.Errorf("smg: load record: %w", err)
	}
	g.Running, g.Waiting, g.Usage = &running, &waiting, &usage
	if active != nil {
		g.Usage, g.UsedTokens = active, nil
	}
	r.Take(rank, settled(g))
	return r, nil
}

// settled drops what only looks like a statement.
func settled(g metrics.Gauges) metrics.Gauges {
	if g.TotalTokens != nil && *g.TotalTokens == 0 { // not known yet
		g.TotalTokens, g.UsedTokens = nil, nil
	}
	return g
}

// ParseLoads reads GetLoadsResponse of vLLM's or SGLang's servicer. No rank at all is an error, which an engine that is not
// up yet says by it.
func ParseLoads(body []byte) (metrics.Reading, error) {
	r := metrics.Reading{Facts: metrics.Facts{Source: "GetLoads"}}
	var failed error
	err := each(body, func(f field) {
		if f.number == 4 && f.kind == protowire.BytesType && failed == nil {
			failed = parseLoad(&r, f.bytes)
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return metrics.Reading{}, fmt.Errorf("smg: GetLoads: %w", err)
	}
	if len(r.Ranks) == 0 {
		return metrics.Reading{}, errNoRanks
	}
	return r, nil
}

var errNoRanks = errors.New("smg: GetLoads: no ranks")

// parseLoad reads a SchedulerLoad. Zeros are not on the wire, so that a count that is not there is zero; of the tokens that
// wait it is more likely one that an older servicer does not know, as long as anything waits.
func parseLoad(r *metrics.Reading, m []byte) error {
	var g metrics.Gauges
	rank := 0
	var running, waiting, usage, used, total float64
	err := each(m, func(f field) {
		switch {
		case f.number == 1:
			rank = int(int32(uint32(f.value)))
		case f.number == 2:
			running = f.count()
		case f.number == 3:
			waiting = f.count()
		case f.number == 5:
			used = f.count()
		case f.number == 6:
			total = f.count()
		case f.number == 7:
			usage = f.ratio()
		case f.number == 11:
			metrics.TakeFact(&r.Facts.MaxRunning, f.count())
		case (f.number == 12 || f.number == 17) && f.kind == protowire.VarintType: // vLLM's, SGLang's
			g.WaitingPrefillTokens = new(f.count())
		}
	})
	if err != nil {
		return err
	}
	g.Running, g.Waiting, g.Usage, g.UsedTokens, g.TotalTokens = &running, &waiting, &usage, &used, &total
	if g.WaitingPrefillTokens == nil && waiting == 0 {
		g.WaitingPrefillTokens = new(0.0)
	}
	r.Take(rank, settled(g))
	return nil
}
