package main

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// door is an address that stays while the processes behind it come and go. Closed, it cuts what is open and lets nobody
// in.
type door struct {
	lis net.Listener

	mu     sync.Mutex
	behind string // empty: closed
	open   []net.Conn
	wg     sync.WaitGroup
}

func newDoor(t *testing.T) *door {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{lis: lis}
	d.wg.Go(d.accept)
	t.Cleanup(func() {
		_ = lis.Close()
		d.set("")
		d.wg.Wait()
	})
	return d
}

func (d *door) accept() {
	for {
		in, err := d.lis.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		if d.behind == "" {
			d.mu.Unlock()
			_ = in.Close()
			continue
		}
		out, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", d.behind)
		if err != nil {
			d.mu.Unlock()
			_ = in.Close()
			continue
		}
		d.open = append(d.open, in, out)
		d.mu.Unlock()
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			d.wg.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				_ = way[0].Close()
				_ = way[1].Close()
			})
		}
	}
}

// set says who is behind the door, and cuts what leads to who was.
func (d *door) set(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.behind = address
	for _, c := range d.open {
		_ = c.Close()
	}
	d.open = nil
}
