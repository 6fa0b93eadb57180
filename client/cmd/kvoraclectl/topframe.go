package main

import (
	"cmp"
	"slices"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// frame is one picture of the fleet. Rates are over the time since the look before it.
type frame struct {
	At      time.Time `json:"at"`
	Server  string    `json:"server"`
	Seconds float64   `json:"seconds"` // between the two looks
	// Trouble is why there is no picture this time.
	Trouble string `json:"trouble,omitempty"`

	Workers   map[string]int `json:"workers"` // by state
	Targets   map[string]int `json:"targets"` // by how far their cache is known
	Decisions float64        `json:"decisions_per_second"`
	InFlight  int            `json:"in_flight"`
	Booked    int            `json:"booked"`
	Prefill   float64        `json:"pending_prefill_seconds"`

	// NoMetrics is why what follows is not known.
	NoMetrics string   `json:"no_metrics,omitempty"`
	HitShare  *float64 `json:"hit_share,omitempty"` // of prompt tokens; absent: no prompts
	Refused   *float64 `json:"refused_per_second,omitempty"`
	TTFT      *float64 `json:"ttft_seconds,omitempty"`       // mean, as measured
	TTFTError *float64 `json:"ttft_error_seconds,omitempty"` // mean distance of predictions from it

	Ranks []rankRow `json:"ranks"`
}

// rankRow is one rank of a worker.
type rankRow struct {
	Worker    string  `json:"worker"`
	Rank      uint32  `json:"dp_rank"`
	Model     string  `json:"model"`
	State     string  `json:"state"`
	Cache     string  `json:"cache"`
	Load      string  `json:"load"`
	Blocks    uint64  `json:"blocks"`
	InFlight  uint32  `json:"in_flight"`
	Booked    uint32  `json:"booked"`
	Prefill   float64 `json:"pending_prefill_seconds"`
	Decisions float64 `json:"decisions_per_second"`
	Unmatched bool    `json:"unmatched,omitempty"` // it holds blocks that no question begins with
}

// rankKey names a rank in one life of its worker: counters of another life have nothing to do with it.
type rankKey struct {
	worker string
	rank   uint32
	life   int64
}

func keyOf(w *kvoraclev1.Worker, r *kvoraclev1.RankStatus) rankKey {
	return rankKey{w.GetSpec().GetWorkerId(), r.GetDpRank(), w.GetRegisteredAt().AsTime().UnixNano()}
}

// compare makes a picture of a look, with rates since the one before; nil: there was none.
func compare(before, now *look) *frame {
	f := &frame{At: now.at, Workers: map[string]int{}, Targets: map[string]int{}}
	former := make(map[rankKey]uint64)
	if before != nil {
		f.Seconds = now.at.Sub(before.at).Seconds()
		for _, w := range before.workers {
			for _, r := range w.GetRanks() {
				former[keyOf(w, r)] = r.GetDecisions()
			}
		}
	}
	for _, w := range now.workers {
		state := word(w.GetState(), "WORKER_STATE_")
		f.Workers[state]++
		for _, r := range w.GetRanks() {
			row := rankRow{
				Worker: w.GetSpec().GetWorkerId(), Rank: r.GetDpRank(), Model: w.GetSpec().GetModel(), State: state,
				Cache:    word(r.GetConfidence().GetBlocks(), "BLOCK_CONFIDENCE_"),
				Load:     word(r.GetConfidence().GetLoad(), "LOAD_CONFIDENCE_"),
				Blocks:   r.GetDeviceBlocks() + r.GetHostBlocks() + r.GetDiskBlocks() + r.GetSharedBlocks(),
				InFlight: r.GetInFlight(), Booked: r.GetBookedRequests(), Prefill: r.GetPendingPrefillSeconds(), Unmatched: r.GetUnmatched(),
			}
			if was := former[keyOf(w, r)]; f.Seconds > 0 && r.GetDecisions() >= was {
				row.Decisions = float64(r.GetDecisions()-was) / f.Seconds
			}
			f.Targets[row.Cache]++
			f.Decisions += row.Decisions
			f.InFlight += int(row.InFlight)
			f.Booked += int(row.Booked)
			f.Prefill += row.Prefill
			f.Ranks = append(f.Ranks, row)
		}
	}
	return f
}

// addSums fills in what the metrics say has happened between two looks. Sums that went back are those of another process.
func (f *frame) addSums(before, now *look) {
	if before == nil || before.sums == nil || now.sums == nil {
		return
	}
	a, b := before.sums, now.sums
	share := func(part, all float64) *float64 {
		if !(all > 0) || part < 0 {
			return nil
		}
		v := part / all
		return &v
	}
	f.HitShare = share(b.matched-a.matched, b.prompt-a.prompt)
	f.Refused = share(b.refused-a.refused, f.Seconds)
	f.TTFT = share(b.ttft-a.ttft, b.ttfts-a.ttfts)
	f.TTFTError = share(b.ttftError-a.ttftError, b.ttfts-a.ttfts)
}

// order sorts the rows: by load or decisions, the most first, or by name. Equal ones stay by name.
func (f *frame) order(by string) {
	slices.SortStableFunc(f.Ranks, func(a, b rankRow) int {
		switch by {
		case "load":
			return cmp.Or(cmp.Compare(b.Prefill, a.Prefill), cmp.Compare(b.InFlight, a.InFlight), cmp.Compare(b.Decisions, a.Decisions))
		case "decisions":
			return cmp.Compare(b.Decisions, a.Decisions)
		default:
			return 0
		}
	})
}
