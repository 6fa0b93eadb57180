package client

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

func TestBlocksAreRefusedByName(t *testing.T) {
	r := newTestReporter(t, nil)
	mustStore(t, r, 1, 2)
	before := r.Stats()
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"no parent":      {r.Store(Parent{}, []BlockID{5}, TierDevice), ErrInvalid},
		"no such tier":   {r.Store(Root(), []BlockID{5}, 9), ErrInvalid},
		"own parent":     {r.Store(After(5), []BlockID{5}, TierDevice), ErrParentConflict},
		"other parent":   {r.Store(Root(), []BlockID{5, 2}, TierHost), ErrParentConflict},
		"remove tier":    {r.Remove([]BlockID{1}, 9), ErrInvalid},
		"clear tier":     {r.Clear(TierDevice, -1), ErrInvalid},
		"partial blocks": {second(r.StoreTokens(Root(), []uint32{1, 2, 3}, Variant{}, TierDevice)), ErrInvalid},
		"tokens nowhere": {second(r.StoreTokens(Parent{}, []uint32{1, 2, 3, 4}, Variant{}, TierDevice)), ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if err := r.Store(Root(), nil, TierDevice); err != nil {
		t.Errorf("an empty chain: %v", err)
	}
	if d := cmp.Diff(before, r.Stats()); d != "" {
		t.Errorf("something changed:\n%s", d)
	}
	if err := r.Remove([]BlockID{1, 1, 7}, TierDevice); err != nil || r.Stats().UnknownRemovals != 2 {
		t.Errorf("%v, %d unknown removals", err, r.Stats().UnknownRemovals)
	}
}

func second[A, B any](_ A, b B) B { return b }

func TestRepeatedStoresCostNothing(t *testing.T) {
	r := newTestReporter(t, nil)
	mustStore(t, r, 1, 2, 3)
	before := r.Stats().OutboxBytes
	mustStore(t, r, 1, 2, 3)
	if err := r.Remove([]BlockID{9}, TierDevice); err != nil {
		t.Fatal(err)
	}
	if err := r.Clear(TierDisk); err != nil {
		t.Fatal(err)
	}
	if n := r.Stats().OutboxBytes; n != before {
		t.Errorf("the outbox grew from %d to %d bytes by nothing", before, n)
	}
}

func TestStoreTokensHashesAsTheOracleDoes(t *testing.T) {
	w := testWorker()
	r, err := NewReporter(nil, w, WithSecret("s"))
	if err != nil {
		t.Fatal(err)
	}
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	ids, err := r.StoreTokens(Root(), tokens, Variant{LoRA: LoRA{"l", "1"}, CacheSalt: "c"}, TierHost)
	if err != nil {
		t.Fatal(err)
	}
	want := block.AppendTokenChain(nil, block.Identity{
		Model: "m", BlockSize: 4, LoRAName: "l", LoRARevision: "1", CacheSalt: "c", Secret: "s",
	}.Keyspace(), tokens, 4)
	if d := cmp.Diff(want, ids); d != "" {
		t.Error(d)
	}
	more, err := r.StoreTokens(After(ids[1]), []uint32{9, 10, 11, 12}, Variant{}, TierDevice)
	if err != nil || more[0] != ids[1].Child(block.LocalHash([]uint32{9, 10, 11, 12})) {
		t.Errorf("%v, %v", more, err)
	}
	if d := cmp.Diff(map[Tier]uint64{TierHost: 2, TierDevice: 1}, r.Stats().Held); d != "" {
		t.Error(d)
	}
}

// TestItemsAreHashedAlike: as a whole, in parts, as hashes, and as the oracle does.
func TestItemsAreHashedAlike(t *testing.T) {
	r, err := NewReporter(nil, testWorker())
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]uint32, 16)
	image, sound := []byte("an image"), []byte("a sound of some length")
	items := []MultimodalItem{{FirstToken: 6, TokenCount: 7, Digest: image}, {FirstToken: 0, TokenCount: 3, Digest: sound}}
	locals := block.AppendLocals(nil, tokens, 4)
	block.MixItems(locals, 4, []block.Item{{First: 0, Count: 3, Digest: block.Sum(sound)}, {First: 6, Count: 7, Digest: block.Sum(image)}})
	id := block.Identity{Model: "m", BlockSize: 4}
	want := block.AppendChain(nil, id.Keyspace(), locals)
	if got := LocalHashes([]LocalHash{7}, tokens, 4, items...)[1:]; !cmp.Equal(locals, got) {
		t.Errorf("LocalHashes: %x, want %x", got, locals)
	}
	if got := BlockIDs([]BlockID{7}, id, tokens, items...)[1:]; !cmp.Equal(want, got) {
		t.Errorf("BlockIDs: %x, want %x", got, want)
	}
	first, err := r.StoreTokens(Root(), tokens[:8], Variant{}, TierDevice, items...)
	if err != nil {
		t.Fatal(err)
	}
	// The first one began two tokens before these.
	rest, err := r.StoreTokens(After(first[1]), tokens[8:], Variant{}, TierDevice, MultimodalItem{FirstToken: -2, TokenCount: 7, Digest: image})
	if err != nil || !cmp.Equal(want, append(first, rest...)) {
		t.Errorf("in parts: %x and %x, want %x; %v", first, rest, want, err)
	}
	m, bad := (&Request{Model: "m", Tokens: tokens, Multimodal: items}).proto()
	if bad != nil || len(m.GetMultimodal()) != 2 || m.GetMultimodal()[0].GetFirstToken() != 6 || m.GetMultimodal()[0].GetTokenCount() != 7 ||
		!bytes.Equal(m.GetMultimodal()[1].GetDigest(), sound) {
		t.Errorf("request: %v, %v", m, bad)
	}
	for name, err := range map[string]error{
		"short digest":   second(r.StoreTokens(Root(), tokens, Variant{}, TierDevice, MultimodalItem{TokenCount: 1, Digest: image[:7]})),
		"long digest":    second(r.StoreTokens(Root(), tokens, Variant{}, TierDevice, MultimodalItem{TokenCount: 1, Digest: make([]byte, 65)})),
		"nothing":        second(r.StoreTokens(Root(), tokens, Variant{}, TierDevice, MultimodalItem{Digest: image})),
		"with hashes":    second((&Request{Model: "m", Hashes: locals, BlockSize: 4, TokenCount: 16, Multimodal: items}).proto()),
		"before a start": second((&Request{Model: "m", Tokens: tokens, Multimodal: []MultimodalItem{{FirstToken: -1, TokenCount: 2, Digest: image}}}).proto()),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWorkerIsChecked(t *testing.T) {
	for field, change := range map[string]func(*Worker){
		"Worker.ID":         func(w *Worker) { w.ID = "" },
		"Worker.Model":      func(w *Worker) { w.Model = "" },
		"Worker.BlockSize":  func(w *Worker) { w.BlockSize = MaxBlockSize + 1 },
		"Worker.Rank":       func(w *Worker) { w.Rank = 1 },
		"Worker.Repeats":    func(w *Worker) { w.Repeats = 0 },
		"Worker.Capacities": func(w *Worker) { w.Capacities = map[Tier]uint64{9: 1} },
		"Worker":            func(w *Worker) { w.Labels = map[string]string{"\xff": ""} },
	} {
		w := testWorker()
		change(&w)
		_, err := NewReporter(nil, w)
		var e *Error
		if !errors.Is(err, ErrInvalid) || !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestHelloSaysEverything(t *testing.T) {
	var h *kvoraclev1.BlocksHello
	f := &fake{}
	f.blocks = func(s blocksServer) error {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		h = m.GetHello()
		return status.Error(codes.FailedPrecondition, "enough")
	}
	w := testWorker()
	w.Address, w.DPSize, w.Rank, w.Roles = "h:1", 4, 3, []Role{RolePrefill}
	w.Labels = map[string]string{"zone": "z"}
	w.Capacities = map[Tier]uint64{TierHost: 20, TierDevice: 10}
	w.MaxRunning, w.MaxRequests, w.PerformanceClass = 5, 6, "class"
	inBubble(t, f, func(t *testing.T, conn *grpc.ClientConn) {
		r, err := NewReporter(conn, w)
		if err != nil {
			t.Fatal(err)
		}
		w.Labels["zone"] = "changed later"
		if err := r.Run(t.Context()); !errors.Is(err, ErrMismatch) {
			t.Errorf("got %v", err)
		}
	})
	s := h.GetWorker()
	if h.GetDpRank() != 3 || h.GetIncarnation() != 7 || h.GetNextSequence() != 1 || h.GetHashScheme() != "xxh3-64/1337" ||
		h.GetRepeats() != RepeatsSet || s.GetWorkerId() != "w" || s.GetAddress() != "h:1" || s.GetModel() != "m" || s.GetBlockSize() != 4 ||
		s.GetDpSize() != 4 || len(s.GetRoles()) != 1 || s.GetLabels()["zone"] != "z" || s.GetMaxRunningRequests() != 5 ||
		s.GetMaxRequests() != 6 || s.GetPerformanceClass() != "class" || len(s.GetCapacities()) != 2 ||
		s.GetCapacities()[0].GetTier() != TierDevice || s.GetCapacities()[0].GetBlocks() != 10 {
		t.Errorf("hello %v", h)
	}
}

// The end of a doubt does not overtake the changes that ended it.
func TestDoubtEndsWithTheLastChange(t *testing.T) {
	r := newTestReporter(t, nil)
	said := func(isAll bool) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.vouch(isAll)
	}
	if said(true) {
		t.Error("in doubt from the start")
	}
	r.Doubt(true)
	if !said(false) || !said(true) {
		t.Error("a doubt is not told")
	}
	r.Doubt(false)
	if !said(false) || said(true) || said(false) {
		t.Error("want the end of a doubt with the last of what was pending, and nowhere else")
	}
}
