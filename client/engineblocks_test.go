package client_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/client/clienttest"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// believed is what the oracle believes a worker to hold, in order.
func believed(t *testing.T, o *clienttest.Oracle, worker string) map[client.Tier][]uint64 {
	t.Helper()
	s, err := kvoraclev1.NewFleetServiceClient(o.Conn()).VerifyWorker(t.Context(), &kvoraclev1.VerifyWorkerRequest{Target: &kvoraclev1.Target{WorkerId: worker}})
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[client.Tier][]uint64)
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(m.GetBlockIds()) > 0 {
			out[m.GetTier()] = append(out[m.GetTier()], m.GetBlockIds()...)
		}
	}
	for tier := range out {
		slices.Sort(out[tier])
	}
	return out
}

func counted(id string) client.Worker {
	w := worker(id)
	w.Repeats = client.RepeatsCounted
	return w
}

// TestEngineBlocksEqualBlocks lets one engine be reported twice, by its own hashes and by tokens, with snapshots asked for
// and an oracle that restarts in between: the oracle believes the same of both, at any time.
func TestEngineBlocksEqualBlocks(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		byHash, byID := newReporter(t, o, counted("hashes")), newReporter(t, o, worker("ids"))
		running(t, byHash)
		running(t, byID)
		blocks, err := client.NewEngineBlocks(byHash, client.RepeatsSet, 0)
		if err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(8, 8))
		const prompts, length = 6, 5
		// Block i of prompt p, and what the engine calls it; prompts begin alike in pairs.
		tokens := func(p, i int) []uint32 {
			if i < 2 {
				p /= 2
			}
			return text(uint64(p*length+i), blockSize)
		}
		hash := func(p, i int) client.EngineHash {
			if i < 2 {
				p /= 2
			}
			return client.EngineHashOf(fmt.Appendf(nil, "%d/%d", p, i))
		}
		ids := func(p int) (out []client.BlockID) {
			var all []uint32
			for i := range length {
				all = append(all, tokens(p, i)...)
			}
			return client.BlockIDs(nil, client.Identity{Model: "m", BlockSize: blockSize}, all)
		}
		for step := range 300 {
			p, tier := rnd.IntN(prompts), []client.Tier{client.TierDevice, client.TierHost}[rnd.IntN(2)]
			from := rnd.IntN(length)
			to := from + 1 + rnd.IntN(length-from)
			chain := ids(p)
			switch k := rnd.IntN(20); {
			case k < 12: // as engines do: from the start on
				var all []uint32
				var names []client.EngineHash
				for i := range to {
					all, names = append(all, tokens(p, i)...), append(names, hash(p, i))
				}
				if err := blocks.Store(client.EngineRoot(), names, all, client.Variant{}, tier); err != nil {
					t.Fatal(err)
				}
				if err := byID.Store(client.Root(), chain[:to], tier); err != nil {
					t.Fatal(err)
				}
			case k < 18:
				var names []client.EngineHash
				for i := from; i < to; i++ {
					names = append(names, hash(p, i))
				}
				if err := blocks.Remove(names, tier); err != nil {
					t.Fatal(err)
				}
				if err := byID.Remove(chain[from:to], tier); err != nil {
					t.Fatal(err)
				}
			case k == 18:
				if err := errors.Join(blocks.Clear(tier), byID.Clear(tier)); err != nil {
					t.Fatal(err)
				}
			case step%3 == 0:
				if err := o.Restart(); err != nil {
					t.Fatal(err)
				}
			default:
				invalidate(t, o, "hashes")
			}
			if step%5 > 0 {
				continue
			}
			flush(t, byHash)
			flush(t, byID)
			if got, want := believed(t, o, "hashes"), believed(t, o, "ids"); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("step %d: by hashes %v, by ids %v", step, got, want)
			}
		}
		if err := errors.Join(blocks.Clear(), byID.Clear()); err != nil {
			t.Fatal(err)
		}
		flush(t, byHash)
		if got := believed(t, o, "hashes"); len(got) > 0 {
			t.Errorf("cleared, and %v is there", got)
		}
	})
}

