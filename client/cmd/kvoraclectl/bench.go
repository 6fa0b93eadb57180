package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/schollz/progressbar/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// benchCmd measures a deployment with an open loop: calls are made when they are due, whether or not earlier ones have
// been answered, and are timed from when they were due. So a server that stalls cannot hide it by being asked less.
type benchCmd struct {
	Model    string        `help:"Model to ask for." default:"demo"`
	Tokens   int           `help:"Length of each prompt." default:"2048"`
	Prompts  int           `help:"Different prompts that take turns." default:"64"`
	Rate     float64       `help:"Calls a second, at random moments." default:"500"`
	Duration time.Duration `help:"How long to measure, after a second to get warm." default:"10s"`
	Open     int           `help:"Calls in flight at most; those due beyond are counted as not sent." default:"4096"`
	Book     bool          `help:"Book each request and cancel it at once. Without it nothing is changed."`
	Quiet    bool          `help:"No progress bar."`
}

// Run measures and prints.
func (c *benchCmd) Run(e *env) error {
	if c.Tokens < 1 || c.Tokens > maxTokens || c.Prompts < 1 || c.Prompts > 10_000 || !(c.Rate > 0 && c.Rate <= 1e6) || c.Duration <= 0 || c.Open < 1 {
		return errors.New("want --tokens, --prompts (at most 10,000), --rate (at most 1,000,000), --duration and --open above 0")
	}
	conn, err := e.dial()
	if err != nil {
		return err
	}
	b := &bench{cmd: c, e: e, rpc: kvoraclev1.NewRouteServiceClient(conn), slots: make(chan struct{}, c.Open)}
	r := rand.New(rand.NewPCG(uint64(c.Tokens), uint64(c.Prompts)))
	for range c.Prompts {
		ids := make([]uint32, c.Tokens)
		for i := range ids {
			ids[i] = r.Uint32N(100_000)
		}
		b.questions = append(b.questions, &kvoraclev1.RouteRequest{
			Model: c.Model, DryRun: !c.Book, Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: ids}},
		})
	}
	show := func(int) {}
	if !c.Quiet && isTerminal(e.err) {
		bar := progressbar.NewOptions(int(c.Duration.Seconds()*c.Rate), progressbar.OptionSetWriter(e.err), progressbar.OptionSetWidth(40),
			progressbar.OptionShowCount(), progressbar.OptionThrottle(200*time.Millisecond), progressbar.OptionClearOnFinish())
		defer func() { _ = bar.Finish() }()
		show = func(n int) { _ = bar.Set(min(n, bar.GetMax())) }
	}
	// One call before the rest says what is wrong, if anything is.
	if err := b.ask(e.ctx, b.questions[0]); err != nil {
		return err
	}
	if err := b.loop(r, time.Second, func(int) {}); err != nil {
		return err
	}
	b.forget()
	if err := b.loop(r, c.Duration, show); err != nil {
		return err
	}
	return b.print(e.out)
}

// bench is one measurement.
type bench struct {
	cmd       *benchCmd
	e         *env
	rpc       kvoraclev1.RouteServiceClient
	questions []*kvoraclev1.RouteRequest
	slots     chan struct{}

	mu                     sync.Mutex
	latency                *hdrhistogram.Histogram // nanoseconds
	answered, shed, unsent int
	failed                 map[codes.Code]int
	took                   time.Duration
}

func (b *bench) forget() {
	b.latency = hdrhistogram.New(1000, int64(time.Minute), 3)
	b.failed = make(map[codes.Code]int)
	b.answered, b.shed, b.unsent = 0, 0, 0
}

// loop makes calls for a while and waits for their answers.
func (b *bench) loop(r *rand.Rand, length time.Duration, show func(int)) error {
	b.forget()
	var wg sync.WaitGroup
	begin := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Duration
	for n := 0; due < length; n++ {
		timer.Reset(due - time.Since(begin))
		select {
		case <-timer.C:
		case <-b.e.ctx.Done():
			wg.Wait()
			return b.e.ctx.Err()
		}
		select {
		case b.slots <- struct{}{}:
			at := due
			wg.Go(func() {
				err := b.ask(b.e.ctx, b.questions[n%len(b.questions)])
				b.note(time.Since(begin)-at, err)
				<-b.slots
			})
		default:
			b.unsent++
		}
		show(n)
		due += time.Duration(r.ExpFloat64() / b.cmd.Rate * float64(time.Second))
	}
	wg.Wait()
	b.took = time.Since(begin)
	return nil
}

// ask makes one call, and gives up what it booked.
func (b *bench) ask(ctx context.Context, q *kvoraclev1.RouteRequest) error {
	ctx, cancel := context.WithTimeout(ctx, b.e.cli.Timeout)
	defer cancel()
	m, err := b.rpc.Route(ctx, q)
	if err == nil && m.GetDecisionId() != "" {
		_, err = b.rpc.RecordProgress(ctx, &kvoraclev1.RecordProgressRequest{Events: []*kvoraclev1.ProgressEvent{{
			DecisionId: m.GetDecisionId(), Step: &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}},
		}}})
	}
	return err
}

func (b *bench) note(took time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch code := status.Code(err); code {
	case codes.OK:
		b.answered++
		_ = b.latency.RecordValue(min(int64(took), b.latency.HighestTrackableValue()))
	case codes.ResourceExhausted:
		b.shed++
	default:
		b.failed[code]++
	}
}

func (b *bench) print(w io.Writer) error {
	c := b.cmd
	how := "nothing booked"
	if c.Book {
		how = "each booked and cancelled: two calls"
	}
	fmt.Fprintf(w, "%d tokens, %d prompts, %.0f calls a second due for %v, %s\n\n", c.Tokens, c.Prompts, c.Rate, c.Duration, how)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "answered\t%d\t%.0f/s\n", b.answered, float64(b.answered)/b.took.Seconds())
	fmt.Fprintf(out, "refused for overload\t%d\n", b.shed)
	fmt.Fprintf(out, "not sent\t%d\n", b.unsent)
	for code, n := range b.failed {
		fmt.Fprintf(out, "failed: %v\t%d\n", code, n)
	}
	for _, q := range []float64{50, 90, 99, 99.9, 100} {
		fmt.Fprintf(out, "p%v\t%v\n", q, time.Duration(b.latency.ValueAtQuantile(q)).Round(time.Microsecond))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if b.answered == 0 {
		return errors.New("not one call was answered")
	}
	return nil
}
