package oracle

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Record is what a replay needs of one request that has finished. There are no tokens in it.
type Record struct {
	Decided      time.Time
	Finished     time.Time
	PromptTokens int
	OutputTokens int
	BlockSize    int
	// Blocks are the ids of the prompt's full blocks, scrambled with the recording's salt: equal ones are equal prompts up
	// to there, within the recording, and nothing can be told from them outside of it.
	Blocks  []uint64
	Session uint64  // scrambled; 0: none
	Cached  int     // tokens the engine took from its cache; negative: not told
	TTFT    float64 // seconds; 0: not told
	Worker  string
	Model   string
}

const (
	// MaxRecordings is how many can be under way at once.
	MaxRecordings = 4
	// recordsWaiting is how many finished requests wait for a reader.
	recordsWaiting = 4096
	// recordedBlocks bounds the block ids of requests that a recording waits for the ends of, 8 bytes each.
	recordedBlocks = 4 << 20
	// recordMost is how long a recording waits for a request's end.
	recordMost = 30 * time.Minute
)

// recordings are those under way. mu is a leaf lock.
type recordings struct {
	any atomic.Bool // read without mu on every decision
	mu  sync.Mutex
	all []*Recording
}

// Recording is one reader's view of the requests routed since it began.
//
// Invariant: blocks == sum of len(Blocks) over living, at most recordedBlocks.
type Recording struct {
	o      *Oracle
	model  string
	key    cipher.Block
	out    chan Record
	lost   atomic.Uint64
	living map[DecisionID]*Record
	queue  []DecisionID // of living, and of some that are gone, oldest first
	blocks int
}

// StartRecording begins one, of a model or, if that is empty, of all. It must be stopped.
func (o *Oracle) StartRecording(model string) (*Recording, error) {
	var salt [16]byte
	_, _ = rand.Read(salt[:]) // never fails: crypto/rand crashes the process instead
	key, err := aes.NewCipher(salt[:])
	if err != nil {
		return nil, Fault(Internal, ReasonInternal, "", "", err.Error())
	}
	r := &Recording{
		o: o, model: model, key: key,
		out: make(chan Record, recordsWaiting), living: make(map[DecisionID]*Record),
	}
	o.recordings.mu.Lock()
	defer o.recordings.mu.Unlock()
	if len(o.recordings.all) >= MaxRecordings {
		return nil, Fault(Exhausted, ReasonRecordingsFull, "", "", "as many recordings are under way as the oracle allows")
	}
	o.recordings.all = append(o.recordings.all, r)
	o.recordings.any.Store(true)
	return r, nil
}

// Stop ends the recording and gives its memory back. What waits can still be read.
func (r *Recording) Stop() {
	all := &r.o.recordings
	all.mu.Lock()
	defer all.mu.Unlock()
	for i, x := range all.all {
		if x == r {
			all.all = append(all.all[:i], all.all[i+1:]...)
			break
		}
	}
	all.any.Store(len(all.all) > 0)
	r.living, r.queue = nil, nil
}

// Records delivers what has finished.
func (r *Recording) Records() <-chan Record { return r.out }

// Lost is how many requests were lost so far: their reader or the recording itself was full, or nobody told of their end.
func (r *Recording) Lost() uint64 { return r.lost.Load() }

// The two kinds of numbers that are scrambled.
const (
	blockNumbers = iota
	sessionNumbers
)

// scramble hides a number: the half of its encryption under a key that nobody knows. Who knows what some ids stand for
// learns nothing about the others, and two recordings have nothing in common. Never 0.
func (r *Recording) scramble(kind, number uint64) uint64 {
	var b [aes.BlockSize]byte
	binary.LittleEndian.PutUint64(b[:8], number)
	binary.LittleEndian.PutUint64(b[8:], kind)
	r.key.Encrypt(b[:], b[:])
	return max(binary.LittleEndian.Uint64(b[:8]), 1)
}

// begin notes a booked decision in every recording.
func (s *recordings) begin(a *Answer, session string, size int, chain []block.ID) {
	if !s.any.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		if r.model != "" && r.model != a.Model {
			continue
		}
		r.forget(a.DecidedAt)
		r.tidy()
		if r.blocks+len(chain) > recordedBlocks {
			r.lost.Add(1)
			continue
		}
		x := &Record{
			Decided: a.DecidedAt, PromptTokens: a.PromptTokens, BlockSize: size, Blocks: make([]uint64, len(chain)), Cached: -1,
			Worker: a.Target.Worker, Model: a.Model,
		}
		for i, id := range chain {
			x.Blocks[i] = r.scramble(blockNumbers, uint64(id))
		}
		if session != "" {
			x.Session = r.scramble(sessionNumbers, uint64(block.Identity{CacheSalt: session}.Keyspace()))
		}
		r.living[a.Decision], r.blocks = x, r.blocks+len(chain)
		r.queue = append(r.queue, a.Decision)
	}
}

// forget gives up on requests of which nobody has told the end, and tidies the queue.
func (r *Recording) forget(now time.Time) {
	for len(r.queue) > 0 {
		x := r.living[r.queue[0]]
		if x != nil {
			if now.Sub(x.Decided) < recordMost {
				return
			}
			r.drop(r.queue[0])
			r.lost.Add(1)
		}
		r.queue = r.queue[1:]
	}
}

// tidy drops ended requests from the queue when they are the greater part.
func (r *Recording) tidy() {
	if len(r.queue) < 2*len(r.living)+1024 {
		return
	}
	r.queue = slices.DeleteFunc(r.queue, func(id DecisionID) bool { return r.living[id] == nil })
}

// drop lets go of a request.
func (r *Recording) drop(id DecisionID) {
	if x := r.living[id]; x != nil {
		r.blocks -= len(x.Blocks)
		delete(r.living, id)
	}
}

// step notes what became of a request, once it is applied.
func (s *recordings) step(e *Event, ttft float64, now time.Time) {
	if !s.any.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		x := r.living[e.Decision]
		if x == nil {
			continue
		}
		switch e.Step {
		case Dispatched, Generating:
		case FirstToken:
			x.TTFT = ttft
		case Cancelled, Failed:
			r.drop(e.Decision) // it never was the work it looked like
		case Finished:
			x.Finished, x.OutputTokens, x.Cached = now, e.OutputTokens, e.Cached
			r.drop(e.Decision)
			select {
			case r.out <- *x:
			default:
				r.lost.Add(1)
			}
		}
	}
}
