package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/client"
)

const (
	model     = "demo"
	blockSize = 16
	families  = 200 // of prompts
	prefix    = 16  // blocks that a family's prompts share
	tail      = 24  // blocks that each prompt has of its own
)

// engine is a worker's cache: prompts told piece by piece, and taken back whole, the oldest first, from their ends.
type engine struct {
	r      *client.Reporter
	rng    *rand.Rand
	piece  int
	now    []client.BlockID // the prompt being computed
	told   int              // blocks of it
	held   [][]client.BlockID
	leaves []client.BlockID // what is left of the prompt being taken back
	stored int              // blocks so far
	has    [families]bool   // of which the shared blocks are there
}

// family is the shared part of some prompts.
func familyIDs(n int) []client.BlockID {
	tokens := make([]uint32, prefix*blockSize)
	for i := range tokens {
		tokens[i] = uint32(n)<<16 | uint32(i)
	}
	return client.BlockIDs(nil, client.Identity{Model: model, BlockSize: blockSize}, tokens)
}

// step computes so many blocks that are new to the engine.
func (e *engine) step(shared [][]client.BlockID) error {
	for left := e.piece; left > 0; {
		if e.told == len(e.now) {
			e.begin(shared)
		}
		parent := client.Root()
		if e.told > 0 {
			parent = client.After(e.now[e.told-1])
		}
		n := min(left, len(e.now)-e.told)
		if err := e.r.Store(parent, e.now[e.told:e.told+n], client.TierDevice); err != nil {
			return err
		}
		e.told += n
		e.stored += n
		left -= n
	}
	return nil
}

// begin turns to the next prompt. What it shares is there already if another had it.
func (e *engine) begin(shared [][]client.BlockID) {
	if len(e.now) > 0 {
		e.held = append(e.held, e.now)
	}
	family := e.rng.IntN(families)
	e.now = append(make([]client.BlockID, 0, prefix+tail), shared[family]...)
	for range tail {
		// As good as a hash: nobody but this worker has it.
		e.now = append(e.now, client.BlockID(e.rng.Uint64()))
	}
	e.told = 0
	if e.has[family] {
		e.told = prefix
	}
	e.has[family] = true
}

// evict takes as many blocks back. What prompts share is kept, as an engine keeps what it uses.
func (e *engine) evict() error {
	for left := e.piece; left > 0; {
		if len(e.leaves) == 0 {
			if len(e.held) == 0 {
				return nil // all that is left is shared
			}
			e.leaves, e.held = e.held[0][prefix:], e.held[1:]
		}
		n := max(0, len(e.leaves)-left)
		gone := e.leaves[n:]
		e.leaves = e.leaves[:n]
		left -= len(gone)
		if err := e.r.Remove(gone, client.TierDevice); err != nil {
			return err
		}
	}
	return nil
}

// fleet is the process of the reporters. It obeys the words of its input: go, stop, count.
func fleet(s *settings) error {
	yield()
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(800) // in the world it is on other machines
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	shared := make([][]client.BlockID, families)
	for n := range shared {
		shared[n] = familyIDs(n)
	}
	piece := max(1, int(float64(s.blocks)*s.every.Seconds())/s.streams)
	engines := make([]*engine, s.streams)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for n := range engines {
		conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		r, err := client.NewReporter(conn, client.Worker{
			ID: fmt.Sprintf("worker-%04d", n), Address: fmt.Sprintf("10.0.%d.%d:8000", n/256, n%256), Model: model,
			BlockSize: blockSize, Incarnation: 1, Repeats: client.RepeatsSet,
		}, client.WithGather(s.gather))
		if err != nil {
			return err
		}
		e := &engine{r: r, rng: rand.New(rand.NewPCG(1, uint64(n))), piece: piece}
		engines[n] = e
		for e.stored < s.holds {
			if err := e.step(shared); err != nil {
				return err
			}
		}
		wg.Go(func() { _ = r.Run(ctx) })
	}
	for _, e := range engines {
		if err := e.r.Flush(ctx); err != nil {
			return err
		}
	}
	var failed atomic.Pointer[error]
	var isGoing atomic.Bool
	wg.Go(func() { drive(ctx, engines, shared, s.every, &isGoing, &failed) })
	fmt.Println("ready")
	return obey(engines, &isGoing, &failed)
}

// drive lets every engine have its turn once in a while, each at its own time.
func drive(ctx context.Context, engines []*engine, shared [][]client.BlockID, every time.Duration, isGoing *atomic.Bool, failed *atomic.Pointer[error]) {
	const slots = 50
	tick := time.NewTicker(every / slots)
	defer tick.Stop()
	begin, done, wasGoing := time.Time{}, 0, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !isGoing.Load() {
			wasGoing = false
			continue
		}
		if !wasGoing {
			begin, done, wasGoing = time.Now(), 0, true
		}
		// A late tick makes up for what was missed.
		for due := int(float64(time.Since(begin)) / float64(every) * float64(len(engines))); done < due; done++ {
			e := engines[done%len(engines)]
			err := e.step(shared)
			if err == nil {
				err = e.evict()
			}
			if err != nil {
				failed.CompareAndSwap(nil, &err)
				return
			}
		}
	}
}

// obey reads words until there are no more.
func obey(engines []*engine, isGoing *atomic.Bool, failed *atomic.Pointer[error]) error {
	words := bufio.NewScanner(os.Stdin)
	for words.Scan() {
		switch words.Text() {
		case "go":
			isGoing.Store(true)
		case "stop":
			isGoing.Store(false)
		case "count":
			if err := failed.Load(); err != nil {
				return *err
			}
			var stored uint64
			for _, e := range engines {
				st := e.r.Stats()
				if st.Resyncs > 0 || !st.Connected {
					return fmt.Errorf("a reporter is in trouble: %+v", st)
				}
				stored += st.Oracle.GetStored()
			}
			fmt.Println(stored)
		}
	}
	return words.Err()
}
