//go:build unix

package zmtp

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// processorTime is what this process has used of all cores.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSubscribe is a message from Send of our PUB to Recv of our SUB over loopback TCP, both on one core (-cpu=1, as
// `make bench-zmtp` runs it); msgs/cpu-s is per second of processor time, the kernel's included, and does not count what
// others on the machine took. Sizes are those of payloads; topic and sequence number come on top, as engines send them. The
// publisher waits for the subscriber now and then, so that nothing is lost.
func BenchmarkSubscribe(b *testing.B) {
	for _, size := range []int{100, 1000, 10_000, 1 << 20} {
		b.Run(fmt.Sprintf("payload=%d", size), func(b *testing.B) {
			pub, err := Listen(b.Context(), Config{Type: PUB, Endpoint: "tcp://127.0.0.1:*"})
			if err != nil {
				b.Fatal(err)
			}
			defer pub.Close()
			sub, err := Dial(b.Context(), Config{Type: SUB, Endpoint: pub.Endpoint(), Topics: []string{"kv@"}})
			if err != nil {
				b.Fatal(err)
			}
			defer sub.Close()
			if err := pub.WaitPeers(b.Context(), 1); err != nil {
				b.Fatal(err)
			}
			if _, err := sub.Recv(b.Context()); err != nil { // connected
				b.Fatal(err)
			}
			message := [][]byte{[]byte("kv@engine-0@model"), make([]byte, 8), make([]byte, size)}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			used := processorTime(b)
			b.ResetTimer()
			go func() {
				for i := range b.N {
					_ = pub.Send(b.Context(), message) // what is lost is missed below
					if i%50 == 49 {
						_ = pub.Flush(b.Context())
					}
				}
			}()
			for range b.N {
				if d, err := sub.Recv(b.Context()); err != nil || len(d.Message) != 3 {
					b.Fatal(d, err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
			b.ReportMetric(float64(b.N)/(processorTime(b)-used).Seconds(), "msgs/cpu-s")
			if lost := pub.Stats().SendDropped; lost > 0 {
				b.Fatalf("%d lost", lost)
			}
		})
	}
}
