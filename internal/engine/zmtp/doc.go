// Package zmtp speaks ZeroMQ's wire protocol, ZMTP 3.0 and 3.1 with the NULL mechanism, without libzmq.
//
// It is what the bridge needs of ZeroMQ and no more: SUB and DEALER to read what engines publish and to ask for it again,
// PUB and ROUTER to serve a capture the way an engine would. Each of them connects ([Dial]) or binds ([Listen]), over
// tcp:// or ipc://. The protocol is ZeroMQ RFC 23 (3.0) and RFC 37 (3.1): rfc.zeromq.org.
//
// # What it does other than libzmq
//
//   - [Socket.Recv] tells of connections, too, in order with the messages: who counts sequence numbers must know that a
//     connection was cut between two of them.
//   - The peer is not trusted. Whatever it announces, no more is allocated than 4 times the bytes that have come, plus
//     160 KiB a connection, 24 bytes a frame and 64 a message; messages, frames, commands, subscriptions, queues and connections are bounded, and a peer that breaks
//     the protocol or a bound is disconnected.
//   - A reader that asks for no topics gets all; libzmq's gets none.
//   - SUB and DEALER send heartbeats by default.
//
// # Invariants
//
//	of one connection: deliveries are Connected, (message | Dropped)*, Disconnected, in the order of the wire
//	messages that came = delivered + told by Dropped + filtered + discarded by Close
//	messages and events waiting for Recv <= QueueMessages, and as many Dropped events, which are counted apart
//	memory of what waits for Recv <= QueueBytes, or one message
//	memory of a connection <= 3 MaxMessage + SendBytes (or one message) + 256 KiB
//
// A connection's number is never used again in the life of its Socket. A message's frames are the receiver's own; nothing
// else keeps them.
//
// # Ownership
//
// A Socket owns one goroutine per dialled or bound endpoint, and two per connection: one reads and delivers, one writes. All
// of them have ended when [Socket.Close] returns. Methods may be called from any goroutine at any time. Locks: the socket's
// (who is connected), the receive queue's, each connection's send queue's and its subscriptions'. They are taken one at a
// time, but for the socket's, which is held (for reading) while PUB looks at subscriptions and fills send queues.
//
// # Cost
//
// A small message costs two allocations to receive: its bytes, and the list of its frames; with the publisher's part it took
// 1.1 to 1.4 microseconds of one busy core (`make bench-zmtp`). What is larger than 64 KiB is read into the memory that is
// delivered.
package zmtp
