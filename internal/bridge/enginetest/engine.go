package enginetest

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// Model is what an engine serves and how large it is.
type Model struct {
	Name      string
	BlockSize int
	Blocks    int // to be used, of each rank

	KeepsLast bool // the block with the last token is computed again where it lies, not as a copy
}

// Family is whose wire forms an engine has.
type Family int

// Families.
const (
	VLLM   Family = iota // as the package comment says
	SGLang               // maps without adapters, /server_info, /v1/loads, and a load socket
	TRTLLM               // no publisher: a buffer that POST /kv_cache_events empties; statistics as JSON; no copies, no resets
)

// Config is an engine.
type Config struct {
	Model

	Family   Family
	Servicer Servicer    // beside it, for VLLM
	TLS      *tls.Config // of the servicer; nil: plaintext

	Ranks   int    // 0: 1
	Ring    int    // batches kept for replay; 0: no replay socket
	AsMaps  bool   // the newer layout
	Connect string // publish by connecting there, rank r to port + r, instead of waiting for subscribers
	Silent  bool   // serve no metrics: nothing tells one life from another but its events
}

// Engine is one. Make it with New, and Close it.
type Engine struct {
	cfg  Config
	web  string // address of the documents
	subs []string
	reps []string

	life  uint64
	grpc  string // address of the servicer
	side  *servicer
	ranks []*rank
	http  *http.Server
	stop  context.CancelFunc
	tasks sync.WaitGroup
	since time.Time
}

// rank is one rank in one life.
type rank struct {
	cache  *cache
	pub    *zmtp.Socket
	router *zmtp.Socket // nil: no replay
	load   *zmtp.Socket // nil: none
	number int

	pending bool // a reset that no step has told yet
	silent  int  // batches to be lost

	mu   sync.Mutex
	next uint64
	ring []message
	most int

	buffer  []string // events as JSON that nobody has taken
	eventID uint64
}

type message struct {
	sequence uint64
	payload  []byte
}

// New starts an engine.
func New(cfg Config) (*Engine, error) {
	cfg.Ranks = max(cfg.Ranks, 1)
	var err error
	for range 5 { // somebody may take a port before the engine does
		var base int
		if base, err = Ports(2*cfg.Ranks + 2); err != nil { // ranks' ports count up
			return nil, err
		}
		e := &Engine{cfg: cfg, subs: make([]string, cfg.Ranks), reps: make([]string, cfg.Ranks)}
		for i := range cfg.Ranks {
			e.subs[i], e.reps[i] = at(base+i), at(base+cfg.Ranks+i)
		}
		e.web, e.grpc = fmt.Sprintf("127.0.0.1:%d", base+2*cfg.Ranks), fmt.Sprintf("127.0.0.1:%d", base+2*cfg.Ranks+1)
		if err = e.Start(); err == nil {
			return e, nil
		}
	}
	return nil, err
}

