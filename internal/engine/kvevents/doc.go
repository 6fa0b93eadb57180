// Package kvevents reads what inference engines publish about their KV cache: vLLM (arrays since 0.9.0, maps since 0.24.0),
// SGLang (arrays of three ages, maps since September 2026), TensorRT-LLM (JSON and the streaming form), LMCache's chunks in
// vLLM's stream, and Mooncake's master. Every form ends in one [Batch] of one kind of [Event].
//
// # Form by shape
//
// No version is asked for. Batches and events are arrays or maps, each event for itself, since one build mixed both;
// fields of an array are known by place and by the type of what is there, since SGLang and vLLM use one place
// differently. What the forms do not share is which engine it is; [Detector] concludes that from what was seen.
//
// # What is not understood
//
//	fault                                   what happens                       counted in
//	a field, or a place behind the last one   it is skipped                      Counts.UnknownFields
//	an event of a type nobody knows           it is skipped                      Counts.UnknownEvents
//	an event that has a wrong type or no tag  it is skipped, its neighbours stay Counts.BadEvents, and Counts.LostRemovals if
//	                                          it may have been a removal
//	a payload that ends early, goes on behind  no event of it is given           the error
//	its end, or passes a bound of [Limits]
//
// # Hashes
//
// A hash is the engine's own name of a block in 64 bits: integers as their two's complement, bytes as the last eight of
// them in big-endian order, which is what vLLM itself makes of its digests when it sends integers. So the two forms of one
// vLLM agree. Hashes of two engines, or of two lives of one, have nothing to do with each other.
//
// # Invariants
//
//	memory of a Batch after a payload of n bytes <= 64 n + 4 KiB, or what it had before
//	nothing is read behind the payload, and no recursion is as deep as the input
//	what a Batch holds is valid until the next Decode into it; its texts are parts of the payload, valid as long as that
//
// # Concurrency and cost
//
// A Batch is used by one goroutine at a time. Decoding allocates nothing once its memory has grown to the size of what
// comes: token ids go straight into reused memory, texts are not copied. go test -bench . has the cost per event and block.
package kvevents
