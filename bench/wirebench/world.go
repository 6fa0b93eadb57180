package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvoracle/kvoracle/bench/child"
	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

const (
	model     = "demo"
	blockSize = 16
	distinct  = 32 // prompts that take turns
	system    = 8  // leading blocks that all of them share and every worker holds
)

// world is a server process and what the client knows of it.
type world struct {
	server  *child.Process
	control *grpc.ClientConn // ordinary messages
	raw     *grpc.ClientConn // messages that are bytes already
	plain   *grpc.ClientConn // the same to the server out of the box
	known   [distinct][]uint64
}

// options are how a server process differs from the ordinary one.
type options struct {
	traced   bool   // it makes spans, and drops them
	sheds    bool   // it refuses calls when there are too many
	shadow   string // a policy that decides beside the first; empty: none
	profiles string // host:port where it shows its profiles; empty: nowhere
}

// start brings up a server process with a fleet in which each of the prompts is held by some.
func start(ctx context.Context, core, workers, tokens int, as options) (*world, error) {
	p, err := child.Start("-serve", fmt.Sprintf("-core=%d", core), fmt.Sprintf("-traced=%v", as.traced),
		fmt.Sprintf("-sheds=%v", as.sheds), "-shadow="+as.shadow, "-profiles="+as.profiles)
	if err != nil {
		return nil, err
	}
	w := &world{server: p}
	var address, plain string
	line, err := p.Line()
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Sscanf(line, "listening %s %s", &address, &plain); err != nil {
		return nil, err
	}
	insecureOnly := grpc.WithTransportCredentials(insecure.NewCredentials())
	bytes := grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}))
	if w.control, err = grpc.NewClient(address, insecureOnly); err != nil {
		return nil, err
	}
	if w.raw, err = grpc.NewClient(address, insecureOnly, bytes); err != nil {
		return nil, err
	}
	if w.plain, err = grpc.NewClient(plain, insecureOnly, bytes); err != nil {
		return nil, err
	}
	if err := w.furnish(ctx, workers, tokens); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *world) stop() {
	_ = w.control.Close()
	_ = w.raw.Close()
	_ = w.plain.Close()
	w.server.Stop()
}

// furnish registers the workers and reports their blocks: the shared blocks on all, and of each prompt its first 3/4 on
// every eighth worker.
func (w *world) furnish(ctx context.Context, workers, tokens int) error {
	for n := range workers {
		s, err := w.report(ctx, n)
		if err != nil {
			return err
		}
		var held [][]uint64
		for p := range distinct {
			blocks := system
			if (n+p)%8 == 0 {
				blocks = max(system, tokens/blockSize*3/4)
			}
			held = append(held, w.locals(p, tokens)[:blocks])
		}
		if err := s.Send(batchOf(1, held...)); err != nil {
			return err
		}
		for {
			m, err := s.Recv()
			if err != nil {
				return fmt.Errorf("reporting blocks: %w", err)
			}
			if a := m.GetAck(); a.GetAppliedSequence() == 1 {
				if a.GetConfidence() != kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH || a.GetHeldBlocks() == 0 {
					return fmt.Errorf("blocks were not taken: %v", a)
				}
				break
			}
		}
	}
	return nil
}

// locals are the local hashes of one of the prompts.
func (w *world) locals(which, tokens int) []uint64 {
	if w.known[which] == nil {
		w.known[which] = localsOf(prompt(which, tokens))
	}
	return w.known[which]
}

// prompt makes the tokens of one of the prompts: like words, a few are frequent.
func prompt(which, tokens int) []uint32 {
	out := make([]uint32, tokens)
	shared, own := rand.New(rand.NewPCG(1, 1)), rand.New(rand.NewPCG(2, uint64(which)))
	for i := range out {
		r := own
		if i < system*blockSize {
			r = shared
		}
		x := r.Float64()
		out[i] = uint32(128_256 * x * x * x)
	}
	return out
}

func localsOf(tokens []uint32) []uint64 {
	var out []uint64
	for _, l := range block.AppendLocals(nil, tokens, blockSize) {
		out = append(out, uint64(l))
	}
	return out
}

// questions are the prompts as messages, without what differs from call to call.
func questions(tokens int, hashes bool) ([][]byte, error) {
	var out [][]byte
	for p := range distinct {
		m := &kvoraclev1.RouteRequest{Model: model}
		ids := prompt(p, tokens)
		if hashes {
			m.Prompt = &kvoraclev1.RouteRequest_BlockHashes{BlockHashes: &kvoraclev1.BlockHashPrompt{
				HashScheme: block.Scheme, BlockSize: blockSize, LocalHashes: localsOf(ids), TokenCount: uint32(tokens),
			}}
		} else {
			m.Prompt = &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: ids}}
		}
		b, err := proto.Marshal(m)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// requestID is the field request_id of a RouteRequest; fields may come in any order.
func requestID(n uint64) []byte {
	const digits = "0123456789abcdef"
	b := make([]byte, 18)
	b[0], b[1] = 1<<3|2, 16
	for i := range 16 {
		b[17-i] = digits[n&15]
		n >>= 4
	}
	return b
}

// streamed puts a question into the envelope of a stream.
func streamed(tag uint64, question, id []byte) mem.BufferSlice {
	b := binary.AppendUvarint([]byte{1 << 3}, tag)
	b = append(b, 2<<3|2)
	b = binary.AppendUvarint(b, uint64(len(question)+len(id)))
	return mem.BufferSlice{mem.SliceBuffer(b), mem.SliceBuffer(question), mem.SliceBuffer(id)}
}

// spent is what the server has used so far.
type spent struct{ cpu, mallocs, resident float64 }

func (w *world) spent(ctx context.Context) (spent, error) {
	out := new(structpb.ListValue)
	if err := w.control.Invoke(ctx, "/"+echoName+"/Usage", new(emptypb.Empty), out); err != nil {
		return spent{}, err
	}
	v := out.GetValues()
	return spent{v[0].GetNumberValue(), v[1].GetNumberValue(), v[2].GetNumberValue()}, nil
}

// cancel gives up decisions, so that bookings and guesses do not pile up from one measurement to the next.
func (w *world) cancel(ctx context.Context, ids []string) error {
	client := kvoraclev1.NewRouteServiceClient(w.control)
	for some := range slices.Chunk(ids, 1000) {
		m := &kvoraclev1.RecordProgressRequest{}
		for _, id := range some {
			m.Events = append(m.Events, &kvoraclev1.ProgressEvent{
				DecisionId: id, Step: &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}},
			})
		}
		out, err := client.RecordProgress(ctx, m)
		if err != nil {
			return err
		}
		if out.GetUnknownDecisions() > 0 {
			return fmt.Errorf("%d of %d decisions were not booked", out.GetUnknownDecisions(), len(some))
		}
	}
	return nil
}

// rawCodec sends and receives bytes as they are, so that the client's coding is in nobody's way.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(mem.BufferSlice)
	if !ok {
		return nil, fmt.Errorf("%T is not bytes", v)
	}
	return b, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%T does not take bytes", v)
	}
	*b = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }
