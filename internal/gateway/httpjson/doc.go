// Package httpjson is the door for gateways that speak HTTP and JSON but not gRPC: NGINX, HAProxy, scripts, browsers of
// an operator. It is a translation and nothing else: each call becomes the message of the gRPC method that paths.Paths
// names, goes through the same interceptors to the same handler (see Caller), and the answer comes back as protojson
// writes it, with proto field names. What is refused is refused by the same code with the same google.rpc.Status, whose
// HTTP status follows from its code by google.rpc's own table.
//
// Arrays of numbers are most of a question, and protojson takes some hundred nanoseconds for each number. So the
// array of token ids or block hashes is lifted out of the text first and goes into the message as it lies on the wire;
// protojson reads the rest. The invariant, held by FuzzLift:
//
//	lift(text) gives an array  =>  protojson(text with [] in its place) + array  =  protojson(text)
//
// and where lift is not sure it gives nothing. Besides numbers, an array may be a string: base64 of the little-endian
// integers, as they lie in memory.
//
// Bounds: a body is at most Config.MaxBody bytes, all bodies that are held at one moment are at most Config.MaxHeld;
// more is refused with RESOURCE_EXHAUSTED and counted. Buffers are pooled up to mostKept bytes each.
//
// A Door may be used concurrently. It owns no goroutine. It never logs, and an error names a field and never a prompt.
//
// The door keeps browsers of strangers out: a request that a page of another origin makes a browser send is refused.
package httpjson
