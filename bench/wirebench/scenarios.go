package main

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/internal/block"
)

const (
	unsampled = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00"
	sampled   = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
)

var scenarios = []scenario{
	{"hash", hashing, []bars.Bar{
		{Name: "hash-16", Limit: 8, Unit: "ns a block of 16 tokens, chained"},
		{Name: "hash-64", Unit: "ns a block of 64 tokens, chained"},
	}},
	{"512", small, []bars.Bar{
		{Name: "unary-512", Limit: 1.20, Unit: "x echo, server CPU"},
		{Name: "unary-512-us", Unit: "us of server CPU a Route"},
		{Name: "unary-512-echo-us", Unit: "us of server CPU an echo"},
		{Name: "unary-512-allocs", Limit: 5, Unit: "allocations beyond the echo's"},
		{Name: "unary-512-echo-allocs", Unit: "allocations an echo"},
		{Name: "stream-512-rate", Limit: 100_000, AtLeast: true, Unit: "decisions a second of the server's core"},
		{Name: "stream-512", Limit: 1.4, Unit: "x echo stream, server CPU"},
		{Name: "stream-512-echo-us", Unit: "us of server CPU an echo"},
		{Name: "stream-512-clock", Unit: "decisions a second of the clock"},
		{Name: "stream-32-hashes-rate", Limit: 100_000, AtLeast: true, Unit: "decisions a second of the server's core"},
		{Name: "stream-32-hashes", Limit: 1.4, Unit: "x echo stream, server CPU"},
	}},
	{"workers", manyWorkers, []bars.Bar{
		{Name: "workers-1024", Limit: 3, Unit: "us more than with 64 workers, on a stream"},
	}},
	{"8192", medium, []bars.Bar{
		{Name: "unary-8192", Limit: 1.25, Unit: "x echo, server CPU"},
		{Name: "unary-8192-us", Unit: "us of server CPU a Route"},
		{Name: "unary-8192-plain", Limit: 0.5, Unit: "x echo of gRPC out of the box, server CPU"},
	}},
	{"131072", large, []bars.Bar{
		{Name: "unary-131072", Limit: 1.5, Unit: "x echo, server CPU"},
		{Name: "unary-131072-us", Unit: "us of server CPU a Route"},
	}},
	{"latency", latency, []bars.Bar{
		{Name: "latency-p99", Limit: 2, Unit: "x echo's p99, 5,000/s, 8,192 tokens, 20,000 blocks/s"},
		{Name: "latency-p99-us", Unit: "us"},
		{Name: "latency-p50-us", Unit: "us"},
	}},
	{"overload", overload, []bars.Bar{
		{Name: "overload-goodput", Limit: 0.9, AtLeast: true, Unit: "of what its processor time answers, 512 tokens, twice that offered"},
		{Name: "overload-offered", Unit: "x what its processor time answers: what the client really offered"},
		{Name: "overload-late", Unit: "of the calls were ended since they were not received in time"},
		{Name: "overload-call-us", Unit: "us of server CPU a Route, nothing refused"},
		{Name: "overload-p99-ms", Unit: "ms, of the answered"},
		{Name: "overload-memory", Limit: 256, Unit: "MiB more resident"},
		{Name: "overload-reports", Limit: 0.95, AtLeast: true, Unit: "of the report batches sent meanwhile were applied"},
	}},
	{"trace", tracing, []bars.Bar{
		{Name: "trace-unsampled", Limit: 1.05, Unit: "x untraced, server CPU"},
		{Name: "trace-sampled", Limit: 12, Unit: "us for the span"},
	}},
}

func hashing(_ context.Context, b *bench) error {
	// In pieces as gRPC receives them, which end in the middle of a block.
	var raw []byte
	for _, t := range prompt(0, 8192) {
		raw = binary.LittleEndian.AppendUint32(raw, t)
	}
	pieces := [][]byte{raw[:16370], raw[16370:32754], raw[32754:]}
	for _, size := range []int{16, 64} {
		ids := make([]block.ID, 0, len(raw)/4/size)
		for range b.rounds {
			const times = 20_000
			begin := processorTime()
			for range times {
				ids = block.AppendPackedChain(ids[:0], 1, pieces, size)
			}
			took := processorTime() - begin
			b.value("hash-"+strconv.Itoa(size), float64(took.Nanoseconds())/times/float64(len(ids)))
		}
	}
	return nil
}

