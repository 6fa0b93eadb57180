package main

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// answerBytes is about what an answer takes.
const answerBytes = 200

// serveBytes answers so many bytes with a few, over and over: what it costs to wake another process and to be woken.
func serveBytes(lis net.Listener, size int) {
	for {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			b := make([]byte, size)
			for {
				if _, err := io.ReadFull(conn, b); err != nil {
					return
				}
				if _, err := conn.Write(b[:min(size, answerBytes)]); err != nil {
					return
				}
			}
		}()
	}
}

// floor times, one after the other at the rate of the requests, what every call of a picker is made of, without Envoy: a message to
// the trivial picker's process and back, and a call of it, over its socket.
func (s *stack) floor(body []byte, rate int, window time.Duration) (bytes, call []float64, err error) {
	conn, err := net.Dial("unix", filepath.Join(s.dir, "bytes"))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = conn.Close() }()
	answer := make([]byte, min(len(body), answerBytes))
	bytes, err = inTurn(rate, window, func() error {
		if _, err := conn.Write(body); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, answer)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	g, err := grpc.NewClient("unix:"+filepath.Join(s.dir, "trivial"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = g.Close() }()
	client := extprocv3.NewExternalProcessorClient(g)
	question := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: true},
	}}
	call, err = inTurn(rate, window, func() error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		stream, err := client.Process(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(question); err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	})
	return bytes, call, err
}

// inTurn times f, so many times a second.
func inTurn(rate int, window time.Duration, f func() error) ([]float64, error) {
	times := make([]float64, int(window.Seconds()*float64(rate)))
	start := time.Now()
	for i := range times {
		if err := await(start.Add(time.Duration(i) * time.Second / time.Duration(rate))); err != nil {
			return nil, err
		}
		from := time.Now()
		if err := f(); err != nil {
			return nil, err
		}
		times[i] = time.Since(from).Seconds()
	}
	return times, nil
}
