// Package enginetest is an engine for tests and measurements: a prefix cache as vLLM's, without a model. It publishes KV
// events over real sockets as vLLM does, in either layout, keeps the last ones for replay, and serves the documents that a
// bridge asks for. It can lose messages, crash and come back, and says at any time what it truly holds.
//
// # What it does as vLLM
//
//   - Blocks are physical: one hash may have several copies, each stored and removed by an event of its own.
//   - A free block that is reused is evicted: least recently used first, a request's tail before its head.
//   - One batch per step that changed anything; a reset is told with the next step.
//   - Numbers begin at 0 with each life, hashes are another life's own, and one block is a placeholder that is never used.
//
// # The others
//
// Family makes it write and serve as SGLang or TensorRT-LLM do, and Servicer puts one of SMG's gRPC servicers beside it.
//
// Invariant: the copies of a hash in Held = stores less removals of it published since the last reset that was published, once
// all batches have come.
//
// An Engine's methods may be called from one goroutine; its servers have their own, and all have ended when Close returns.
package enginetest
