package smg

import (
	"errors"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Bytes is a gRPC codec that passes messages on as they are: what is sent and received is a *[]byte.
type Bytes struct{}

var _ encoding.CodecV2 = Bytes{}

var errNotBytes = errors.New("smg: not a message")

// Marshal implements encoding.CodecV2.
func (Bytes) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, errNotBytes
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (Bytes) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return errNotBytes
	}
	*b = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2: what is said on the wire is protobuf.
func (Bytes) Name() string { return "proto" }
