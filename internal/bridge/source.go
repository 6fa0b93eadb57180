package bridge

import (
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/kvoracle/kvoracle/internal/engine/feed"
	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/engine/zmtp"
)

// way is how an engine's events come.
type way uint8

const (
	overZeroMQ way = iota // a publisher for each rank, perhaps with a memory
	overGRPC              // one stream for all ranks, from SMG's servicer
	overHTTP              // taken out of TensorRT-LLM's buffer, again and again
)

// wayOf reads it off an address.
func wayOf(events string) way {
	switch scheme, _, _ := strings.Cut(events, "://"); scheme {
	case "grpc", "grpcs":
		return overGRPC
	case "http", "https":
		return overHTTP
	}
	return overZeroMQ
}

// isTLS: the servicer at an address of events speaks TLS.
func isTLS(events string) bool { return strings.HasPrefix(events, "grpcs://") }

// decoder reads a payload of that way.
func (x way) decode(b *kvevents.Batch, payload []byte, l *kvevents.Limits) error {
	switch x {
	case overGRPC:
		return b.DecodeProto(payload, l)
	case overHTTP:
		return b.DecodeJSON(payload, l)
	case overZeroMQ:
	}
	return b.Decode(payload, l)
}

// item is what a way without sockets of ranks hands to a rank.
type item struct {
	kind     itemKind
	sequence uint64
	m        message
	err      error // of closed
}

type itemKind uint8

const (
	itemBatch  itemKind = iota
	itemRetold          // a batch, with which begins an account of all that the rank holds
	itemOpened          // from now on they come
	itemClosed          // they have ended
	itemLost            // they have ended, and some are lost
)

// taken takes it.
func (r *rank) taken(x *item, now time.Time) {
	switch x.kind {
	case itemBatch, itemRetold:
		r.count.lastEvent.Store(now.UnixNano())
		if x.kind == itemRetold {
			r.feed.Retell(x.sequence)
		}
		r.feed.Live(x.sequence, x.m, now)
	case itemOpened:
		r.count.isConnected.Store(true)
		r.log.Info("kvoracle bridge: the engine's events are there")
		if r.w.way == overHTTP {
			// The engine keeps what nobody has taken, and the first of another process has number 0: nothing is to be proven.
			return
		}
		r.keepUp()
		r.feed.Connected(now)
		r.prove()
	case itemClosed, itemLost:
		r.count.isConnected.Store(false)
		r.log.Info("kvoracle bridge: the engine's events have ended", "error", x.err)
		if x.kind == itemLost {
			r.feed.Lost(now)
		}
	}
}

// prove asks whether the engine behind a new connection is the one from before, where no replay can tell.
func (r *rank) prove() {
	if r.replay == "" && r.feed.TrustNow() != feed.Unheard && r.w.isSameProcess(r.ctx(), r.life) {
		r.feed.Proven()
	}
}

// checkAddress refuses an address of events that cannot be.
func checkAddress(events string, ranks int) error {
	switch wayOf(events) {
	case overGRPC:
		_, at, _ := strings.Cut(events, "://")
		if _, _, err := splitTCP("tcp://" + at); err != nil {
			return errors.New("want grpc://host:port or grpcs://host:port")
		}
		return nil
	case overHTTP:
		if u, err := url.Parse(events); err != nil || u.Host == "" || u.Path == "" {
			return errors.New("want http://host:port/kv_cache_events")
		}
		return nil
	case overZeroMQ:
	}
	_, err := rankEndpoint(events, max(ranks, 1)-1)
	return err
}

// socket is how a rank's publisher is heard.
func socket(at, topic string) zmtp.Config {
	c := zmtp.Config{
		Type: zmtp.SUB, Endpoint: at, DropWhenFull: true, QueueBytes: QueueBytes, QueueMessages: queueMessages, MaxMessage: maxMessage,
	}
	if topic != "" {
		c.Topics = []string{topic}
	}
	return c
}
