package wire

import (
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// EncodeRecord writes one recorded request. The message takes the block ids over.
func EncodeRecord(r *oracle.Record) *kvoraclev1.RecordedRequest {
	m := &kvoraclev1.RecordedRequest{
		DecidedAt:    Timestamp(r.Decided),
		FinishedAt:   Timestamp(r.Finished),
		PromptTokens: count32(r.PromptTokens),
		OutputTokens: count32(r.OutputTokens),
		BlockSize:    count32(r.BlockSize),
		BlockIds:     r.Blocks,
		Session:      r.Session,
		TtftSeconds:  r.TTFT,
		WorkerId:     r.Worker,
		Model:        r.Model,
	}
	if r.Cached >= 0 {
		n := count32(r.Cached)
		m.CachedTokens = &n
	}
	return m
}

// count32 is a count as the wire has it.
func count32(n int) uint32 { return uint32(min(max(n, 0), 1<<32-1)) }
