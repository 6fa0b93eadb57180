package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvoracle/kvoracle/server"
)

// trivial is a picker that chooses the only worker without looking at anything, in a process of its own: what Envoy's call and the
// way to another process cost, whoever answers. Its answers have the form of kvoracle's.
type trivial struct {
	extprocv3.UnimplementedExternalProcessorServer
	accesslogv3.UnimplementedAccessLogServiceServer

	answer *extprocv3.ProcessingResponse
}

// serveTrivial serves it on a port and on a socket in a folder, and over HTTP on another port, until its input ends. It prints the two
// ports. Bodies have a size where they come without anything else, see serveBytes.
func serveTrivial(dir, worker string, size int) error {
	debug.SetGCPercent(server.GCPercent)
	const key = "x-gateway-destination-endpoint"
	words, err := structpb.NewStruct(map[string]any{"envoy.lb": map[string]any{key: worker, "x-kvoracle-decision": "1"}})
	if err != nil {
		return err
	}
	t := &trivial{answer: &extprocv3.ProcessingResponse{
		DynamicMetadata: words,
		Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
			HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{
				Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(worker)},
				AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
			}}},
		}}},
	}}
	g := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(g, t)
	accesslogv3.RegisterAccessLogServiceServer(g, t)
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "trivial"))
	if err != nil {
		return err
	}
	for _, lis := range []net.Listener{port, socket} {
		go func() { _ = g.Serve(lis) }()
	}
	bytes, err := net.Listen("unix", filepath.Join(dir, "bytes"))
	if err != nil {
		return err
	}
	go serveBytes(bytes, size)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	h := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set(key, worker)
		w.Header().Set("x-kvoracle-decision", "1")
	})}
	go func() { _ = h.Serve(web) }()
	fmt.Println(port.Addr())
	fmt.Println(web.Addr())
	_, _ = os.Stdin.Read(make([]byte, 1))
	g.Stop()
	return nil
}

// Process implements the ext_proc service.
func (t *trivial) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return stream.Send(t.answer)
}

// StreamAccessLogs implements the access log's service.
func (t *trivial) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}
