// Package extproc is the oracle as an endpoint picker: Envoy's external processing protocol (ext_proc v3), as the Gateway API
// inference extension uses it (its proposal 004). Envoy sends what it has of a request, and is told which worker to send it
// to. There is a gRPC stream for each HTTP request.
//
//	candidates   metadata envoy.lb.subset_hint / x-gateway-destination-endpoint-subset, a list of "ip:port"; absent: all
//	choice       header and metadata envoy.lb / x-gateway-destination-endpoint, "ip:port[,ip:port...]": the second and
//	             further ones are for retries. And, for an observer, metadata envoy.lb / x-kvoracle-decision.
//	served by    metadata envoy.lb / x-gateway-destination-endpoint-served, with the response
//	refusals     503: no worker can take it, or none of those offered; 429: all that could are at their limit, or the
//	             oracle is; 413: the body is longer than Config.MaxBody
//
// Bodies. BUFFERED: headers are answered at once, the choice comes with the body's answer, and Envoy's own message_timeout
// bounds it all. Where headers are not sent and the body comes with attributes of them (request_attributes), Envoy waits for one
// answer and not for two. FULL_DUPLEX_STREAMED: Envoy hands the body over and bounds nothing, so headers are answered when the body is
// complete, the body goes back in the pieces it came in (none longer than 62,000 bytes) and in order, and a body that is not
// complete after Config.BodyTimeout goes on its way without a choice. In the other modes the prompt cannot be looked at in
// time, and a worker is chosen in turn.
//
// Overload. Where more is asked than can be answered, a share of the requests goes on without a choice as soon as their headers
// have come: the proxy's own policy is a better answer than 429, which is for fleets that are full.
//
// Failing open. What is not understood (no JSON, a model nobody serves, a prompt beyond the limits) is for the engine to
// judge: the request goes on without a choice, by Envoy's own fallback policy, and a header of that name that a client has
// made up is removed. Where candidates were named, and in FULL_DUPLEX_STREAMED, which is how the extension is spoken, a worker is
// chosen in turn instead, or the answer is 503: there is no fallback then. A request without a prompt (GET /v1/models) is sent to
// the workers in turn.
//
// What a request wants (its tenant, priority, goals, and how long it may wait for a place) is in its headers: see wishes.
//
// Prompts are token ids where the body has them, or where Config.Tokenize finds them in time; else text, see internal/oracle.
//
// Life of a booking: made with the choice. Told to be with the worker that served it when the response's headers come, and
// ended by the end of the stream. Where response bodies are seen too, the first of them is the first token, usage in the
// last tells what was cached, and an end before the last is a cancellation. They can be seen without standing in their way:
// by a second filter in observability_mode, whose stream names the decision. The headers of a response are no first token:
// engines send them before there is one.
//
// Shadow. A filter in observability_mode that shows requests too is a picker to whom nobody listens: a worker is chosen and booked
// when the body is complete, nothing is answered, and the booking moves to whoever has served the request, by the metadata above or
// by the attribute upstream.address of the response. So nothing waits for it.
//
// Or the end is told by Envoy's gRPC access log, where a stream's own metadata (x-kvoracle-ends-by: access-log) says that it comes
// here: then the stream may end with the choice, and the booking goes on until the log's entry for the request, which names the
// decision in its metadata, says who has really served it and how it went. Entries on the way renew it. All of these tell the same
// life, in any order:
//
//	each booking ends exactly once: with its stream and a short wait for its observer; or with its entry in the log, or when
//	nothing was heard of it for Config.LogSilence
//	lives of which the stream has ended <= Config.MaxAwaited
//	Service.dues has the lives that are not over, first the one about which something has to be done next
//
// Another filter of Envoy's, ext_authz, may ask instead, over HTTP: Service.Check. There is no stream then, and the log tells the end.
//
// Concurrency: a stream's messages are handled one at a time, by the goroutine that reads them or, for a body that is late,
// by a timer; exchange.mu keeps them apart. life.mu is taken inside it, and the oracle's locks inside that. Lives are found by
// observers in Service.lives, whose lock is a leaf.
//
// Memory of a stream: the pieces of its body, until it is answered; of a response that is seen, a usage that has begun, 4 KiB at most.
package extproc