// What an engine does not say at once waits, and is reported when it is known.
func TestEngineBlocksWaitForTheirParents(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		r := newReporter(t, o, counted("w"))
		running(t, r)
		blocks, err := client.NewEngineBlocks(r, client.RepeatsCounted, 0)
		if err != nil {
			t.Fatal(err)
		}
		prompt := text(1, 3*blockSize)
		chain := client.BlockIDs(nil, client.Identity{Model: "m", BlockSize: blockSize, CacheSalt: "s"}, prompt)
		v := client.Variant{CacheSalt: "s"}
		expect := func(when string, device, host int) {
			t.Helper()
			flush(t, r)
			got := believed(t, o, "w")
			if len(got[client.TierDevice]) != device || len(got[client.TierHost]) != host {
				t.Errorf("%s: %v, want %d blocks in device memory and %d in the host's", when, got, device, host)
			}
			for _, id := range slices.Concat(got[client.TierDevice], got[client.TierHost]) {
				if !slices.Contains(chain, client.BlockID(id)) {
					t.Errorf("%s: block %x is nobody's", when, id)
				}
			}
		}
		store := func(p client.EngineParent, tokens []uint32, tier client.Tier, hashes ...client.EngineHash) {
			t.Helper()
			if err := blocks.Store(p, hashes, tokens, v, tier); err != nil {
				t.Error(err)
			}
		}
		store(client.AfterEngine(1), prompt[blockSize:], client.TierDevice, 2, 3)
		store(client.EngineParent{}, nil, client.TierHost, 1, 3) // nobody has said what they are
		expect("without a parent", 0, 0)
		store(client.EngineRoot(), prompt[:blockSize], client.TierDevice, 1)
		expect("with it", 3, 2)
		store(client.EngineRoot(), prompt[:blockSize], client.TierDevice, 1) // a copy
		if err := blocks.Remove([]client.EngineHash{1, 77}, client.TierDevice); err != nil {
			t.Error(err)
		}
		expect("one of two copies gone", 3, 2)
		if n := r.Stats().UnknownRemovals; n != 1 {
			t.Errorf("%d unknown removals, want 1", n)
		}
	})
}

func TestEngineBlocksRefuse(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		set, r := newReporter(t, o, worker("set")), newReporter(t, o, counted("w"))
		for name, err := range map[string]error{
			"a reporter of sets": second(client.NewEngineBlocks(set, client.RepeatsSet, 0)),
			"no repeats":         second(client.NewEngineBlocks(r, 0, 0)),
			"less than nothing":  second(client.NewEngineBlocks(r, client.RepeatsSet, -1)),
		} {
			if !errors.Is(err, client.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		blocks, err := client.NewEngineBlocks(r, client.RepeatsSet, 4)
		if err != nil {
			t.Fatal(err)
		}
		a, b := text(1, blockSize), text(2, blockSize)
		v, one := client.Variant{}, []client.EngineHash{1}
		if err := blocks.Store(client.EngineRoot(), one, a, v, client.TierDevice); err != nil {
			t.Fatal(err)
		}
		item := client.MultimodalItem{TokenCount: 1, Digest: make([]byte, 3)}
		for name, x := range map[string]struct {
			err  error
			kind error
		}{
			"no parent":     {blocks.Store(client.EngineParent{}, one, a, v, client.TierDevice), client.ErrInvalid},
			"odd tokens":    {blocks.Store(client.EngineRoot(), one, a[1:], v, client.TierDevice), client.ErrInvalid},
			"a bad item":    {blocks.Store(client.EngineRoot(), one, a, v, client.TierDevice, item), client.ErrInvalid},
			"no tier":       {blocks.Store(client.EngineRoot(), one, a, v, 99), client.ErrInvalid},
			"no tier there": {blocks.Remove(one, 99), client.ErrInvalid},
			"none to clear": {blocks.Clear(client.TierDevice, 99), client.ErrInvalid},
			"other tokens":  {blocks.Store(client.EngineRoot(), one, b, v, client.TierDevice), client.ErrHashConflict},
			"its own child": {blocks.Store(client.AfterEngine(5), []client.EngineHash{5}, b, v, client.TierDevice), client.ErrHashConflict},
			"too many": {
				blocks.Store(client.EngineRoot(), []client.EngineHash{6, 7, 8, 9}, text(3, 4*blockSize), v, client.TierDevice), client.ErrTooManyHashes,
			},
		} {
			if !errors.Is(x.err, x.kind) {
				t.Errorf("%s: %v, want %v", name, x.err, x.kind)
			}
		}
		if held := r.Stats().Held[client.TierDevice]; held != 1 {
			t.Errorf("%d blocks are held, want 1", held)
		}
	})
}

func second[T any](_ T, err error) error { return err }
