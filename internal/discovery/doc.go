// Package discovery keeps an oracle's fleet as some directory says it is: a file, DNS, or Kubernetes. It is a client of the
// oracle's FleetService and runs in a process of its own, so an oracle needs neither credentials of a cluster nor a resolver,
// and any number of oracles can be told by any number of agents.
//
// An Agent looks at its Source and at the oracle's fleet, and makes the second agree with the first, again and again. It keeps
// nothing that must survive it: what it has registered carries the label Label, and everything else is somebody else's.
//
//	listed, ready, not known at the oracle        registered, with Label
//	listed, known by another name at its address  left alone: it reports by itself. One of ours there is removed
//	listed and not ready, or terminating          drained, whoever registered it
//	listed and ready again                        let back in, if this agent drained it
//	not listed any more, and ours                 drained at once, removed after Config.Forget
//	not listed any more, and not ours             left alone: its reports end with it, and its lease after them
//
// A drain that an operator made is never undone. A look that fails changes nothing: a directory that is away has no opinion, so
// a name that DNS does not know is a failure and not an empty fleet.
//
// Bounds: MaxEndpoints of a look, MaxAnswer bytes of an answer. Every step is counted in Stats.
//
// An Agent's Step and Run are called by one goroutine; Stats by any.
package discovery
