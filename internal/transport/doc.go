// Package transport is how gRPC's bytes become questions and answers become gRPC's bytes.
//
// Codec is a "proto" codec for the server: a *Question is read where it was received, a *wire.Report from there, an
// *oracle.Answer, *StreamAnswer or *oracle.Ack is written without making a message, and every other message goes through
// protobuf-go. Pool is where the buffers come from.
//
// Ownership: gRPC frees the buffers of a message when the codec returns, so a Question takes a reference of its own and
// gives it back in Free. Whoever called gRPC to fill a Question frees it, after the last use of what
// Question.Request gave (the oracle keeps nothing of a prompt), exactly once for each time it was filled; a Question that
// is filled again frees what it held. A buffer goes back to the Pool with its last reference, and is overwritten by the
// next message.
//
// Cost of a question: nothing a token but a reference to its buffer. Cost of an answer: one buffer of the pool, one
// allocation.
package transport
