package kvevents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
)

// Frame is one message of a stream, live or replayed. Its slices are the message's own.
type Frame struct {
	// Topic is the topic, without what may follow it after a NUL.
	Topic []byte
	// Epoch is what a topic says of the engine's life ("NUL sgl-kv-epoch=..."), if it does. A hint, not released yet.
	Epoch []byte
	// Sequence is the batch's number.
	Sequence uint64
	// Payload is the batch.
	Payload []byte
}

// ErrFrames is of a message that has not the parts it should have.
var ErrFrames = errors.New("kvevents: message is not topic, sequence of 8 bytes, payload")

// endSequence marks the end of a replay.
const endSequence = math.MaxUint64

// ParseLive reads a published message: topic, sequence, payload.
func ParseLive(parts [][]byte) (Frame, error) {
	if len(parts) != 3 || len(parts[1]) != 8 {
		return Frame{}, ErrFrames
	}
	f := Frame{Sequence: binary.BigEndian.Uint64(parts[1]), Payload: parts[2]}
	f.Topic, f.Epoch = splitTopic(parts[0])
	return f, nil
}

// ParseReplay reads an answer to a replay request as a DEALER gets it: an empty part, the topic (since vLLM's June 2026 and
// in TensorRT-LLM; SGLang and older vLLM have none), sequence, payload. isEnd: there will be no more.
func ParseReplay(parts [][]byte) (f Frame, isEnd bool, err error) {
	n := len(parts)
	if n != 3 && n != 4 || len(parts[0]) != 0 || len(parts[n-2]) != 8 {
		return Frame{}, false, ErrFrames
	}
	f = Frame{Sequence: binary.BigEndian.Uint64(parts[n-2]), Payload: parts[n-1]}
	if n == 4 {
		f.Topic, f.Epoch = splitTopic(parts[1])
	}
	return f, f.Sequence == endSequence && len(f.Payload) == 0, nil
}

// ReplayRequest asks for everything from a sequence on, as a DEALER sends it: without the empty part there is no answer.
func ReplayRequest(from uint64) [][]byte {
	return [][]byte{{}, binary.BigEndian.AppendUint64(nil, from)}
}

func splitTopic(t []byte) (topic, epoch []byte) {
	topic, rest, _ := bytes.Cut(t, []byte{0})
	for len(rest) > 0 {
		var part []byte
		part, rest, _ = bytes.Cut(rest, []byte{0})
		if e, ok := bytes.CutPrefix(part, []byte("sgl-kv-epoch=")); ok {
			epoch = e
		}
	}
	return topic, epoch
}

// LoadStat is what SGLang publishes on its load socket: frames topic, sequence, payload like events.
type LoadStat struct {
	Running, Waiting    int // requests
	Tokens, TotalTokens int // used, and room for; no room: not known
	Rank                int // attention data-parallel rank; -1: not said
	WaitingUncached     int // prompt tokens still to be computed; -1: not said (before September 2026)
	MaxRunning          int // requests that run at once at most; 0: not said
}

// DecodeLoadStat reads the payload of a load message.
func DecodeLoadStat(payload []byte) (LoadStat, error) {
	d := decoder{reader: reader{b: payload}}
	s := LoadStat{Rank: -1, WaitingUncached: -1}
	n, ok := d.array()
	if !ok || n < 5 {
		return LoadStat{}, ErrMalformed
	}
	if tag, ok := d.text(); !ok || string(tag) != "LoadStat" {
		return LoadStat{}, ErrMalformed
	}
	for _, into := range [...]*int{&s.Running, &s.Waiting, &s.Tokens, &s.TotalTokens} {
		if !d.count(into) {
			return LoadStat{}, ErrMalformed
		}
	}
	for i := 5; i < n; i++ {
		var into *int
		switch i {
		case 5:
			into = &s.Rank
		case 6:
			into = &s.WaitingUncached
		case 8:
			into = &s.MaxRunning
		}
		if isNil := d.isNil(); isNil {
			continue
		}
		if into != nil && !d.count(into) || into == nil && !d.skip() {
			return LoadStat{}, ErrMalformed
		}
	}
	if d.i != len(payload) {
		return LoadStat{}, ErrMalformed
	}
	return s, nil
}
