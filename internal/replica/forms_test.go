package replica

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// standing is what a replica knows of a target, whoever's it is.
func (p *peer) standing(k key) (oracle.Standing, bool) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	t := p.n.targets[k]
	if t == nil || t.session == nil || t.lacks {
		return oracle.Standing{}, false
	}
	st, err := t.session.Standing()
	return st, err == nil
}

func batch(seq uint64, stores ...*kvoraclev1.StoreBlocks) *kvoraclev1.ReportBlocksRequest {
	b := &kvoraclev1.BlockBatch{Sequence: seq}
	for _, s := range stores {
		b.Ops = append(b.Ops, &kvoraclev1.BlockOp{Op: &kvoraclev1.BlockOp_Store{Store: s}})
	}
	return &kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Batch{Batch: b}}
}

// Every way to report comes through to those that follow and to those that come later: copies, tiers, engine hashes, orphans,
// and messages that do not fit into one entry.
func TestForms(t *testing.T) {
	hashed := func(parent uint64, hashes ...uint64) *kvoraclev1.StoreBlocks {
		m := &kvoraclev1.StoreBlocks{
			Content:      &kvoraclev1.StoreBlocks_LocalHashes{LocalHashes: &kvoraclev1.LocalHashes{Hashes: hashes}},
			EngineHashes: &kvoraclev1.EngineHashes{Numbers: hashes},
			Parent:       &kvoraclev1.StoreBlocks_Root{Root: &kvoraclev1.Root{}},
		}
		if parent != 0 {
			m.Parent = &kvoraclev1.StoreBlocks_ParentEngineHash{ParentEngineHash: parent}
		}
		return m
	}
	inTier := func(m *kvoraclev1.StoreBlocks, tier kvoraclev1.Tier) *kvoraclev1.StoreBlocks {
		m.Tier = tier
		return m
	}
	rng := rand.New(rand.NewPCG(3, 3))
	many := func() []uint64 {
		ids := make([]uint64, 3000) // 24 KB, of which an entry takes 4
		for i := range ids {
			ids[i] = rng.Uint64() | 1
		}
		return ids
	}
	counted := func(h *kvoraclev1.BlocksHello) { h.Repeats = kvoraclev1.RepeatMeaning_REPEAT_MEANING_COUNTED }
	byHash := func(h *kvoraclev1.BlocksHello) { h.EngineHashes = true }
	set := func(*kvoraclev1.BlocksHello) {}
	for _, x := range []struct {
		name   string
		hello  func(*kvoraclev1.BlocksHello)
		stores []*kvoraclev1.StoreBlocks
	}{
		{"copies in tiers", counted, []*kvoraclev1.StoreBlocks{
			storeOf(0, 1, 2, 3), storeOf(0, 1, 2), inTier(storeOf(0, 1, 2), kvoraclev1.Tier_TIER_HOST), storeOf(0, 1),
		}},
		{"orphans", set, []*kvoraclev1.StoreBlocks{storeOf(77, 78, 79), storeOf(0, 1)}},
		{"pieces", set, []*kvoraclev1.StoreBlocks{storeOf(0, many()...), storeOf(0, many()...), storeOf(0, many()...)}},
		{"engine hashes", byHash, []*kvoraclev1.StoreBlocks{hashed(0, 11, 12), hashed(12, 13)}},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := newBroker(t)
			a, other := joinedPeer(t, b, quick("a")), joinedPeer(t, b, quick("b"))
			e := newEngine(t, "w", 1)
			m := e.hello()
			x.hello(m)
			h, err := wire.DecodeHello(m)
			if err != nil {
				t.Fatal(err)
			}
			stream := a.n.Open(t.Context(), m)
			session, _, err := a.o.OpenBlocks(h, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			stream.Begin(session)
			applier := wire.NewApplier(h, session, a.n.cfg.Seed)
			say := func(m *kvoraclev1.ReportBlocksRequest) {
				t.Helper()
				ack, receipt, err := stream.Do(m, func() (oracle.Ack, error) { return applier.Apply(m, time.Now()) })
				if err != nil || ack.Counters.RefusedOps > 0 {
					t.Fatalf("%v, %+v", err, ack.Refusals)
				}
				receipt.Wait(nil)
			}
			say(batch(1, x.stores[:1]...))
			say(batch(2, x.stores[1:]...))
			same := func(p *peer) func() bool {
				return func() bool {
					select {
					case <-session.Resyncs(): // engine hashes cannot be announced without the engine
						say(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotBegin{
							SnapshotBegin: &kvoraclev1.SnapshotBegin{Sequence: 2},
						}})
						say(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotChunk{
							SnapshotChunk: &kvoraclev1.SnapshotChunk{Stores: x.stores},
						}})
						say(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_SnapshotEnd{
							SnapshotEnd: &kvoraclev1.SnapshotEnd{},
						}})
					default:
					}
					want, err := session.Standing()
					got, ok := p.standing(key{"w", 0})
					return err == nil && ok && got == want && got.Applied == 2 && !got.IsAwaiting && got.Digests[0].Count > 1
				}
			}
			eventually(t, "the follower has it", same(other))
			late := joinedPeer(t, b, quick("c"))
			eventually(t, "who comes later has it", same(late))
			eventually(t, "the follower still has it", same(other))
			changed := *h
			changed.PrefixGroup++
			for who, p := range map[string]*peer{"the follower": other, "who came later": late} {
				var e *oracle.Error
				if _, _, err := p.o.OpenBlocks(&changed, time.Now()); !errors.As(err, &e) || e.Reason != oracle.ReasonSpecContradiction {
					t.Errorf("%s knows what the engine's groups are: %v", who, err)
				}
			}
		})
	}
}

