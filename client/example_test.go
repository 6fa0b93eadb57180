package client_test

import (
	"context"
	"fmt"
	"time"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/client/clienttest"
)

// A gateway asks, sends the request where it was told, and says how it went.
func ExampleRouter() {
	oracle, err := clienttest.New() // in a program: grpc.NewClient
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = oracle.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	prompt := []uint32{11, 12, 13, 14, 21, 22, 23, 24, 31}
	if err := serve(ctx, oracle, prompt[:8]); err != nil {
		fmt.Println(err)
		return
	}

	router := client.NewRouter(oracle.Conn(), client.WithGatewayID("gw-1"), client.WithTimeout(10*time.Second)) // a busy machine must not change the output
	go func() { _ = router.Run(ctx) }()

	d, err := router.Route(ctx, client.Request{ID: "req-1", Model: "llama-3", Tokens: prompt})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("worker: ", d.Worker, "at", d.Address)
	fmt.Println("decided:", d.Source, "because", d.Reason)
	fmt.Println("matched:", d.Matched.Total(), "of", d.PromptTokens, "tokens")

	router.Dispatched(d)
	router.FirstToken(d, 40*time.Millisecond)
	router.Finished(d, 120, 8) // the engine says it found 8 tokens in its cache
	fmt.Println("flushed:", router.Flush(ctx))

	// The oracle dies; requests do not.
	_ = oracle.Crash()
	d, err = router.Route(ctx, client.Request{Model: "llama-3", Tokens: prompt})
	fmt.Println("worker: ", d.Worker, err)
	fmt.Println("decided:", d.Source, "because", d.Reason)
	// Output:
	// worker:  w-0 at 10.0.0.5:8000
	// decided: oracle because only_candidate
	// matched: 8 of 9 tokens
	// flushed: <nil>
	// worker:  w-0 <nil>
	// decided: fallback because oracle_gone
}

// A worker tells what it holds; the oracle knows it as soon as Flush returns.
func ExampleReporter() {
	oracle, err := clienttest.New() // in a program: grpc.NewClient
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = oracle.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	reporter, err := client.NewReporter(oracle.Conn(), client.Worker{
		ID:        "w-0",
		Address:   "10.0.0.5:8000",
		Model:     "llama-3",
		BlockSize: 4,
		Repeats:   client.RepeatsSet,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() { _ = reporter.Run(ctx) }()

	// A prompt of three blocks was computed; its last block has left the device since, and another has come.
	prompt := []uint32{11, 12, 13, 14, 21, 22, 23, 24, 31, 32, 33, 34}
	ids, err := reporter.StoreTokens(client.Root(), prompt, client.Variant{}, client.TierDevice)
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = reporter.Remove(ids[2:], client.TierDevice)
	_, _ = reporter.StoreTokens(client.After(ids[1]), []uint32{41, 42, 43, 44}, client.Variant{}, client.TierDevice)
	reporter.Load(client.LoadSample{Running: new(3), Waiting: new(0)})
	fmt.Println("flushed:", reporter.Flush(ctx))

	router := client.NewRouter(oracle.Conn(), client.WithTimeout(10*time.Second)) // a busy machine must not change the output
	for _, next := range []uint32{31, 41} {
		d, err := router.Route(ctx, client.Request{
			Model:  "llama-3",
			Tokens: append(prompt[:8:8], next, next+1, next+2, next+3, 5),
			DryRun: true,
		})
		fmt.Println(d.Worker, "holds", d.Matched.Device, "tokens", err)
	}

	// The oracle restarts with nothing in its memory.
	_ = oracle.Restart()
	fmt.Println("flushed:", reporter.Flush(ctx), "snapshots:", reporter.Stats().Snapshots)
	// Output:
	// flushed: <nil>
	// w-0 holds 8 tokens <nil>
	// w-0 holds 12 tokens <nil>
	// flushed: <nil> snapshots: 1
}

// serve starts a worker that holds a prompt, and returns when the oracle knows it.
func serve(ctx context.Context, oracle *clienttest.Oracle, prompt []uint32) error {
	reporter, err := client.NewReporter(oracle.Conn(), client.Worker{
		ID: "w-0", Address: "10.0.0.5:8000", Model: "llama-3", BlockSize: 4, Repeats: client.RepeatsSet,
	})
	if err != nil {
		return err
	}
	go func() { _ = reporter.Run(ctx) }()
	if _, err := reporter.StoreTokens(client.Root(), prompt, client.Variant{}, client.TierDevice); err != nil {
		return err
	}
	return reporter.Flush(ctx)
}
