package enginetest

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/engine/smg"
)

// Servicer is which of SMG's servicers for vLLM an engine has beside it.
type Servicer int

// Servicers.
const (
	NoServicer Servicer = iota
	// Live is the one in Python: it keeps nothing, and ends its streams when a batch is missing.
	Live
	// Keeping is the one in Rust: it keeps the last batches (Config.Ring), and what the engine holds.
	Keeping
)

// servicer is one, in one life of the engine.
type servicer struct {
	cfg    Config
	server *grpc.Server
	quit   chan struct{}

	mu    sync.Mutex
	subs  map[*subscription]bool
	ranks []serviced
	first chan struct{} // closed when somebody has subscribed
}

// serviced is what it knows of a rank.
type serviced struct {
	next   uint64
	kept   []record
	first  uint64 // number of the first of them
	ledger ledger
	isGap  bool // a batch was lost on the way to it
}

// subscription is one stream. What it cannot hold ends it.
type subscription struct {
	queue chan record
	ended chan struct{}
	once  sync.Once
}

func (s *subscription) end() { s.once.Do(func() { close(s.ended) }) }

func newServicer(ctx context.Context, cfg Config, at string) (*servicer, string, error) {
	var lis net.Listener
	var lc net.ListenConfig
	if err := again(ctx, func() (err error) {
		lis, err = lc.Listen(ctx, "tcp", at)
		return err
	}); err != nil {
		return nil, "", err
	}
	s := &servicer{cfg: cfg, quit: make(chan struct{}), subs: make(map[*subscription]bool), ranks: make([]serviced, cfg.Ranks), first: make(chan struct{})}
	for i := range s.ranks {
		s.ranks[i].ledger = make(ledger)
	}
	opts := []grpc.ServerOption{grpc.ForceServerCodecV2(smg.Bytes{})}
	if cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s.server = grpc.NewServer(opts...)
	s.server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "vllm.grpc.engine.VllmEngine", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			answer("GetServerInfo", func() record {
				return record{}.text(5, "vllm-grpc").number(9, uint64(cfg.Ranks)).number(12, uint64(cfg.BlockSize)).number(20, 256)
			}),
			answer("GetModelInfo", func() record { return record{}.text(1, "/models/"+cfg.Name).text(6, cfg.Name) }),
			answer("GetLoads", func() record {
				var all record
				for rank := range cfg.Ranks {
					all = all.part(4, record{}.number(1, uint64(rank)).number(2, uint64(rank)+1).double(7, 0.5))
				}
				return all
			}),
		},
		Streams: []grpc.StreamDesc{{StreamName: "SubscribeKvEvents", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			return s.subscribe(stream)
		}}},
	}, s)
	go func() { _ = s.server.Serve(lis) }()
	return s, lis.Addr().String(), nil
}

func answer(name string, with func() record) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request []byte
		if err := decode(&request); err != nil {
			return nil, err
		}
		out := []byte(with())
		return &out, nil
	}}
}

// publish takes what a rank did. isLost: it does not come to the servicer.
func (s *servicer) publish(rank int, events []event, isLost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.ranks[rank]
	sequence := r.next
	r.next++
	if isLost {
		r.isGap = true
		return
	}
	if r.isGap {
		r.isGap = false
		for sub := range s.subs {
			sub.end()
		}
	}
	m := batchRecord(events, s.cfg.BlockSize, rank, sequence)
	if s.cfg.Servicer == Keeping {
		r.ledger.take(events, s.cfg.BlockSize)
		r.kept = append(r.kept, m)
		if len(r.kept) > s.cfg.Ring {
			r.kept = append([]record(nil), r.kept[1:]...)
			r.first++
		}
	}
	s.send(m.part(8, s.load(rank)))
}

// load is a load record.
func (s *servicer) load(rank int) record { return record{}.number(1, uint64(rank)+1).double(4, 0.5) }

func (s *servicer) send(m record) {
	for sub := range s.subs {
		select {
		case sub.queue <- m:
		default:
			sub.end()
		}
	}
}

// history is what a new stream begins with.
func (s *servicer) history() []record {
	var out []record
	for rank := range s.ranks {
		r := &s.ranks[rank]
		switch {
		case s.cfg.Servicer != Keeping || r.next == 0:
		case r.first == 0:
			out = append(out, r.kept...)
		default:
			events := append([]event{{cleared: true}}, r.ledger.all()...)
			const most = 7 // events of a chunk, so that there are several
			chunks := uint64(len(events)+most-1) / most
			chunks = min(chunks, r.next)
			for i := range chunks {
				part := events[:min(most, len(events))]
				if i == chunks-1 {
					part = events
				}
				events = events[len(part):]
				m := batchRecord(part, s.cfg.BlockSize, rank, r.next-chunks+i)
				out = append(out, m.part(7, record{}.number(1, i).number(2, chunks)))
			}
		}
	}
	return out
}

func (s *servicer) subscribe(stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	sub := &subscription{queue: make(chan record, 100_000), ended: make(chan struct{})}
	s.mu.Lock()
	first := s.history()
	s.subs[sub] = true
	select {
	case <-s.first:
	default:
		close(s.first)
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.subs, sub)
		s.mu.Unlock()
	}()
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	send := func(m record) error {
		out := []byte(m)
		return stream.SendMsg(&out)
	}
	for _, m := range first {
		if err := send(m); err != nil {
			return err
		}
	}
	beat := time.NewTicker(50 * time.Millisecond)
	defer beat.Stop()
	for {
		select {
		case m := <-sub.queue:
			if err := send(m); err != nil {
				return err
			}
		case <-beat.C: // nothing but the load, under a number that was there already
			for rank := range s.ranks {
				if err := send(record{}.number(4, uint64(rank)).part(8, append(s.load(rank), record{}.number(9, 1)...))); err != nil {
					return err
				}
			}
		case <-sub.ended:
			return status.Error(codes.DataLoss, "a batch is missing")
		case <-s.quit:
			return status.Error(codes.Unavailable, "the engine ends")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (s *servicer) stop() {
	close(s.quit)
	s.server.Stop()
}
