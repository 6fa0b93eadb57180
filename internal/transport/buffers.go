package transport

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Pool is gRPC's buffers by powers of two. gRPC's own pool has nothing between 32 KB and 1 MB, and clears all of what
// it gives out: a message of 32 KB and a byte would cost the clearing of 1 MB. Whoever takes a buffer here overwrites all
// that it uses, so nothing is cleared. The zero value is ready; all methods may be called concurrently.
type Pool struct {
	sizes [largestBuffer - smallestBuffer + 1]sync.Pool // of *[]byte with at least 1 << (smallestBuffer + i) of capacity
}

const (
	smallestBuffer = 11 // 2 KiB: gRPC does not count references to anything up to 1 KiB
	largestBuffer  = 23 // 8 MiB: above it, memory is the collector's
)

var _ mem.BufferPool = (*Pool)(nil)

// Get implements mem.BufferPool.
func (p *Pool) Get(length int) *[]byte {
	class := max(bits.Len(uint(max(length, 1)-1)), smallestBuffer)
	if class > largestBuffer {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.sizes[class-smallestBuffer].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<class)
	return &b
}

// Put implements mem.BufferPool.
func (p *Pool) Put(b *[]byte) {
	class := bits.Len(uint(cap(*b))) - 1 // what it surely can hold
	if class >= smallestBuffer && class <= largestBuffer {
		p.sizes[class-smallestBuffer].Put(b)
	}
}
