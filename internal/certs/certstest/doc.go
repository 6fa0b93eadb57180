// Package certstest makes certificates for tests that speak real TLS: an authority in memory, and files signed by it. For
// tests only.
package certstest