func at(port int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", port) }

// Ports finds n free ports of this machine beside each other. They lie below those that systems give to outgoing
// connections, one of which could take a port between two lives of an engine.
func Ports(n int) (base int, err error) {
	var lc net.ListenConfig
	for range 100 {
		base = 10_000 + rand.IntN(22_000-n)
		free := 0
		for free < n {
			lis, err := lc.Listen(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", base+free))
			if err != nil {
				break
			}
			_ = lis.Close() // it was only asked for
			free++
		}
		if free == n {
			return base, nil
		}
	}
	return 0, errors.New("enginetest: no free ports beside each other")
}

// Start begins the engine's next life, at the addresses of the former one. before, if given, is what it does before
// anybody can hear it.
func (e *Engine) Start(before ...func(*Engine)) error {
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	e.life++
	e.since = time.Now()
	e.ranks = nil
	names := e.life
	if e.cfg.Family == TRTLLM {
		names = 0 // hashes are of contents alone
	}
	for i := range e.cfg.Ranks {
		e.ranks = append(e.ranks, &rank{cache: newCache(e.cfg.Model, names<<8|uint64(i)), number: i, most: e.cfg.Ring})
	}
	if e.cfg.Servicer != NoServicer {
		var err error
		if e.side, e.grpc, err = newServicer(ctx, e.cfg, e.grpc); err != nil {
			cancel()
			return err
		}
	}
	for _, f := range before {
		f(e)
	}
	for i, r := range e.ranks {
		if err := e.open(ctx, i, r); err != nil {
			e.Crash()
			return err
		}
	}
	if err := e.serve(ctx); err != nil {
		e.Crash()
		return err
	}
	return nil
}

// open makes a rank's sockets.
func (e *Engine) open(ctx context.Context, i int, r *rank) (err error) {
	if e.cfg.Family == TRTLLM {
		return nil
	}
	if e.cfg.Family == SGLang {
		// Rank r's is at the first one's port + r, as its documents say; so there is one rank only.
		if r.load, err = listen(ctx, zmtp.Config{Type: zmtp.PUB, Endpoint: at(0)}); err != nil {
			return err
		}
	}
	if e.cfg.Connect != "" {
		host, port, err := net.SplitHostPort(e.cfg.Connect[len("tcp://"):])
		if err != nil {
			return err
		}
		var n int
		if _, err := fmt.Sscan(port, &n); err != nil {
			return err
		}
		at := "tcp://" + net.JoinHostPort(host, fmt.Sprint(n+i))
		if r.pub, err = zmtp.Dial(ctx, zmtp.Config{Type: zmtp.PUB, Endpoint: at, ReconnectMax: 100 * time.Millisecond}); err != nil {
			return err
		}
	} else {
		if r.pub, err = listen(ctx, zmtp.Config{Type: zmtp.PUB, Endpoint: e.subs[i], SendMessages: 100_000}); err != nil {
			return err
		}
		e.subs[i] = r.pub.Endpoint()
	}
	if r.most == 0 {
		return nil
	}
	if r.router, err = listen(ctx, zmtp.Config{Type: zmtp.ROUTER, Endpoint: e.reps[i], SendMessages: 100_000}); err != nil {
		return err
	}
	e.reps[i] = r.router.Endpoint()
	e.tasks.Go(func() { r.repeat(ctx) })
	return nil
}

// listen waits for a port that a former life has not given back yet.
func listen(ctx context.Context, cfg zmtp.Config) (*zmtp.Socket, error) {
	var s *zmtp.Socket
	err := again(ctx, func() (err error) {
		s, err = zmtp.Listen(ctx, cfg)
		return err
	})
	return s, err
}

func again(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return err
		}
	}
}

// repeat answers replay requests.
func (r *rank) repeat(ctx context.Context) {
	for {
		d, err := r.router.Recv(ctx)
		if err != nil {
			return
		}
		m := d.Message
		if d.Event != nil || len(m) != 3 || len(m[2]) != 8 {
			continue
		}
		from := binary.BigEndian.Uint64(m[2])
		r.mu.Lock()
		ring := r.ring
		r.mu.Unlock()
		for _, x := range ring {
			if x.sequence >= from {
				_ = r.router.Send(ctx, [][]byte{m[0], {}, []byte("kv"), binary.BigEndian.AppendUint64(nil, x.sequence), x.payload})
			}
		}
		_ = r.router.Send(ctx, [][]byte{m[0], {}, {}, binary.BigEndian.AppendUint64(nil, ^uint64(0)), {}})
	}
}

// Serve is one step of a rank: it computes prompts, at the same time, and publishes what changed. It returns how many
// tokens of each were taken from the cache.
func (e *Engine) Serve(rank int, v Variant, prompts ...[]uint32) (cached []int) {
	r := e.ranks[rank]
	if e.cfg.Family == TRTLLM {
		for _, p := range prompts { // one after the other, so that none gets copies
			n, events := r.cache.serve(v, p)
			cached = append(cached, n...)
			r.gather(events, e.cfg.BlockSize)
		}
		return cached
	}
	cached, events := r.cache.serve(v, prompts...)
	if r.pending {
		events = append([]event{{cleared: true}}, events...)
		r.pending = false
	}
	if len(events) > 0 {
		if e.side != nil {
			e.side.publish(rank, events, r.silent > 0)
		}
		r.publish(e.payload(events, rank))
	}
	return cached
}

// payload is a batch as the family writes it.
func (e *Engine) payload(events []event, rank int) []byte {
	if e.cfg.Family == SGLang {
		return sglangPayload(events, e.cfg.BlockSize, rank, time.Now())
	}
	return payload(events, e.cfg.BlockSize, rank, e.cfg.AsMaps, time.Now())
}

// PublishLoad publishes a sample on a rank's load socket (SGLang).
func (e *Engine) PublishLoad(rank, running, waiting, uncached int) error {
	return e.ranks[rank].load.Send(context.Background(), [][]byte{
		[]byte("load"), binary.BigEndian.AppendUint64(nil, 0), loadPayload(running, waiting, uncached, rank),
	})
}

