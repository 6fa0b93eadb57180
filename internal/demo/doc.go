// Package demo shows a kvoracle at work: a live server on a loopback socket, simulated engines that report through the
// real client library, and a real trace that is routed over the socket in scaled time, once for each policy.
//
// Virtual time (the engines') is wall time times Options.Pace. Everything between the rooms is real: block reports, load
// samples, questions and progress all cross the socket, so what the oracle knows lags behind the engines by real
// latency, Pace times as long in virtual time. Only prefill and decode are simulated.
//
// A run ends with a check: every worker's picture in the oracle must equal its engine's cache.
package demo
