// Package client talks to a kvoracle: from a gateway, which asks where its requests should go, and from a worker, which
// tells what its KV cache holds. Both halves take a gRPC connection of the caller's, have a Run that owns all their
// goroutines, and cope with an oracle that is late, gone or restarted without the caller's help.
//
// # Gateways
//
// A Router answers Route within a deadline, always: by the oracle's decision or, when that does not come, by its own. The
// gateway then tells how the request goes on.
//
//	router := client.NewRouter(conn, client.WithGatewayID("gw-1"))
//	go router.Run(ctx)
//	d, err := router.Route(ctx, client.Request{Model: "llama-3", Tokens: tokens})
//	// send the request to d.Address, then
//	router.Dispatched(d)
//	router.FirstToken(d, ttft)
//	router.Finished(d, outputTokens, cachedTokens)
//
// # Workers
//
// A Reporter keeps a mirror of one rank's blocks and keeps the oracle's picture equal to it. Block ids are computed at
// this edge (StoreTokens, BlockIDs), so that an id means the same in every process.
//
//	reporter, err := client.NewReporter(conn, client.Worker{ID: "w-0", Model: "llama-3", BlockSize: 16, Repeats: client.RepeatsSet})
//	go reporter.Run(ctx)
//	ids, err := reporter.StoreTokens(client.Root(), tokens, client.Variant{}, client.TierDevice)
//	err = reporter.Remove(ids[3:], client.TierDevice)
//	reporter.Load(client.LoadSample{Running: new(12)})
//
// Who knows blocks by an engine's own hashes reports them by an EngineBlocks, which keeps what each hash stands for.
//
// # What happens when
//
//	the oracle is late         Route waits for the timeout (20 ms), then decides by itself: Decision.Source is
//	                           SourceFallback. After five failures in a row it does not wait at all, and one request
//	                           in a while tries again. What a single call booked late lives at the oracle until its
//	                           lease ends; what a stream booked late is cancelled.
//	the oracle is gone         The same, without the wait. The fallback knows the last fleet list and its own bookings.
//	                           Progress events wait in a bounded queue, changes of blocks in a bounded outbox; when the
//	                           outbox is full it is given up for one snapshot later.
//	the oracle is busy         RESOURCE_EXHAUSTED: the fallback decides, for as long as the oracle asked to be left alone.
//	the fleet is full          A request that may wait for a place (Request.MaxQueue) waits at the oracle; ErrFleetFull, when it
//	                           found none. Others are told ErrNoEligibleWorker at once.
//	the oracle has restarted   Reporters come back within seconds with a snapshot each. Until then it knows no workers;
//	                           Route answers a model that the last list had by the fallback (ReasonOracleAmnesia), for
//	                           half a minute at most.
//	the oracle says goodbye    Streams finish what is under way and come back when they were told to.
//	the connection is cut      Batches that were not acknowledged are sent again, from where the oracle says.
//	the oracle lost something  A digest tells, of blocks and, with RepeatsCounted, of their copies, and a snapshot follows.
//	a bridge lost something    Reporter.Doubt: the rank is STALE, its reports are applied all the same, until it says otherwise.
//	a worker has restarted     Its Reporter's higher incarnation replaces everything its former life said. The former
//	                           one's Reporter, if it still runs, is refused for good: its Run returns ErrMismatch.
//	two Reporters of one rank  They take the stream from each other, ever more slowly. Give each rank one.
//
// # Invariants
//
//   - Reporter: at any moment, what the oracle applied up to sequence n, then every batch above n, gives the mirror; or a
//     snapshot is needed and nothing else is sent before it. Each cause of a snapshot is answered by one snapshot.
//   - Router: a decision counts once in the local bookings, from Route to its last step or its lease.
//
// # Concurrency
//
// Every method of Router and Reporter may be called from any number of goroutines. None but Route, Flush and Run waits
// for the network. Values returned are the caller's, but for what their comments say not to change. Locks are leaves,
// each held for one small step: Reporter.mu (mirror and outbox), and one each in the fleet list, the bookings, the
// breaker, the progress queue and a lane. No lock is held while a message is sent or a line is logged.
//
// # Cost
//
// Route and the end of a request add about 5 us to the call; a fallback decision takes about 0.1 us for each target of the
// model. A reporter's mirror takes some 50 bytes a block, a snapshot 100 more for each block while it is sent, and 0.4 us;
// Store costs a map access a block. (go test -bench . ./client)
package client
