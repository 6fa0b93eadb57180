// Command bridgebench measures what hearing engines costs a bridge, and prints one line for each thing promised of it:
//
//	bar NAME MEASURED LIMIT ok|short
//
// Three processes over real sockets: the server as it comes, a bridge on one core (GOMAXPROCS=1), and this one, which is the
// engines: ranks that publish at a steady rate, a batch each 20 ms, half of its events storing a block of 16 tokens and half
// removing one. It is meant to be run by `make bench-bridge` on a machine with nothing else to do.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kvoracle/kvoracle/bench/bars"
	"github.com/kvoracle/kvoracle/bench/child"
	"github.com/kvoracle/kvoracle/internal/bridge/enginetest"
	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

const (
	blockSize = 16
	step      = 20 * time.Millisecond
	patience  = 30 * time.Second
)

// settings is what can be asked of the bench.
type settings struct {
	ranks, holds int
	rate         int // events a second, of all ranks
	length       time.Duration
	oracle       string
	events       string
	profile      string
}

func main() {
	var s settings
	role := flag.String("role", "", "be one of the other processes: server, bridge")
	flag.IntVar(&s.ranks, "ranks", 16, "ranks that publish")
	flag.IntVar(&s.rate, "rate", 100_000, "events a second, of all of them")
	flag.IntVar(&s.holds, "holds", 20_000, "blocks each of them holds")
	flag.DurationVar(&s.length, "length", 15*time.Second, "how long they publish")
	flag.StringVar(&s.oracle, "oracle", "", "with -role=bridge: the oracle")
	flag.StringVar(&s.events, "events", "", "with -role=bridge: the ranks")
	flag.StringVar(&s.profile, "profile", "", "file for a processor profile of the bridge")
	flag.Parse()
	var err error
	switch *role {
	case "server":
		err = serve()
	case "bridge":
		err = hear(&s)
	default:
		err = measure(&s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bridgebench:", err)
		os.Exit(1)
	}
}

func measure(s *settings) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	oracle, err := child.Start("-role=server")
	if err != nil {
		return err
	}
	defer oracle.Stop()
	address, err := oracle.Line()
	if err != nil {
		return err
	}
	pubs := make([]*zmtp.Socket, s.ranks)
	ends := make([]string, s.ranks)
	for i := range pubs {
		pubs[i], err = zmtp.Listen(ctx, zmtp.Config{Type: zmtp.PUB, Endpoint: "tcp://127.0.0.1:*", SendMessages: 10_000})
		if err != nil {
			return err
		}
		defer pubs[i].Close()
		ends[i] = pubs[i].Endpoint()
	}
	bridge, err := child.Start("-role=bridge", "-oracle="+address, "-events="+strings.Join(ends, ","), "-profile="+s.profile)
	if err != nil {
		return err
	}
	defer bridge.Stop()
	for _, p := range pubs {
		if err := p.WaitPeers(ctx, 1); err != nil {
			return err
		}
	}
	before := bridge.CPU()
	began := time.Now()
	published := publish(ctx, s, pubs)
	f, err := await(bridge, published)
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	cpu := bridge.CPU() - before
	show := func(b bars.Bar, v float64) { b.Print([]float64{v}) }
	show(bars.Bar{Name: "bridge_events_offered", Unit: "1/s"}, float64(published)/s.length.Seconds())
	show(bars.Bar{Name: "bridge_events_taken", Unit: "share of those published", Limit: 1, AtLeast: true}, f.events/float64(published))
	show(bars.Bar{Name: "bridge_rate", Unit: "events/s, to the last one", Limit: 0.95 * float64(s.rate), AtLeast: true}, f.events/took)
	show(bars.Bar{Name: "bridge_cores", Unit: "processor seconds a second at 100,000 events/s", Limit: 1}, cpu/f.events*100_000)
	show(bars.Bar{Name: "bridge_memory", Unit: "MiB resident", Limit: 512}, f.resident)
	show(bars.Bar{Name: "bridge_event_cost", Unit: "us of processor time an event"}, cpu/f.events*1e6)
	return nil
}

// publish lets every rank publish for a while and returns how many events that were.
func publish(ctx context.Context, s *settings, pubs []*zmtp.Socket) int {
	each := max(s.rate*int(step/time.Millisecond)/1000/s.ranks, 1)
	steps := int(s.length / step)
	var all sync.WaitGroup
	for rank, p := range pubs {
		all.Go(func() {
			flow := enginetest.NewFlow(rank, blockSize, s.holds, 64)
			began := time.Now()
			timer := time.NewTimer(0)
			defer timer.Stop()
			for n := range steps {
				timer.Reset(time.Until(began.Add(time.Duration(n) * step)))
				<-timer.C
				_ = p.Send(ctx, [][]byte{{}, binary.BigEndian.AppendUint64(nil, uint64(n)), flow.Next(each)})
			}
		})
	}
	all.Wait()
	return each * steps * len(pubs)
}

// await waits until the bridge has told everything, or does not go on.
func await(bridge *child.Process, published int) (figures, error) {
	deadline := time.Now().Add(patience)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		f, err := ask(bridge)
		if err != nil {
			return f, err
		}
		if f.events >= float64(published) && f.outbox == 0 {
			return f, nil
		}
		if time.Now().After(deadline) {
			if f.events == 0 {
				return f, errors.New("the bridge took nothing")
			}
			return f, nil
		}
		<-again.C
	}
}
