// Command gateway shows the whole conversation of a gateway with kvoracle: ask, forward, say how it went. It needs an
// oracle at KVORACLE_SERVER (default 127.0.0.1:7070) with at least one worker; examples/worker is one.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvoracle/kvoracle/client"
)

func main() {
	if err := run(context.Background()); err != nil {
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

	router := client.NewRouter(conn) // 20 ms for an answer, then a choice of its own
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go router.Run(ctx) //nolint:errcheck // keeps the fleet list and the progress stream, until ctx is done

	prompt := []uint32{101, 102, 103, 104, 105, 106, 107, 108, 109} // from your tokenizer
	d, err := router.Route(ctx, client.Request{ID: "req-1", Model: "demo", Tokens: prompt})
	if err != nil {
		return err // the request is wrong, or no worker can take it
	}
	fmt.Printf("%s at %s holds %d of %d tokens (%s, %s)\n", d.Worker, d.Address, d.Matched.Total(), len(prompt), d.Source, d.Reason)

	router.Dispatched(d)
	began := time.Now()
	// ... forward the request to d.Address and stream the answer back ...
	router.FirstToken(d, time.Since(began))
	router.Finished(d, 42, 8) // output tokens, and prompt tokens the engine took from its cache

	// A gateway that goes on has nothing to wait for; this one ends here.
	flush, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return router.Flush(flush)
}
