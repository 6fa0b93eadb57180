package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Reporter tells the oracle what one rank of a worker holds and how busy it is. It keeps a mirror of the contents (some
// 50 bytes a block), so that it can state them whole whenever the oracle needs that.
//
// All methods may be called concurrently; changes take effect in the order in which their calls got the lock, so two
// calls that must not be swapped need the caller's own order. Store, Remove, Clear and Load never wait for the network.
type Reporter struct {
	cfg         reporterConfig
	rpc         kvoraclev1.RouteServiceClient
	spec        *kvoraclev1.WorkerSpec
	rank        uint32
	incarnation uint64
	repeats     Repeats
	identity    block.Identity
	wake        chan struct{} // one token: something to send
	running     atomic.Bool
	load        loadBox

	mu      sync.Mutex
	mirror  mirror
	out     outbox
	changed chan struct{} // closed and replaced when acked moves or Run ends; nil while nobody waits
	failed  error         // why Run ended for good
	doubt   bool          // as told by Doubt
	doubted bool          // as told to the oracle last

	snapPace  backoff
	snapTaken time.Time // last snapshot
	snapNext  time.Time // none before
	digestAt  time.Time // last digests
	digestGap int       // batches since
	digestNot time.Time // none before
	batchNot  time.Time // none before, if nobody waits

	stats ReporterStats
}

// NewReporter makes a reporter over a connection, which stays the caller's. It does not touch the network. The error is
// of kind ErrInvalid and names the field of w at fault.
func NewReporter(conn grpc.ClientConnInterface, w Worker, opts ...ReporterOption) (*Reporter, error) {
	if bad := w.check(); bad != nil {
		return nil, bad
	}
	cfg := reporterConfig{
		common:         defaultCommon(),
		outboxBytes:    16 << 20,
		digestBatches:  256,
		digestInterval: 10 * time.Second,
	}
	for _, o := range opts {
		o.applyReporter(&cfg)
	}
	r := &Reporter{
		cfg:         cfg,
		rpc:         kvoraclev1.NewRouteServiceClient(conn),
		spec:        w.spec(),
		rank:        clamp32(w.Rank),
		incarnation: w.Incarnation,
		repeats:     w.Repeats,
		identity:    block.Identity{Model: w.Model, BlockSize: w.BlockSize, Secret: cfg.secret},
		wake:        make(chan struct{}, 1),
		load:        newLoadBox(),
		mirror:      newMirror(w.Repeats == RepeatsCounted),
		out:         outbox{limit: cfg.outboxBytes, next: 1},
		snapPace:    backoff{least: 100 * time.Millisecond, most: 30 * time.Second},
	}
	if r.incarnation == 0 {
		r.incarnation = processStart
	}
	return r, nil
}

// Store says that a chain of blocks lies in a tier: the first follows p, each other the one before it. An empty chain
// says nothing. Errors: ErrInvalid for a zero Parent or an unknown tier, ErrParentConflict; a store that returns an error
// has changed nothing.
func (r *Reporter) Store(p Parent, ids []BlockID, tier Tier) error {
	t, bad := checkTier(tier)
	if bad != nil {
		return bad
	}
	if p.kind == noParent {
		return invalid("parent", "want Root or After")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	changed, err := r.mirror.store(p, ids, t)
	if err != nil {
		return err
	}
	if changed {
		wire := make([]uint64, len(ids))
		for i, id := range ids {
			wire[i] = uint64(id)
		}
		r.put(changeStore, p, wire, tierAt(t))
	}
	return nil
}

// Variant is what besides the tokens decides whether cached KV may be reused. The zero value is the base model, unsalted.
type Variant struct {
	LoRA      LoRA
	CacheSalt string
}

// StoreTokens is Store for a reporter that has tokens instead of ids: it hashes them and returns the ids, which Remove
// will want. The tokens must be a whole number of blocks, else ErrInvalid. v matters only after Root: a block carries its
// variant in its id. items are those under placeholders among the tokens, in any order; positions count from the first of
// the tokens, so that of an item which began before them is negative.
func (r *Reporter) StoreTokens(p Parent, tokens []uint32, v Variant, tier Tier, items ...MultimodalItem) ([]BlockID, error) {
	size := r.identity.BlockSize
	for i := range items {
		if wrong := items[i].check(); wrong != "" {
			return nil, invalid(fmt.Sprintf("items[%d]", i), wrong)
		}
	}
	if len(tokens)%size != 0 {
		return nil, invalid("tokens", fmt.Sprintf("got %d, want a multiple of the block size %d", len(tokens), size))
	}
	var ids []BlockID
	if p.kind == rootParent {
		id := r.identity
		id.LoRAName, id.LoRARevision, id.CacheSalt = v.LoRA.Name, v.LoRA.Revision, v.CacheSalt
		ids = BlockIDs(nil, id, tokens, items...)
	} else {
		ids = BlockIDsAfter(nil, p.id, tokens, size, items...)
	}
	if err := r.Store(p, ids, tier); err != nil {
		return nil, err
	}
	return ids, nil
}

// Remove says that blocks have left a tier (with RepeatsCounted: one copy of each). Blocks that are not there are counted
// in Stats and otherwise ignored. The error is ErrInvalid for an unknown tier.
func (r *Reporter) Remove(ids []BlockID, tier Tier) error {
	t, bad := checkTier(tier)
	if bad != nil {
		return bad
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := r.mirror.remove(ids, t)
	r.stats.UnknownRemovals += uint64(len(ids) - len(gone))
	if len(gone) > 0 {
		r.put(changeRemove, Parent{}, gone, tierAt(t))
	}
	return nil
}

// Clear says that everything has gone, or everything in the given tiers. The error is ErrInvalid for an unknown tier;
// then nothing is cleared.
func (r *Reporter) Clear(tiers ...Tier) error {
	for _, tier := range tiers {
		if _, bad := checkTier(tier); bad != nil {
			return bad
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(tiers) == 0 && r.mirror.clearAll() {
		r.put(changeClear, Parent{}, nil, kvoraclev1.Tier_TIER_UNSPECIFIED)
	}
	for _, tier := range tiers {
		if t, _ := tierIndex(tier); r.mirror.clear(t) {
			r.put(changeClear, Parent{}, nil, tierAt(t))
		}
	}
	return nil
}

// Doubt says whether what is reported can be vouched for. A bridge that has missed something its engine said calls it with
// true: what it reports may not be there any more. Until it is called with false the oracle takes the rank for STALE: it goes
// on applying what is reported, and counts it by half. Clear first, then Doubt(false), where contents are given up.
func (r *Reporter) Doubt(isDoubtful bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doubt == isDoubtful {
		return
	}
	r.doubt = isDoubtful
	r.out.barrier = true // it is news, even without a change
	wake(r.wake)
}

// vouch marks what is about to be sent, and notes what it says. The doubt is over only with the last change that was told
// before its end: isAll says that it goes with this message. r is locked.
func (r *Reporter) vouch(isAll bool) (isDoubtful bool) {
	r.doubted = r.doubt || r.doubted && !isAll
	return r.doubted
}

// put records a change that the mirror has taken. r is locked.
func (r *Reporter) put(kind changeKind, p Parent, ids []uint64, tier Tier) {
	r.out.put(kind, p, ids, tier)
	wake(r.wake)
}

// Flush waits until the oracle has acknowledged everything reported before the call, by a message sent after it: so it
// returns nil only when an oracle that was alive after the call holds the whole truth of that moment. It returns ctx's
// error, or the error of a Run that has failed for good. Without a Run it waits for one.
func (r *Reporter) Flush(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.mark++
	r.out.barrier = true
	want := r.out.mark
	wake(r.wake)
	for r.out.acked < want {
		if r.failed != nil {
			return r.failed
		}
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			r.mu.Lock()
			return ctx.Err()
		case <-changed:
		}
		r.mu.Lock()
	}
	return nil
}

// announce wakes those who wait in Flush. r is locked.
func (r *Reporter) announce() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// Run keeps the report streams open and makes every reconnect and every restart of the oracle good, until ctx is done;
// then it returns nil. It returns an error for what trying again cannot cure: ErrRunning, or a hello that the oracle
// refuses for good (ErrMismatch, ErrInvalid, ErrUnserved). When it returns, all its goroutines have ended; it may then be
// called again.
func (r *Reporter) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer r.running.Store(false)
	r.setFailed(nil)
	ctx, cancel := context.WithCancel(ctx)
	known := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { r.sendLoad(ctx, known) })
	err := r.sendBlocks(ctx, sync.OnceFunc(func() { close(known) }))
	cancel()
	wg.Wait()
	r.setFailed(err)
	return err
}

func (r *Reporter) setFailed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = err
	r.announce()
}

func checkTier(t Tier) (int, *Error) {
	i, ok := tierIndex(t)
	if !ok {
		return 0, invalid("tier", "got "+t.String()+", want a known one")
	}
	return i, nil
}
