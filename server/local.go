package server

import (
	"context"
	"fmt"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/kvoracle/kvoracle/internal/transport"
)

// local calls the server's unary methods from within the process: the way of a call over gRPC without the connection. The
// same shedding, interceptors, codec and handlers stand on it, so that a door of another protocol has no behaviour of its
// own. It implements httpjson.Caller.
type local struct {
	s       *Server
	codec   *transport.Codec
	chain   grpc.UnaryServerInterceptor
	methods map[string]localMethod
}

// localMethod is a method with its service.
type localMethod struct {
	desc grpc.MethodDesc
	impl any
}

func newLocal(s *Server, codec *transport.Codec, chain grpc.UnaryServerInterceptor) *local {
	return &local{s: s, codec: codec, chain: chain, methods: make(map[string]localMethod)}
}

// RegisterService implements grpc.ServiceRegistrar.
func (l *local) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, m := range desc.Methods {
		l.methods["/"+desc.ServiceName+"/"+m.MethodName] = localMethod{m, impl}
	}
}

// Admit lets in and sheds as gRPC's tap does. The handler of a door runs already, so what a call waits for a processor is seen by
// going to the end of the queue: of the one call in sixteen that is timed.
func (l *local) Admit(ctx context.Context, method string) (context.Context, error) {
	ctx, err := l.s.guard.arriveLocally(ctx, method)
	if err != nil {
		return ctx, err
	}
	in, err := l.s.shedder.tap(ctx, &tap.Info{FullMethodName: method})
	if err == nil && in != ctx {
		runtime.Gosched()
		l.s.shedder.begun(in)
	}
	return ctx, err
}

// Call calls a method with an encoded message and appends the encoded answer to dst.
func (l *local) Call(ctx context.Context, method string, message, dst []byte) ([]byte, error) {
	m, ok := l.methods[method]
	if !ok {
		return dst, status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	if most := l.s.cfg.MaxMessageBytes; len(message) > most {
		err := status.Errorf(codes.ResourceExhausted, "the message has %d bytes, want at most %d", len(message), most)
		l.Refused(ctx, method, err)
		return dst, err
	}
	ctx = grpc.NewContextWithServerTransportStream(ctx, localStream(method))
	resp, err := m.desc.Handler(m.impl, ctx, func(v any) error {
		if err := l.codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, v); err != nil {
			return status.Error(codes.Internal, fmt.Sprintf("a message could not be read: %v", err))
		}
		return nil
	}, l.chain)
	if err != nil {
		return dst, toStatus(err)
	}
	out, err := l.codec.Marshal(resp)
	if err != nil {
		return dst, toStatus(err)
	}
	defer out.Free()
	for _, b := range out {
		dst = append(dst, b.ReadOnlyData()...)
	}
	return dst, nil
}

// Refused counts and logs a call that the door refused by itself.
func (l *local) Refused(ctx context.Context, method string, err error) {
	l.s.watch.failed(ctx, method, err, 0)
}

// localStream is what gRPC's functions of a call's context want: the method. Nobody here sends headers.
type localStream string

var _ grpc.ServerTransportStream = localStream("")

// Method implements grpc.ServerTransportStream.
func (m localStream) Method() string { return string(m) }

// SetHeader implements grpc.ServerTransportStream.
func (localStream) SetHeader(metadata.MD) error { return nil }

// SendHeader implements grpc.ServerTransportStream.
func (localStream) SendHeader(metadata.MD) error { return nil }

// SetTrailer implements grpc.ServerTransportStream.
func (localStream) SetTrailer(metadata.MD) error { return nil }

// registrars registers with all of them.
type registrars []grpc.ServiceRegistrar

// RegisterService implements grpc.ServiceRegistrar.
func (r registrars) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, one := range r {
		one.RegisterService(desc, impl)
	}
}