// calls is how many calls a measurement may make before what it booked has to go: guesses are bounded, and a bounded
// server would do less work than a real one.
func calls(tokens int) int { return min(10_000, 900_000*blockSize/tokens) }

func small(ctx context.Context, b *bench) error {
	const tokens = 512
	w, err := start(ctx, b.server, 64, tokens, options{profiles: b.profiles})
	if err != nil {
		return err
	}
	defer w.stop()
	asked, err := questions(tokens, false)
	if err != nil {
		return err
	}
	hashed, err := questions(tokens, true)
	if err != nil {
		return err
	}
	for round := range b.rounds + 1 {
		echo, err := w.unary(ctx, w.raw, echoMethod, asked, 8, calls(tokens))
		if err != nil {
			return err
		}
		route, err := w.unary(ctx, w.raw, routeMethod, asked, 8, calls(tokens))
		if err != nil {
			return err
		}
		for _, s := range []struct {
			name      string
			questions [][]byte
		}{{"stream-512", asked}, {"stream-32-hashes", hashed}} {
			n := 2 * calls(tokens)
			echo, err := w.stream(ctx, echoStreamMethod, s.questions, 64, n)
			if err != nil {
				return err
			}
			route, err := w.stream(ctx, routeStreamMethod, s.questions, 64, n)
			if err != nil {
				return err
			}
			if round == 0 {
				continue // to get warm
			}
			b.value(s.name, route.cpu/echo.cpu)
			b.value(s.name+"-rate", 1/route.cpu)
			b.value(s.name+"-clock", route.rate)
			b.value(s.name+"-echo-us", echo.cpu*1e6)
		}
		if round == 0 {
			continue
		}
		b.value("unary-512", route.cpu/echo.cpu)
		b.value("unary-512-us", route.cpu*1e6)
		b.value("unary-512-echo-us", echo.cpu*1e6)
		b.value("unary-512-allocs", route.mallocs-echo.mallocs)
		b.value("unary-512-echo-allocs", echo.mallocs)
	}
	return nil
}

func manyWorkers(ctx context.Context, b *bench) error {
	const tokens = 512
	asked, err := questions(tokens, false)
	if err != nil {
		return err
	}
	few, err := start(ctx, b.server, 64, tokens, options{})
	if err != nil {
		return err
	}
	defer few.stop()
	many, err := start(ctx, b.server, 1024, tokens, options{profiles: b.profiles})
	if err != nil {
		return err
	}
	defer many.stop()
	for round := range b.rounds + 1 {
		one, err := few.stream(ctx, routeStreamMethod, asked, 64, calls(tokens))
		if err != nil {
			return err
		}
		other, err := many.stream(ctx, routeStreamMethod, asked, 64, calls(tokens))
		if err != nil {
			return err
		}
		if round > 0 {
			b.value("workers-1024", (other.cpu-one.cpu)*1e6)
		}
	}
	return nil
}

func medium(ctx context.Context, b *bench) error { return long(ctx, b, 8192, "unary-8192") }

func large(ctx context.Context, b *bench) error { return long(ctx, b, 131_072, "unary-131072") }

// long is unary calls with prompts that cost more than the call itself.
func long(ctx context.Context, b *bench, tokens int, name string) error {
	w, err := start(ctx, b.server, 64, tokens, options{profiles: b.profiles})
	if err != nil {
		return err
	}
	defer w.stop()
	asked, err := questions(tokens, false)
	if err != nil {
		return err
	}
	for round := range b.rounds + 1 {
		var echo, route, plain float64
		for range 3 {
			e, err := w.unary(ctx, w.raw, echoMethod, asked, 8, calls(tokens))
			if err != nil {
				return err
			}
			r, err := w.unary(ctx, w.raw, routeMethod, asked, 8, calls(tokens))
			if err != nil {
				return err
			}
			p, err := w.unary(ctx, w.plain, plainMethod, asked, 8, calls(tokens))
			if err != nil {
				return err
			}
			echo, route, plain = echo+e.cpu, route+r.cpu, plain+p.cpu
		}
		if round > 0 {
			b.value(name, route/echo)
			b.value(name+"-us", route/3*1e6)
			b.value(name+"-plain", route/plain)
		}
	}
	return nil
}

