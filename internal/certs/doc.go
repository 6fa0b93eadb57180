// Package certs keeps a TLS certificate, its key and the authorities that peers are checked against as the files say them
// now, so that certificates are rotated without a restart.
//
// There is no watcher: whoever owns a Source calls Reload now and then. That reads the files (a few KiB) and compares them
// with what was read last, so it notices every change, a renamed directory or a swapped symbolic link like an edit, on
// every file system.
//
// # Invariants
//
//	state = what the newest complete, valid set of files said
//
// A set that cannot be used (a file is missing or damaged, the key is not the certificate's, the certificate has run out)
// changes nothing and is an error once; so is the moment in which one of two files has been replaced. A handshake sees one
// state whole. Connections that exist are not touched: what they proved when they began holds until they end.
//
// # Rules of the handshakes
//
// TLS 1.3 at least, unless 1.2 is asked for. A server resumes no sessions: a resumed one would not be checked against the
// authorities of today, and connections live long.
//
// # Concurrency and cost
//
// All methods may be called concurrently. A handshake reads one atomic pointer; Reload holds a mutex of its own while it
// reads files. Files above 1 MiB are refused.
package certs
