// Package journal is a NATS server with JetStream within this process, for a service of one that keeps what it acknowledges.
//
// A replica writes each report into a log in JetStream before it acknowledges it. Where there is one replica and no NATS, the
// log is here: the same server, of the same code, that nobody else can reach.
//
// Invariants:
//   - it listens nowhere: no port, no socket, no cluster, no monitoring; InProcessConn is the only way in;
//   - what it has acknowledged was written to the file (by write, not only to a buffer), so it outlives the process however that
//     ends. It outlives the machine from Config.SyncEvery on, or when the system writes it, if that is sooner;
//   - its files are bounded by Config.MaxBytes and what NATS keeps beside a stream;
//   - after a write that failed, as on a full disk, it is there again by itself when there is room, with all it had acknowledged;
//     until then it acknowledges nothing.
//
// Concurrency: Start and Close by one goroutine; InProcessConn, once it is started, by any.
//
// Cost: 8 MB of memory, 0.25 s more until the process is ready, and 10 of the program's 38 MB (stripped, amd64).
package journal
