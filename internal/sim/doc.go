// Package sim replays traces of requests on simulated engines, so that routing can be tried without accelerators: in
// virtual time within a second, or paced against the wall clock by a caller who chooses over a socket.
//
// It has four parts. ReadTrace reads public traces and gives each request the tokens of its prompt. A Fleet is a set
// of engines with one virtual clock that only its caller moves; engines make the reports a real worker makes (Sink) and
// tell the life of each request (Observer). Choosers decide: a Router asks a policy and keeps the books for it that a
// router can keep, Informed looks into the engines and is the reference. Run joins them and measures (Result), in an
// open loop at the trace's times, or in a closed one of users who wait for their answers.
//
// # The engine
//
// Continuous batching with chunked prefill, as vLLM does it. Work is cut into iterations. In each, every decoding
// sequence gives one token, and the rest of the token budget (Model.ChunkTokens) goes to prefills, first come first
// served, in chunks. A request's first token leaves with the iteration that ends its prefill. One iteration takes
//
//	max(IterationBase, IterationFixed + PrefillPerToken*(prefill tokens + decoding sequences))
//	  + PrefillPerTokenContext * sum over prefill tokens of the tokens each attends to
//	  + DecodePerKVToken       * KV tokens of the decoding sequences
//
// The first line is the linear layers: streaming the weights, or computing once there is enough to compute. The others
// are attention, which prefill pays in arithmetic and decode in memory bandwidth.
//
// KV memory is C = KVTokens/BlockSize blocks. A block of the prompt enters the prefix cache when its last token is
// computed. Sequences hold references to the blocks they use; a block nobody references stays until memory is needed and
// then leaves, least recently released first. A request is admitted when memory for its prompt and its whole output can
// be had, head of the queue first. It takes over the leading blocks the cache holds at that moment, but never more than
// block.Usable: the last prompt token is always computed. If another sequence has completed the same block meanwhile,
// the copy is given back and the block is shared.
//
// # Invariants
//
// At every moment, for every engine:
//
//	cached blocks + private blocks           <= C
//	references of a block                    >= references of each block that follows it
//	blocks told as Stored, less Removed      == cached blocks
//	0 <= Job.Cached <= block.Usable(Input, BlockSize)*BlockSize < Input
//
// The second one makes eviction take tails before heads: a release puts a sequence's blocks back last block first, and
// a head is always referenced at least as long as what follows it. So the cache never has a hole, and Removed never
// names a block whose child is still held. When all requests have finished no block is private or referenced.
//
// Engines may be faster or slower than the Model, and a Fleet may change while it serves: Options.Speeds and Changes.
//
// # What is left out
//
// Preemption (output is reserved at admission, with the true length, which no engine knows); output as reusable cache
// (traces do not say which blocks it becomes); lower tiers and transfers; speculative decoding; prefill and decode on
// separate engines; network and tokenizer time; failures that are noticed late. A trace's last, unfinished block is reused
// only with itself. In an open loop a slow fleet is not asked less often. Costs are a model, see Model8B: ratios between
// choosers say more than seconds.
//
// # Ownership
//
// A Fleet belongs to one goroutine, and calls its Sinks and Observer synchronously from it. They must not call the
// Fleet back, except for its read-only methods. A Trace and its Requests may be used by any number of goroutines and
// fleets at a time. Nothing here reads a clock or unseeded randomness: the same calls give the same results.
//
// Cost: a request costs about one map operation per block of its prompt at admission and one per new block, and one
// more in a Router's books; an event costs O(engines). A Router takes some 5 bytes per engine and block of the trace.
package sim