// Whatever is in the log, a node neither panics nor grows without bounds, and goes on with what is right.
func FuzzApply(f *testing.F) {
	good := &replicav1.Entry{
		Origin: "x", Boot: 1, Session: 5, Number: 1, Worker: "w", After: &replicav1.Standing{Applied: 1, Digests: []*replicav1.TierDigest{{Count: 1}}},
		Request: marshal(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: (&engine{worker: "w", life: 1}).hello()}}),
	}
	f.Add(marshal(good), marshal(&replicav1.Entry{
		Origin: "x", Boot: 1, Session: 5, Number: 2, Worker: "w", Claim: 1, Request: marshal(batch(1, storeOf(0, 1, 2))),
		After: &replicav1.Standing{Applied: 1},
	}))
	f.Add(marshal(good), marshal(&replicav1.Entry{Origin: "x", Boot: 1, Session: 5, Number: 2, Worker: "w", Claim: 1, More: true, Request: []byte{1}}))
	f.Add(marshal(good), marshal(&replicav1.Entry{Origin: "x", Boot: 1, Session: 5, Number: 9, Worker: "w", Claim: 1, End: true}))
	f.Add([]byte{}, []byte{0xff})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		cfg := quick("me")
		cfg.URL, cfg.MaxTargets, cfg.MaxMessageBytes = "nats://127.0.0.1:1", 4, 1<<16
		n, err := New(cfg, oracle.New(oracle.Config{MaxWorkers: 8}, nil), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		for at, b := range [][]byte{first, second, first, second} {
			n.apply(b, uint64(at+1), time.Now())
		}
		if len(n.targets) > 4 || n.parts > 4*cfg.MaxMessageBytes {
			t.Errorf("%d targets, %d bytes of parts", len(n.targets), n.parts)
		}
		other := proto.CloneOf(good)
		other.Origin, other.Session, other.Worker = "y", 99, "z"
		other.Request = marshal(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: (&engine{worker: "z", life: 1}).hello()}})
		n.apply(marshal(other), 10, time.Now())
		if x := n.targets[key{"z", 0}]; x == nil || x.session == nil && x.origin == "y" {
			t.Error("what is right is not applied any more")
		}
	})
}
