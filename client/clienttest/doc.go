// Package clienttest runs a real oracle in memory, for the tests of programs that use one.
//
//	oracle := clienttest.Start(t)
//	router := client.NewRouter(oracle.Conn())
//
// It is the same server that the program kvoracle runs, behind connections that are pipes: no ports, nothing to install.
// Cut, Stop, Crash and Restart make it fail the way networks and processes do, so that a gateway's answer to that can be
// tested too. It works inside testing/synctest if everything is made inside the bubble.
//
// This is the one package beside the server's own that imports it: a program that only uses client does not link it.
//
// All methods may be called concurrently. Lock: one mutex, held over Stop, Crash and Restart, so that those follow one
// another; dialling does not wait for them.
package clienttest
