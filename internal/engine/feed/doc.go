// Package feed keeps one rank's numbered messages in order and knows how far they can be trusted: gaps, replays, reconnects
// and restarts of the engine. It opens no socket and reads no clock: what happens is told by calls, with the time.
//
// # Trust
//
//	Whole     every message since the engine began, or since it last dropped everything, was applied in order
//	Partial   every message since the feed joined was: what is held is right, and there may be more
//	Doubtful  a message was lost, or may be of another life: what is held may have gone
//
// A message that was lost costs trust because engines tell a removal once. Doubtful becomes Whole when the engine drops
// everything, or begins anew; after Config.DoubtFor the feed begins anew itself and is Partial.
//
// # What happens
//
//	the first message                  Whole if it has Config.First, else Partial; with a replay, the history comes first
//	a number is missing                with a replay: asked for, what comes live waits meanwhile. Without, or when the
//	                                   engine's ring has it no more: Doubtful, after Config.ReorderWait
//	a number comes again               dropped if the message is the same, or if it was given up before
//	a number goes back otherwise       the engine has begun anew: a new life
//	a number leaps by a billion        the same (TensorRT-LLM counts from the clock)
//	a new connection                   with a replay: the last message applied is asked for. If it comes back the same, the
//	                                   life is the same, and what was missed comes behind it; else a new life. Without: a new
//	                                   life, unless the very next number comes: that is Doubtful. Proven and Restarted tell
//	                                   what the caller knows by other means
//	nothing, soon after a connection   with a replay: asked once more whether there is anything, and again while nothing comes
//	a message that is not understood   as one that was lost
//	all is told anew (Retell)          what was held is dropped for it; if a new connection was not proven, a new life
//
// # Invariants
//
//	Handler.Apply gets rising sequences within a life; if they are not consecutive, the trust is Doubtful before the next
//	waiting messages <= Config.Messages, and their sizes <= Config.Bytes, or one message
//	at most one replay is asked for at a time
//
// The feed is used by one goroutine at a time, calls its Handler from within its methods, and owns the messages it is
// given. A message in order costs a look-up in a table and an Apply.
package feed