func latency(ctx context.Context, b *bench) error {
	const tokens = 8192
	w, err := start(ctx, b.server, 64, tokens, options{profiles: b.profiles})
	if err != nil {
		return err
	}
	defer w.stop()
	asked, err := questions(tokens, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err := w.reports(ctx, 20_000); err != nil {
		return err
	}
	for range b.rounds {
		echo, err := w.openLoop(ctx, echoMethod, asked, 5000, time.Second)
		if err != nil {
			return err
		}
		route, err := w.openLoop(ctx, routeMethod, asked, 5000, time.Second)
		if err != nil {
			return err
		}
		p99 := percentile(route.latencies, 0.99)
		b.value("latency-p99", float64(p99)/float64(percentile(echo.latencies, 0.99)))
		b.value("latency-p99-us", float64(p99.Microseconds()))
		b.value("latency-p50-us", float64(percentile(route.latencies, 0.5).Microseconds()))
	}
	return nil
}

// overload offers twice of what the server's core can answer, with reports coming in. So that a client with no more than a
// core of its own can, decisions are made dear and messages small: among many workers, with a second policy beside the first,
// which goes the long way, for short prompts. What the server can is taken from the processor time of its calls in a closed loop, and what it gives from the
// processor time that it had meanwhile, so that neither changes with what else the machine does.
func overload(ctx context.Context, b *bench) error {
	const tokens, workers, shadow = 512, 384, "weighted_scorers"
	w, err := start(ctx, b.server, workers, tokens, options{sheds: true, shadow: shadow, profiles: b.profiles})
	if err != nil {
		return err
	}
	defer w.stop()
	patient, err := start(ctx, b.server, workers, tokens, options{shadow: shadow}) // refuses nobody
	if err != nil {
		return err
	}
	defer patient.stop()
	asked, err := questions(tokens, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f, err := w.reports(ctx, 20_000)
	if err != nil {
		return err
	}
	for round := range b.rounds + 1 {
		alone, err := patient.unary(ctx, patient.raw, routeMethod, asked, 16, calls(tokens))
		if err != nil {
			return err
		}
		before, err := w.spent(ctx)
		if err != nil {
			return err
		}
		sent, applied := f.sent.Load(), f.applied.Load()
		out, err := w.openLoop(ctx, routeMethod, asked, 2/alone.cpu, 2*time.Second)
		if err != nil {
			return err
		}
		sent, applied = f.sent.Load()-sent, f.applied.Load()-applied
		after, err := w.spent(ctx)
		if err != nil {
			return err
		}
		if round == 0 {
			continue // to get warm
		}
		answered, can := float64(len(out.latencies)), (after.cpu-before.cpu)/alone.cpu
		b.value("overload-call-us", alone.cpu*1e6)
		b.value("overload-offered", (answered+float64(out.shed+out.late))/can)
		b.value("overload-late", float64(out.late)/(answered+float64(out.shed+out.late)))
		b.value("overload-goodput", answered/can)
		b.value("overload-p99-ms", float64(percentile(out.latencies, 0.99).Microseconds())/1000)
		b.value("overload-memory", (after.resident-before.resident)/(1<<20))
		b.value("overload-reports", float64(applied)/float64(sent))
	}
	return nil
}

func percentile(all []time.Duration, p float64) time.Duration {
	slices.Sort(all)
	return all[min(int(p*float64(len(all))), len(all)-1)]
}

func tracing(ctx context.Context, b *bench) error {
	const tokens = 512
	asked, err := questions(tokens, false)
	if err != nil {
		return err
	}
	off, err := start(ctx, b.server, 64, tokens, options{})
	if err != nil {
		return err
	}
	defer off.stop()
	on, err := start(ctx, b.server, 64, tokens, options{traced: true, profiles: b.profiles})
	if err != nil {
		return err
	}
	defer on.stop()
	quietly := metadata.AppendToOutgoingContext(ctx, "traceparent", unsampled)
	loudly := metadata.AppendToOutgoingContext(ctx, "traceparent", sampled)
	for round := range b.rounds + 1 {
		plain, err := off.unary(quietly, off.raw, routeMethod, asked, 8, calls(tokens))
		if err != nil {
			return err
		}
		not, err := on.unary(quietly, on.raw, routeMethod, asked, 8, calls(tokens))
		if err != nil {
			return err
		}
		span, err := on.unary(loudly, on.raw, routeMethod, asked, 8, calls(tokens))
		if err != nil {
			return err
		}
		if round > 0 {
			b.value("trace-unsampled", not.cpu/plain.cpu)
			b.value("trace-sampled", (span.cpu-not.cpu)*1e6)
		}
	}
	return nil
}
