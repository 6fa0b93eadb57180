// Package server is the oracle as a gRPC service: transport and wiring. It is the only place where gRPC, its
// interceptors and OpenTelemetry meet the domain; everything it decides it asks internal/oracle.
//
// A Route on its way through:
//
//	gRPC -> watcher (counts refusals, logs errors and slow calls) -> parentOf (the gateway's trace) -> auth, if any
//	     -> recovery -> routeService.Route
//	          wire.DecodeRoute       limits and validation; nothing is touched before it passes
//	          oracle.Route           choose and book
//	          wire.EncodeAnswer
//	     <- toStatus                 one table from kinds of errors to gRPC codes, with details
//
// Start: New builds telemetry, oracle, health and the gRPC server, and opens nothing. Run opens the ports, then serves;
// every component of the health starts unwell and becomes well as it is. The fleet is well once Config.ExpectedWorkers
// workers have reported.
//
// Stop, when Run's context is done, in this order:
//
//  1. health says NOT_SERVING, calls are still answered;
//  2. Config.DrainDelay passes, for load balancers to notice;
//  3. long streams get a GoAway (or end, where the protocol has none) and are over within a second;
//  4. no new calls; those in flight may end, for at most Config.DrainTimeout;
//  5. what is left is cut;
//  6. the operator's port closes, the last telemetry is sent.
//
// The operator's port has pages for people, Prometheus and probes; "/" lists them. gRPC health knows "", the two
// services, "liveness", "readiness" and "fleet". A worker that checks health before it reports should ask for
// "kvoracle.v1.RouteService", which is well before the fleet is: only so can the fleet become well.
//
// Ownership: Run owns every goroutine that outlives a call, in one errgroup; when it returns, all have ended. No
// global state is set: not OpenTelemetry's providers, not the default mux, not the default logger.
//
// No prompt contents (tokens, hashes, text) go into a log line, a metric, a span or an error's text.
package server
