package sim

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Limits of what ReadTrace accepts. They keep a hostile or mistaken file from taking all memory; real traces are far
// below.
const (
	MaxLineBytes    = 8 << 20 // one line
	MaxRequests     = 1 << 20 // requests in a trace
	MaxHashes       = 1 << 26 // hash ids in all lines together
	MaxInput        = 1 << 22 // tokens of a prompt
	MaxOutput       = 1 << 20 // tokens to generate
	MaxSessionBytes = 256     // length of a session id

	// maxSeconds bounds all times: 300 years are more than Unix time has, and double precision still tells 2 us apart.
	maxSeconds = 1e10
)

// ReadOptions says how to read a trace. The zero value reads a Mooncake trace as it stands.
type ReadOptions struct {
	// BlockSize is how many tokens one hash id stands for, 1 to block.MaxSize; of prompts given as tokens or text, how
	// many are hashed together. 0: what the first line says in block_size; if nothing, 512 for hash ids, as in Mooncake's
	// traces, and 64 otherwise. A wrong one is noticed, because the number of ids then does not fit the prompt.
	BlockSize int
	// First keeps only so many requests from the file's start; the rest is not read. 0: all.
	First int
	// Spread moves requests with one and the same timestamp to moments within so many seconds after it, always the
	// same ones. For traces with coarse clocks: Mooncake's conversation trace ticks every 3 s, and replayed as it is it
	// tests herds. 0: as they stand.
	Spread float64
}

// ReadTrace reads JSON lines, plain or gzip, in Mooncake's fields: timestamp (ms), output_length (tokens), optionally
// session_id and delay (ms), and the prompt as one of
//
//	hash_ids   with input_length (tokens): one id per block and one for an unfinished last block; equal ids mean equal tokens
//	token_ids  the prompt itself
//	messages   an OpenAI-style chat: role and content of each, which are taken as they stand, 4 bytes a token
//	prompt     text, in the same way
//
// A missing output_length is read from max_tokens. Other fields are ignored, and so are blank lines. Requests are put in
// order of their timestamps, those with equal ones in the file's order; the earliest arrives at 0. Of tokens and text
// only hashes are kept.
//
// An error names the line and the field. Whatever is outside the limits above is refused, and so is a file without
// requests.
func ReadTrace(r io.Reader, o ReadOptions) (*Trace, error) {
	p, err := newParser(o)
	if err != nil {
		return nil, err
	}
	in := bufio.NewReader(r)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("sim: gzip: %w", err)
		}
		in = bufio.NewReader(z)
	}
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, MaxLineBytes)
	line := 0
	for (o.First == 0 || len(p.requests) < o.First) && sc.Scan() {
		line++
		if b := bytes.TrimSpace(sc.Bytes()); len(b) > 0 {
			if err := p.add(b); err != nil {
				return nil, fmt.Errorf("sim: line %d: %w", line, err)
			}
		}
	}
	if err := sc.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("want less than %d bytes", MaxLineBytes)
		}
		return nil, fmt.Errorf("sim: line %d: %w", line+1, err)
	}
	if len(p.requests) == 0 {
		return nil, errors.New("sim: no requests in the trace")
	}
	return p.finish(), nil
}

// record is one line. Pointers tell absent from zero.
type record struct {
	Timestamp *float64  `json:"timestamp"`
	Input     *int      `json:"input_length"`
	Output    *int      `json:"output_length"`
	MaxTokens *int      `json:"max_tokens"`
	Hashes    hashIDs   `json:"hash_ids"`
	Tokens    []uint32  `json:"token_ids"`
	Messages  []message `json:"messages"`
	Prompt    *string   `json:"prompt"`
	BlockSize int       `json:"block_size"`
	Session   string    `json:"session_id"`
	Delay     float64   `json:"delay"`
}

// parser collects what the lines say.
type parser struct {
	options  ReadOptions
	requests []*Request
	millis   []float64         // their timestamps as read
	names    map[uint64]uint32 // the file's hash ids to ours
	sessions map[string]string // one copy of each
	hashes   int
	rec      record // reused, for the ids' memory
}

func newParser(o ReadOptions) (*parser, error) {
	if err := inRange("ReadOptions.BlockSize", o.BlockSize, 0, block.MaxSize); err != nil {
		return nil, err
	}
	if err := inRange("ReadOptions.First", o.First, 0, MaxRequests); err != nil {
		return nil, err
	}
	if err := inRange("ReadOptions.Spread", o.Spread, 0, maxSeconds); err != nil {
		return nil, err
	}
	return &parser{options: o, names: map[uint64]uint32{}, sessions: map[string]string{}}, nil
}

