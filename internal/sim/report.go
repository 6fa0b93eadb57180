package sim

import "github.com/kvoracle/kvoracle/internal/block"

// Sink takes the reports one engine makes, at the virtual time t (seconds) they are made. Slices belong to the engine
// and are good only during the call.
//
// Blocks are told as a set: a block is stored once and removed once, and the parent of a stored block is held at that
// moment. A sink that adds Stored ids and takes Removed ids away holds exactly the engine's cache after each call.
type Sink interface {
	// Stored tells that ids are now cached: ids[0] follows parent (or starts a prompt, if isRoot), each next one the
	// one before. One call per sequence and iteration in which blocks became complete.
	Stored(t float64, parent block.ID, isRoot bool, ids []block.ID)
	// Removed tells that ids are no longer cached, tails before heads. One call per admission that needed memory.
	Removed(t float64, ids []block.ID)
	// Load tells how busy the engine is, every Options.LoadEvery.
	Load(t float64, s LoadSample)
}

// LoadSample is one look at an engine's gauges.
type LoadSample struct {
	Running              int // sequences in the batch, prefilling or decoding
	Waiting              int // requests in the queue
	WaitingPrefillTokens int // prompt tokens to be prefilled: of the running ones, and of the queue what is not cached now
	UsedBlocks           int // KV blocks that running sequences have filled or begun; what is only cached is not counted
	TotalBlocks          int // KV blocks in all
}

// Observer follows requests through their life, as a gateway sees it. Calls come in order of time.
type Observer interface {
	// FirstToken tells that the prefill is done. All full blocks of the prompt have been told to the Sink by then. Of a
	// request of a pair it tells that the engine which decodes it has taken it up.
	FirstToken(t float64, j *Job)
	// Finished tells that the last token is out. It follows FirstToken, at the same time for an output of one.
	Finished(t float64, j *Job)
}

// Job is a request on an engine. The Fleet fills it in; others only read.
type Job struct {
	Request    *Request
	Engine     int
	Arrived    float64 // when the request was submitted
	Cached     int     // prompt tokens the engine found in its cache; known from FirstToken on
	FirstToken float64 // 0: not yet
	Finished   float64 // 0: not yet

	chain     []block.ID // of the prompt's full blocks
	held      []int32    // cache slots of the leading ones this job references
	private   int        // blocks reserved and not in the cache
	computed  int        // prompt tokens present
	generated int        // output tokens at the end of the last step
	round     int        // of measurement, when it was submitted
	estimate  int        // prompt tokens it will have to compute, as Informed expects
	onward    *onward    // nil: it stays where it was submitted
	failed    []int      // engines where its request has failed before
}

// written is how many blocks hold at least one of the job's tokens when it has generated so many.
func (j *Job) written(generated, blockSize int) int { return ceilDiv(j.computed+generated, blockSize) }

// noReports is the Sink and the Observer of those who want none.
type noReports struct{}

func (noReports) Stored(float64, block.ID, bool, []block.ID) {}
func (noReports) Removed(float64, []block.ID)                {}
func (noReports) Load(float64, LoadSample)                   {}
func (noReports) FirstToken(float64, *Job)                   {}
func (noReports) Finished(float64, *Job)                     {}
