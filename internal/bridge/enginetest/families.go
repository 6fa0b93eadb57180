package enginetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/http"
	"strings"
	"time"
)

// sglangPayload is a batch as SGLang writes it since September 2026: maps that leave out what is not there, signed hashes.
func sglangPayload(events []event, size, rank int, at time.Time) []byte {
	p := packer{b: make([]byte, 0, 256)}
	p.list(3)
	p.b = binary.BigEndian.AppendUint64(append(p.b, 0xcb), math.Float64bits(float64(at.UnixNano())/1e9))
	p.list(len(events))
	for i := range events {
		e := &events[i]
		switch {
		case e.cleared:
			p.b = append(p.b, 0x81)
			p.text("type")
			p.text("AllBlocksCleared")
		case e.removed != nil:
			p.b = append(p.b, 0x83)
			p.text("type")
			p.text("BlockRemoved")
			p.text("block_hashes")
			p.list(len(e.removed))
			for _, h := range e.removed {
				p.signed(int64(h))
			}
			p.text("medium")
			p.text("GPU")
		default:
			p.b = append(p.b, 0x87)
			if e.variant.Salt != "" {
				p.b[len(p.b)-1]++
			}
			p.text("type")
			p.text("BlockStored")
			p.text("block_hashes")
			p.list(len(e.stored))
			for _, h := range e.stored {
				p.signed(int64(h))
			}
			p.text("parent_block_hash")
			if e.isRoot {
				p.nothing()
			} else {
				p.signed(int64(e.parent))
			}
			p.text("token_ids")
			p.tokens(e.tokens)
			p.text("block_size")
			p.number(uint64(size))
			p.text("lora_id")
			p.nothing()
			p.text("medium")
			p.text("GPU")
			if e.variant.Salt != "" {
				p.text("cache_salt")
				p.text(e.variant.Salt)
			}
		}
	}
	p.number(uint64(rank))
	return p.b
}

func (p *packer) signed(v int64) { p.b = binary.BigEndian.AppendUint64(append(p.b, 0xd3), uint64(v)) }

// loadPayload is a message of SGLang's load socket.
func loadPayload(running, waiting, uncached, rank int) []byte {
	p := packer{}
	p.list(11)
	p.text("LoadStat")
	for _, v := range []int{running, waiting, 100, 1000, rank, uncached, 100, 256, 0, 0} {
		p.number(uint64(v))
	}
	return p.b
}

// serveSGLang serves what SGLang says of itself.
func (e *Engine) serveSGLang(mux *http.ServeMux) {
	port := func(endpoint string) string {
		_, port, _ := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
		return port
	}
	name, size, ranks := e.cfg.Name, e.cfg.BlockSize, e.cfg.Ranks
	sub, rep, load := port(e.subs[0]), port(e.reps[0]), port(e.ranks[0].load.Endpoint())
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"served_model_name":%q,"page_size":%d,"dp_size":%d,"max_running_requests":256,"kv_events":{"publisher":"zmq",
			"endpoint_host":"*","endpoint_port_base":%s,"replay_endpoint_port_base":%s,"topic":"kv","block_size":%d,"dp_size":%d,
			"load_endpoint_port_base":%s,"load_topic":"load"}}`, name, size, ranks, sub, rep, size, ranks, load)
	})
	mux.HandleFunc("GET /v1/loads", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"loads":[{"dp_rank":0,"num_running_reqs":5,"num_waiting_reqs":2,"num_waiting_uncached_tokens":70,
			"num_used_tokens":40,"max_total_num_tokens":256,"max_running_requests":256}]}`)
	})
}

// gather puts events into the buffer, which forgets the oldest.
func (r *rank) gather(events []event, size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == 0 && r.eventID == 0 {
		r.keep(`{"type":"created","num_blocks_per_cache_level":[64,0]}`)
	}
	for i := range events {
		e := &events[i]
		var b strings.Builder
		if e.removed != nil {
			fmt.Fprintf(&b, `{"type":"removed","block_hashes":[%d]}`, uint64(e.removed[0]))
			r.keep(b.String())
			continue
		}
		parent, salt := "null", "null"
		if !e.isRoot {
			parent = fmt.Sprint(uint64(e.parent))
		}
		if e.variant.Salt != "" {
			salt = fmt.Sprintf("%q", e.variant.Salt)
		}
		fmt.Fprintf(&b, `{"type":"stored","parent_hash":%s,"blocks":[`, parent)
		for j, h := range e.stored {
			if j > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"type":"stored_block","block_hash":%d,"cache_level":0,"priority":35,"mm_keys":[],"cache_salt":%s,"tokens":[`, uint64(h), salt)
			for k, t := range e.tokens[j*size : (j+1)*size] {
				if k > 0 {
					b.WriteByte(',')
				}
				fmt.Fprintf(&b, `{"type":"unique_token","token_id":%d,"token_extra_id":0}`, t)
			}
			b.WriteString("]}")
		}
		b.WriteString("]}")
		r.keep(b.String())
	}
}

// keep numbers an event and keeps it, but for those that a full buffer has lost.
func (r *rank) keep(data string) {
	if r.silent > 0 {
		r.silent--
	} else {
		r.buffer = append(r.buffer, fmt.Sprintf(`{"event_id":%d,"window_size":4096,"attention_dp_rank":%d,"data":%s}`, r.eventID, r.number, data))
	}
	r.eventID++
	r.next = r.eventID
}

// serveTRTLLM serves events, once each, and statistics.
func (e *Engine) serveTRTLLM(mux *http.ServeMux) {
	ranks, size, blocks := e.ranks, e.cfg.BlockSize, e.cfg.Blocks
	mux.HandleFunc("POST /kv_cache_events", func(w http.ResponseWriter, _ *http.Request) {
		var all []string
		for _, r := range ranks {
			r.mu.Lock()
			all = append(all, r.buffer...)
			r.buffer = nil
			r.mu.Unlock()
		}
		_, _ = fmt.Fprintf(w, "[%s]", strings.Join(all, ","))
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		var all []string
		for i := range ranks {
			all = append(all, fmt.Sprintf(`{"attentionDpRank":%d,"numActiveRequests":%d,"numQueuedRequests":0,"maxNumActiveRequests":64,
				"kvCacheStats":{"maxNumBlocks":%d,"usedNumBlocks":3,"tokensPerBlock":%d}}`, i, i+1, blocks, size))
		}
		_, _ = fmt.Fprintf(w, "[%s]", strings.Join(all, ","))
	})
}
