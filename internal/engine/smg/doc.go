// Package smg asks the gRPC servicers that SMG (Shepherd Model Gateway) puts beside engines: what the engine is, how busy it is,
// and the stream of its KV events. The services and numbers of fields are those of the PyPI package smg-grpc-proto 0.4.28:
//
//	engine         service                                 SubscribeKvEvents   GetLoads   GetServerInfo, GetModelInfo
//	vLLM           vllm.grpc.engine.VllmEngine             yes                 yes        model, block size, ranks, batch size
//	SGLang         sglang.grpc.scheduler.SglangScheduler   yes                 yes        the same, and when it began
//	TensorRT-LLM   trtllm.TrtllmService                    yes                 no         model
//
// Only the fields that are needed are read, by hand: the definitions are another project's, and would be a package of ours
// that we must not change.
//
// # What a stream promises
//
// A batch has a number of its rank and the rank, and one stream has every rank's. There are two kinds of servicers behind it:
//
//   - in Python (smg-grpc-servicer): it keeps nothing, so a stream begins with what comes next. It ends with DATA_LOSS when a
//     number is missing and the engine's replay does not have it, or when the engine has begun anew.
//   - in Rust: it keeps the last batches and what the engine holds. A stream begins with all batches there ever were, or with a
//     snapshot (kvevents.StreamHead.IsSnapshot).
//
// Resuming after a given number is not asked for: the first kind refuses it, and the second gives as much without.
//
// Any batch may have a load record, and while nothing happens there are batches that have nothing else.
//
// # What it takes
//
// A message has at most MaxMessage bytes; what is not read yet waits on the servicer's side. A Source may be used
// concurrently. Subscribe owns no goroutine.
package smg
