package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	nats "github.com/nats-io/nats-server/v2/server"

	"github.com/kvoracle/kvoracle/server"
)

// serve is NATS or a replica until the input ends. It says where it is.
func serve(name, url, profiles string) error {
	if profiles != "" {
		f, err := os.Create(filepath.Join(profiles, name+".pprof"))
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if name == "nats" {
		return serveNATS(ctx)
	}
	s, err := server.New(server.Config{
		Listen: "127.0.0.1:0", NATSURL: url, ReplicaID: name, DrainDelay: time.Millisecond,
	})
	if err != nil {
		return err
	}
	if err := s.Listen(ctx); err != nil {
		return err
	}
	fmt.Println(s.Addr())
	return s.Run(ctx)
}

func serveNATS(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "replicabench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary folder
	s, err := nats.NewServer(&nats.Options{Host: "127.0.0.1", Port: nats.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return errors.New("NATS does not start")
	}
	fmt.Println(s.ClientURL())
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}
