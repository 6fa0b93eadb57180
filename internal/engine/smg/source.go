package smg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/engine/metrics"
)

// MaxMessage is the largest message that is read.
const MaxMessage = 16 << 20

// Source is one engine's servicer.
type Source struct {
	// Conn leads there, and stays the caller's.
	Conn grpc.ClientConnInterface
	// Engine is the family; Unknown: Discover finds out.
	Engine kvevents.Engine
	// Timeout bounds each call but Subscribe; 0: 2 s.
	Timeout time.Duration
}

// Batch is a message of a stream: what it says besides its events, and all of it for kvevents.Batch.DecodeProto.
type Batch struct {
	kvevents.StreamHead

	Payload []byte
}

// serviceOf is the full name of an engine's service; "" for an engine that has none.
func serviceOf(engine kvevents.Engine) string {
	switch engine {
	case kvevents.EngineVLLM:
		return "vllm.grpc.engine.VllmEngine"
	case kvevents.EngineSGLang:
		return "sglang.grpc.scheduler.SglangScheduler"
	case kvevents.EngineTRTLLM:
		return "trtllm.TrtllmService"
	case kvevents.EngineUnknown, kvevents.EngineMooncake:
	}
	return ""
}

// Discover asks what the engine is. If the family is not known, the one whose service answers is it.
func (s *Source) Discover(ctx context.Context) (metrics.Facts, error) {
	families := []kvevents.Engine{s.Engine}
	if s.Engine == kvevents.EngineUnknown {
		families = []kvevents.Engine{kvevents.EngineVLLM, kvevents.EngineSGLang, kvevents.EngineTRTLLM}
	}
	for _, engine := range families {
		body, err := s.call(ctx, engine, "GetServerInfo", nil)
		if status.Code(err) == codes.Unimplemented {
			continue
		}
		if err != nil {
			return metrics.Facts{}, err
		}
		f, err := parseServer(engine, body)
		if err != nil {
			return metrics.Facts{}, err
		}
		if body, err = s.call(ctx, engine, "GetModelInfo", nil); err != nil {
			return metrics.Facts{}, err
		}
		model, err := parseModel(engine, body)
		if err != nil {
			return metrics.Facts{}, err
		}
		return metrics.Merge(f, model)
	}
	return metrics.Facts{}, fmt.Errorf("smg: no servicer of %v answers there", s.Engine)
}

// Loads asks how busy the engine is. The error is metrics.ErrAbsent if its servicer does not say (TensorRT-LLM's).
func (s *Source) Loads(ctx context.Context, engine kvevents.Engine) (metrics.Reading, error) {
	const core = "\x12\x04core" // include: ["core"]
	body, err := s.call(ctx, engine, "GetLoads", []byte(core))
	if status.Code(err) == codes.Unimplemented {
		return metrics.Reading{}, fmt.Errorf("smg: GetLoads: %w", metrics.ErrAbsent)
	}
	if err != nil {
		return metrics.Reading{}, err
	}
	return ParseLoads(body)
}

// Subscribe reads a stream to its end, which is an error. begun is called once the servicer has taken the subscription, and
// take for every batch; it may wait, and the servicer with it. A batch that cannot be read ends the stream.
func (s *Source) Subscribe(ctx context.Context, engine kvevents.Engine, begun func(), take func(Batch)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	method := "/" + serviceOf(engine) + "/SubscribeKvEvents"
	stream, err := s.Conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, options()...)
	if err != nil {
		return err
	}
	request := []byte{2 << 3, 1} // load_records_before_first_batch
	if err := stream.SendMsg(&request); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	isBegun := false
	if header, err := stream.Header(); err == nil && header != nil {
		isBegun = true
		begun()
	}
	for {
		var payload []byte
		if err := stream.RecvMsg(&payload); err != nil {
			return err
		}
		if !isBegun {
			isBegun = true
			begun()
		}
		head, err := kvevents.ParseStream(payload)
		if err != nil {
			return err
		}
		take(Batch{head, payload})
	}
}

// IsLoss reports whether a stream ended because batches are lost, or the engine has begun anew: the servicer says nothing
// more exact.
func IsLoss(err error) bool {
	return status.Code(err) == codes.DataLoss || status.Code(err) == codes.OutOfRange || errors.Is(err, kvevents.ErrMalformed)
}

func (s *Source) call(ctx context.Context, engine kvevents.Engine, method string, request []byte) ([]byte, error) {
	service := serviceOf(engine)
	if service == "" {
		return nil, status.Errorf(codes.Unimplemented, "smg: %v has no servicer", engine)
	}
	timeout := s.Timeout
	if timeout <= 0 {
		timeout = 2 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var body []byte
	err := s.Conn.Invoke(ctx, "/"+service+"/"+method, &request, &body, options()...)
	return body, err
}

func options() []grpc.CallOption {
	return []grpc.CallOption{grpc.ForceCodecV2(Bytes{}), grpc.MaxCallRecvMsgSize(MaxMessage)}
}
