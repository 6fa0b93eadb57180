// Package access says who may do what: identities with their roles, by bearer token or by certificate, as one file lists
// them; and how much one identity may ask for.
//
// # The file
//
// YAML, at most 1 MiB and 16,384 entries; an unknown key is an error:
//
//	identities:
//	  - name: gateway-east              # for logs and limits; unique, at most 256 bytes
//	    roles: [gateway]                # of gateway, worker, operator, monitor
//	    tokens_sha256: [9f86d081...]    # hex of the SHA-256 of a bearer token; several, so that they can be rotated
//	  - name: worker-7
//	    roles: [worker]                 # may report for "worker-7", its own name
//	    tokens: [aiz4ohNgae6ieyee]      # the same in plain; at least 16 bytes each
//	  - name: bridge
//	    roles: [worker]
//	    workers: ["rack7-*"]            # instead of its own name; one * in each stands for any text
//	    certificates: [spiffe://cluster.local/ns/llm/sa/bridge]
//	  - name: pods
//	    roles: [worker]
//	    certificates: ["*.workers.llm.svc", "spiffe://cluster.local/ns/llm/sa/worker-*"]
//
// A certificate is known by its URI names, then by its DNS names, in the order in which it has them; the first that an
// entry lists is the one that counts. Its common name is nobody. One * in an entry stands for one part of the name: text
// without a dot in a DNS name, without a slash in a URI. Such an entry is an identity for each text: here "pods/worker-7" for
// worker-7.workers.llm.svc, and its own name, the worker it may report for, is "worker-7".
//
// # Invariants
//
//	a Table never changes; a new file makes a new one
//	no Table holds a token, only SHA-256 of tokens; no error or Identity tells one
//	Meters holds at most its limit of identities; those beyond it share one meter
//
// # Concurrency and cost
//
// All methods may be called concurrently. Token is one SHA-256 (of at most 512 bytes), a look into a map that no caller can
// aim at (its keys are hashes, its seed is the process's own) and a comparison in constant time; no allocation. Certificate
// goes through the patterns and is meant for once per connection. Meter.Take and Open hold a mutex of that identity.
package access
