package transport

import (
	"bytes"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	protocodec "google.golang.org/grpc/encoding/proto"

	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/wire"
)

// smallMessage is up to which size gRPC does not give a buffer back either.
const smallMessage = 1 << 10

// Codec is gRPC's "proto" with shortcuts: questions are read where they were received (see wire.Question), plain batches of
// reports become operations (see wire.Report), and answers and acks are written, all without making messages of them.
// Everything else is coded by protobuf-go.
type Codec struct {
	pool mem.BufferPool
	std  encoding.CodecV2 // for messages that are not ours to know, should there be any
}

// NewCodec makes a codec that takes its buffers from a pool.
func NewCodec(pool mem.BufferPool) *Codec {
	return &Codec{pool: pool, std: encoding.GetCodecV2(protocodec.Name)}
}

var _ encoding.CodecV2 = (*Codec)(nil)

// Name implements encoding.CodecV2.
func (*Codec) Name() string { return protocodec.Name }

// Unmarshal implements encoding.CodecV2.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *Question:
		return v.read(data)
	case *wire.Report:
		b := data.MaterializeToBuffer(c.pool)
		defer b.Free()
		return v.Read(b.ReadOnlyData())
	case proto.Message:
		b := data.MaterializeToBuffer(c.pool)
		defer b.Free()
		return proto.Unmarshal(b.ReadOnlyData(), v)
	default:
		return c.std.Unmarshal(data, v)
	}
}

// Marshal implements encoding.CodecV2.
func (c *Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case Written:
		return mem.BufferSlice{v.b}, nil
	case *oracle.Answer:
		return mem.BufferSlice{c.Write(v).b}, nil
	case *StreamAnswer:
		b := c.pool.Get(0)
		*b = wire.AppendStreamAnswer(*b, v.Tag, v.Answer)
		return mem.BufferSlice{mem.NewBuffer(b, c.pool)}, nil
	case *oracle.Ack:
		// Its own size and not a buffer of the pool: a thousand acks that a peer does not read would fill a thousand of those.
		var room [256]byte
		return mem.BufferSlice{mem.SliceBuffer(bytes.Clone(wire.AppendAck(room[:0], v)))}, nil
	case proto.Message:
		size := proto.Size(v)
		// The size was counted a moment ago, and nobody changes a message that is on its way out.
		options := proto.MarshalOptions{UseCachedSize: true}
		if size <= smallMessage {
			out, err := options.MarshalAppend(make([]byte, 0, size), v)
			return mem.BufferSlice{mem.SliceBuffer(out)}, err
		}
		b := c.pool.Get(size)
		out, err := options.MarshalAppend((*b)[:0], v)
		if err != nil {
			c.pool.Put(b)
			return nil, err
		}
		*b = out
		return mem.BufferSlice{mem.NewBuffer(b, c.pool)}, nil
	default:
		return c.std.Marshal(v)
	}
}

// Written is an answer that is a message already, so that what it was made of can be used again before gRPC sends it. It is
// sent once.
type Written struct{ b mem.Buffer }

// Write writes an answer of Route.
func (c *Codec) Write(a *oracle.Answer) Written {
	b := c.pool.Get(0)
	*b = wire.AppendAnswer(*b, a)
	return Written{mem.NewBuffer(b, c.pool)}
}

// StreamAnswer is an answer in the envelope of RouteStream. An *oracle.Answer alone is one of Route.
type StreamAnswer struct {
	Tag    uint64
	Answer *oracle.Answer
}

// Question is a RouteRequest, or with IsStreamed a RouteStreamRequest, read in the buffers it was received in, which it
// holds until Free. It may be read into again and again, with a Free between or without. The zero value is ready.
type Question struct {
	wire.Question

	// IsStreamed says which message is to be read.
	IsStreamed bool

	// Room is for the answer, which is valid until the next one is put there.
	Room oracle.Answer

	held   mem.BufferSlice
	pieces [][]byte
}

// read takes a reference to the buffers and looks for what is where.
func (q *Question) read(data mem.BufferSlice) error {
	q.Free()
	data.Ref()
	q.held = append(q.held[:0], data...)
	for _, b := range data {
		q.pieces = append(q.pieces, b.ReadOnlyData())
	}
	if q.IsStreamed {
		return q.ReadStreamed(q.pieces)
	}
	return q.Read(q.pieces)
}

// Free gives the buffers back. The question may be read into again.
func (q *Question) Free() {
	q.Reset()
	q.held.Free()
	clear(q.held)
	clear(q.pieces)
	q.held, q.pieces = q.held[:0], q.pieces[:0]
}
