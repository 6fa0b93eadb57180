// Package direct serves HTTP/1.1 requests below one path by the goroutine that reads their connection. net/http reads on in another
// goroutine while a request is answered, and has more to wake for it: that is most of what a short answer costs it.
//
//	ours    a plain request for a path below Config.Prefix whose head has come as one piece, see head
//	other   everything else: the connection goes to net/http with what was read of it, and stays there
//
// Nothing is refused here for what its head says, and what is accepted means what net/http takes it for: whatever is doubtful is left
// to net/http to judge.
//
// An answer is written as a whole, at the handler's first flush or at its end. Nobody watches a connection while its request is
// answered, so a request's context does not end when the client leaves: this is for handlers that do not wait.
//
// Concurrency: one goroutine for each connection, which is idle or busy; Server.mu guards which, and that no connection becomes idle
// once the server is closing.
//
// Memory of a connection: 16 KiB.
package direct
