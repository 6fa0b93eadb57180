// Command worker shows how a worker (or a bridge beside an engine) tells kvoracle what its KV cache holds and how busy it
// is. It holds one prompt of eight tokens and stays until it is interrupted.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	server := os.Getenv("KVORACLE_SERVER")
	if server == "" {
		server = "127.0.0.1:7070"
	}
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()

	reporter, err := client.NewReporter(conn, client.Worker{
		ID: "worker-1", Address: "127.0.0.1:8000", Model: "demo", BlockSize: 4, Repeats: client.RepeatsSet,
	})
	if err != nil {
		return err
	}
	// The engine cached a prompt of two blocks. Reconnects, snapshots and restarts of the oracle are the reporter's work.
	if _, err := reporter.StoreTokens(client.Root(), []uint32{101, 102, 103, 104, 105, 106, 107, 108}, client.Variant{}, client.TierDevice); err != nil {
		return err
	}
	go func() {
		for running, waiting := 0, 0; ctx.Err() == nil; {
			reporter.Load(client.LoadSample{Running: &running, Waiting: &waiting})
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
	return reporter.Run(ctx)
}