// add takes one line that is not blank.
func (p *parser) add(line []byte) error {
	rec := &p.rec
	*rec = record{Hashes: rec.Hashes[:0]}
	if err := json.Unmarshal(line, rec); err != nil {
		if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && te.Field != "" {
			return fmt.Errorf("%s: got %s, want %s", te.Field, te.Value, te.Type)
		}
		return err
	}
	if err := p.chooseSize(rec); err != nil {
		return err
	}
	if err := rec.hash(p.options.BlockSize); err != nil {
		return err
	}
	if err := rec.check(p.options.BlockSize); err != nil {
		return err
	}
	if len(p.requests) == MaxRequests {
		return fmt.Errorf("got more than %d requests", MaxRequests)
	}
	if p.hashes += len(rec.Hashes); p.hashes > MaxHashes {
		return fmt.Errorf("hash_ids: got more than %d in all lines together", MaxHashes)
	}
	hs := make([]uint32, len(rec.Hashes))
	for i, h := range rec.Hashes {
		name, ok := p.names[h]
		if !ok {
			// Each (name, offset in the block) must have a token of its own.
			if most := (1 << 32) / uint64(p.options.BlockSize); uint64(len(p.names)) == most {
				return fmt.Errorf("hash_ids: got more than %d different ones", most)
			}
			name = uint32(len(p.names))
			p.names[h] = name
		}
		hs[i] = name
	}
	session, ok := p.sessions[rec.Session]
	if !ok {
		session = rec.Session
		p.sessions[session] = session
	}
	p.millis = append(p.millis, *rec.Timestamp)
	p.requests = append(p.requests, &Request{
		Input: *rec.Input, Output: *rec.Output, Session: session, Delay: rec.Delay / 1000,
		hashes: hs, blockSize: p.options.BlockSize,
	})
	return nil
}

// check says what is wrong with a line.
func (r *record) check(blockSize int) error {
	switch {
	case r.Timestamp == nil:
		return errors.New("timestamp: missing")
	case r.Input == nil:
		return errors.New("input_length: missing")
	case r.Output == nil:
		return errors.New("output_length: missing")
	case len(r.Session) > MaxSessionBytes:
		return fmt.Errorf("session_id: got %d bytes, want at most %d", len(r.Session), MaxSessionBytes)
	}
	if err := inRange("timestamp", *r.Timestamp, 0, 1000*maxSeconds); err != nil {
		return err
	}
	if err := inRange("delay", r.Delay, 0, 1000*maxSeconds); err != nil {
		return err
	}
	if err := inRange("input_length", *r.Input, 1, MaxInput); err != nil {
		return err
	}
	if err := inRange("output_length", *r.Output, 1, MaxOutput); err != nil {
		return err
	}
	if want := ceilDiv(*r.Input, blockSize); len(r.Hashes) != want {
		return fmt.Errorf("hash_ids: got %d ids, want %d for %d tokens in blocks of %d",
			len(r.Hashes), want, *r.Input, blockSize)
	}
	return nil
}

// finish orders the requests.
func (p *parser) finish() *Trace {
	first := slices.Min(p.millis)
	for i, r := range p.requests {
		r.Arrival = (p.millis[i] - first) / 1000
	}
	slices.SortStableFunc(p.requests, func(a, b *Request) int { return cmp.Compare(a.Arrival, b.Arrival) })
	spread(p.requests, p.options.Spread)
	for i, r := range p.requests {
		r.Index = i
	}
	return &Trace{Requests: p.requests, BlockSize: p.options.BlockSize}
}

// hashIDs is an array of unsigned integers of up to 64 bits. encoding/json alone would read a null as 0.
type hashIDs []uint64

var errHashes = errors.New("hash_ids: want an array of integers from 0 to 2^64-1")

// UnmarshalJSON reads the array's elements, reusing the memory. The bytes are valid JSON.
func (h *hashIDs) UnmarshalJSON(b []byte) error {
	if b[0] != '[' {
		return errHashes
	}
	*h = (*h)[:0]
	for i := 1; i < len(b)-1; {
		if b[i] < '0' || b[i] > '9' {
			if !bytes.ContainsRune([]byte(" \t\r\n,"), rune(b[i])) {
				return errHashes
			}
			i++
			continue
		}
		var v uint64
		for ; b[i] >= '0' && b[i] <= '9'; i++ {
			next := v*10 + uint64(b[i]-'0')
			if v > (1<<64-1)/10 || next < v*10 {
				return errHashes
			}
			v = next
		}
		*h = append(*h, v)
	}
	return nil
}

// inRange checks lo <= got <= hi in words.
func inRange[T cmp.Ordered](field string, got, lo, hi T) error {
	if got >= lo && got <= hi {
		return nil
	}
	return fmt.Errorf("%s: got %v, want %v to %v", field, got, lo, hi)
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
