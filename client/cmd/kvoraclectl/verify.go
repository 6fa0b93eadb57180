package main

import (
	"errors"
	"fmt"
	"io"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

type verifyCmd struct {
	Worker string `arg:"" help:"Name of the worker."`
	Rank   uint32 `help:"Data-parallel rank." default:"0"`
	IDs    bool   `name:"ids" help:"List the block ids too, one a line, with their tier."`
}

// tierSum is a digest as reporters send it.
type tierSum struct{ count, xor, sum uint64 }

// Run shows the view, by tier: the number of blocks and the two sums that a digest has.
func (c *verifyCmd) Run(e *env) error {
	conn, err := e.dial()
	if err != nil {
		return err
	}
	stream, err := kvoraclev1.NewFleetServiceClient(conn).VerifyWorker(e.ctx, &kvoraclev1.VerifyWorkerRequest{
		Target: &kvoraclev1.Target{WorkerId: c.Worker, DpRank: c.Rank},
	})
	if err != nil {
		return err
	}
	sums := make(map[kvoraclev1.Tier]*tierSum)
	var last *kvoraclev1.VerifyWorkerResponse
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		last = m
		s := sums[m.GetTier()]
		if s == nil {
			s = &tierSum{}
			sums[m.GetTier()] = s
		}
		for _, id := range m.GetBlockIds() {
			s.count++
			s.xor ^= id
			s.sum += id
			if c.IDs {
				fmt.Fprintf(e.out, "%016x %s\n", id, word(m.GetTier(), "TIER_"))
			}
		}
	}
	fmt.Fprintf(e.out, "%s rank %d after batch %d: cache %s\n", c.Worker, c.Rank, last.GetAppliedSequence(),
		word(last.GetConfidence(), "BLOCK_CONFIDENCE_"))
	for t := kvoraclev1.Tier_TIER_DEVICE; t <= kvoraclev1.Tier_TIER_SHARED; t++ {
		if s := sums[t]; s != nil {
			fmt.Fprintf(e.out, "  %-6s %d blocks, xor %016x, sum %016x\n", word(t, "TIER_"), s.count, s.xor, s.sum)
		}
	}
	return nil
}