// Reset empties a rank's cache. Its next step says so.
func (e *Engine) Reset(rank int) {
	e.ranks[rank].cache.reset()
	e.ranks[rank].pending = true
}

// Publish publishes a payload as it is.
func (e *Engine) Publish(rank int, payload []byte) { e.ranks[rank].publish(payload) }

// Lose makes the next n batches of a rank go to nobody, though they count and are kept for replay.
func (e *Engine) Lose(rank, n int) { e.ranks[rank].silent = n }

func (r *rank) publish(payload []byte) {
	r.mu.Lock()
	sequence := r.next
	r.next++
	if r.most > 0 {
		r.ring = append(r.ring, message{sequence, payload})
		if len(r.ring) > r.most {
			r.ring = append([]message(nil), r.ring[len(r.ring)-r.most:]...)
		}
	}
	r.mu.Unlock()
	if r.silent > 0 {
		r.silent--
		return
	}
	if r.pub != nil {
		_ = r.pub.Send(context.Background(), [][]byte{[]byte("kv"), binary.BigEndian.AppendUint64(nil, sequence), payload})
	}
}

// Published is how many batches a rank has published in this life.
func (e *Engine) Published(rank int) uint64 {
	r := e.ranks[rank]
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// Held is what a rank holds, by the oracle's ids, with the copies of each.
func (e *Engine) Held(rank int) map[block.ID]int { return e.ranks[rank].cache.held() }

// WaitSubscribers waits until each rank has one, or the servicer has, in this life.
func (e *Engine) WaitSubscribers(ctx context.Context) error {
	if e.side != nil {
		select {
		case <-e.side.first:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, r := range e.ranks {
		if r.pub == nil {
			continue // who listens is somebody else
		}
		if err := r.pub.WaitPeers(ctx, 1); err != nil {
			return err
		}
	}
	return nil
}

// Events and Replay are where rank 0 publishes and repeats; Web is where the documents are.
func (e *Engine) Events() string { return e.subs[0] }

// GRPC is where the servicer is, host:port.
func (e *Engine) GRPC() string { return e.grpc }

// Replay is where rank 0 repeats.
func (e *Engine) Replay() string { return e.reps[0] }

// Web is the address of the documents.
func (e *Engine) Web() string { return "http://" + e.web }

// Crash ends the life at once.
func (e *Engine) Crash() {
	e.stop()
	for _, r := range e.ranks {
		if r.pub != nil {
			r.pub.Close()
		}
		if r.router != nil {
			r.router.Close()
		}
		if r.load != nil {
			r.load.Close()
		}
	}
	if e.side != nil {
		e.side.stop()
		e.side = nil
	}
	if e.http != nil {
		_ = e.http.Close()
	}
	e.tasks.Wait()
}

// Close ends the engine.
func (e *Engine) Close() { e.Crash() }

// serve answers for the documents.
func (e *Engine) serve(ctx context.Context) error {
	var lis net.Listener
	var lc net.ListenConfig
	err := again(ctx, func() (err error) {
		lis, err = lc.Listen(ctx, "tcp", e.web)
		return err
	})
	if err != nil {
		return err
	}
	e.web = lis.Addr().String()
	mux := http.NewServeMux()
	cfg, since, life := e.cfg, e.since, e.life
	owner := "vllm"
	switch cfg.Family {
	case SGLang:
		owner = "sglang"
		e.serveSGLang(mux)
	case TRTLLM:
		owner = "tensorrt_llm"
		e.serveTRTLLM(mux)
	case VLLM:
	}
	if !cfg.Silent && cfg.Family == VLLM {
		mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, "process_start_time_seconds %.2f\n", float64(since.UnixMilli())/1e3+float64(life)/100)
			for i := range cfg.Ranks {
				_, _ = fmt.Fprintf(w, "vllm:num_requests_running{engine=\"%d\",model_name=%q} %d\n", i, cfg.Name, i+1)
				_, _ = fmt.Fprintf(w, "vllm:num_requests_waiting{engine=\"%d\",model_name=%q} 0\n", i, cfg.Name)
				_, _ = fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"%d\",engine=\"%d\",num_gpu_blocks=\"%d\"} 1\n", cfg.BlockSize, i, cfg.Blocks+1)
			}
		})
	}
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"data":[{"id":%q,"owned_by":%q}]}`, cfg.Name, owner)
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	e.http = srv
	e.tasks.Go(func() {
		if err := srv.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			_ = lis.Close()
		}
	})
	return nil
}
