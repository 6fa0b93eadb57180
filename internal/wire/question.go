package wire

import (
	"encoding/binary"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Question is a RouteRequest, or the RouteStreamRequest around it, read without making a slice of its tokens or hashes:
// they stay where they were received, and are hashed from there. Single values are read here (scalars.go), and everything else
// of the message is decoded by protobuf-go from a copy without those and the array, so a Question is what protobuf-go would have made of the same bytes, in every case: where
// the array is not one packed field, the whole message goes to protobuf-go. Only Request sees more: a message that was sent
// with its prompt in two forms has one to protobuf-go, and is refused.
//
// It is meant to be reused. What Request gives lives until the next Read or Reset, and so must the bytes that were read.
// It is not safe for concurrent use.
type Question struct {
	route    kvoraclev1.RouteRequest // without the array that packed has
	envelope kvoraclev1.RouteStreamRequest
	has      bool // the envelope has a question

	packed [][]byte // the array as it came, if form says so
	form   form
	forms  forms // those that the bytes had, if there may be several; a message keeps the last

	skeleton, prompt []byte // working memory
	model            string // of the last question, which most have in common
	request          oracle.RouteRequest
}

// form is what the packed bytes of a question are.
type form uint8

const (
	nothing form = iota // the message is whole; it has its prompt, if any
	tokenIDs
	localHashes
	text // like nothing; remembered because a oneof has one form
)

// Field numbers of route.proto.
const (
	fieldTokens      = 3 // of RouteRequest
	fieldBlockHashes = 4
	fieldText        = 5
	fieldTokenIDs    = 1 // of TokenPrompt
	fieldLocalHashes = 3 // of BlockHashPrompt
	fieldRequest     = 2 // of RouteStreamRequest
)

// mostWorking is the working memory kept for the next question.
const mostWorking = 64 << 10

// Reset lets go of everything but working memory.
func (q *Question) Reset() {
	if cap(q.skeleton)+cap(q.prompt) > mostWorking {
		q.skeleton, q.prompt = nil, nil
	}
	q.route.Reset()
	q.envelope.Reset()
	clear(q.packed)
	q.packed, q.form, q.forms, q.has = q.packed[:0], nothing, 0, false
	q.request = oracle.RouteRequest{}
}

// Read reads a RouteRequest from pieces of memory. The error is protobuf-go's.
func (q *Question) Read(pieces [][]byte) error {
	q.Reset()
	q.has = true
	s := newScanner(pieces)
	skeleton, ok := q.scan(&s, s.left, q.skeleton[:0])
	q.skeleton = skeleton
	if ok {
		return merge(skeleton, &q.route)
	}
	q.whole()
	b := q.gather(pieces)
	q.forms = formsOf(b)
	return proto.Unmarshal(b, &q.route)
}

// ReadStreamed reads a RouteStreamRequest.
func (q *Question) ReadStreamed(pieces [][]byte) error {
	q.Reset()
	s := newScanner(pieces)
	ok, err := q.scanEnvelope(&s)
	if ok {
		return err
	}
	q.whole()
	b := q.gather(pieces)
	q.forms = formsOfStreamed(b)
	err = proto.Unmarshal(b, &q.envelope)
	q.has = q.envelope.GetRequest() != nil
	return err
}

// merge reads what of a message is not read here.
func merge(skeleton []byte, m proto.Message) error {
	if len(skeleton) == 0 {
		return nil
	}
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(skeleton, m)
}

// whole forgets what a scan found.
func (q *Question) whole() {
	clear(q.packed)
	q.packed, q.form = q.packed[:0], nothing
}

// gather joins the pieces in working memory: protobuf-go keeps none of it.
func (q *Question) gather(pieces [][]byte) []byte {
	b := q.skeleton[:0]
	for _, p := range pieces {
		b = append(b, p...)
	}
	q.skeleton = b
	return b
}

// scanEnvelope reads a RouteStreamRequest but for its question's array. The error is of what protobuf-go had to read.
func (q *Question) scanEnvelope(s *scanner) (ok bool, err error) {
	for s.left > 0 {
		num, kind, size, ok := s.field()
		if !ok {
			return false, nil
		}
		if num == fieldRequest && kind == protowire.BytesType {
			if q.has { // twice is merged into one
				return false, nil
			}
			q.has, q.envelope.Request = true, &q.route
			if q.skeleton, ok = q.scan(s, size, q.skeleton[:0]); !ok {
				return false, nil
			}
			if err := merge(q.skeleton, &q.route); err != nil {
				return true, err
			}
			continue
		}
		is, ok := scalarOf(s, &q.envelope, num, kind, size)
		if !is && ok { // none that this version knows
			if q.skeleton, ok = s.keep(q.skeleton[:0], num, kind, size); ok {
				err = merge(q.skeleton, &q.envelope)
			}
		}
		if !ok || err != nil {
			return ok, err
		}
	}
	return true, nil
}

// scan reads the single values of the RouteRequest of the next size bytes, notes where its array lies, and copies the rest to
// dst.
func (q *Question) scan(s *scanner, size int, dst []byte) (_ []byte, ok bool) {
	after := s.left - size
	for s.left > after {
		num, kind, n, ok := s.field()
		if !ok || s.left-n < after {
			return dst, false
		}
		isPrompt := kind == protowire.BytesType && num >= fieldTokens && num <= fieldText
		if isPrompt && q.form != nothing {
			return dst, false // of several forms the last counts, and of one form the parts are merged
		}
		switch {
		case isPrompt && num == fieldTokens:
			q.form = tokenIDs
			ok = q.scanTokens(s, n)
		case isPrompt && num == fieldBlockHashes:
			q.form = localHashes
			dst, ok = q.scanHashes(s, n, dst)
		default:
			if isPrompt {
				q.form = text
			}
			var is bool
			if is, ok = q.scalar(s, &q.route, num, kind, n); !is && ok {
				dst, ok = s.keep(dst, num, kind, n)
			}
		}
		if !ok {
			return dst, false
		}
	}
	return dst, s.left == after
}

// scanTokens notes where the token ids of the TokenPrompt of the next size bytes lie: one packed field or none.
func (q *Question) scanTokens(s *scanner, size int) bool {
	after := s.left - size
	if size == 0 {
		return true
	}
	num, kind, n, ok := s.field()
	if !ok || num != fieldTokenIDs || kind != protowire.BytesType || s.left-n != after || n%4 != 0 {
		return false
	}
	q.packed = s.span(q.packed, n)
	return true
}

// scanHashes notes where the hashes of the BlockHashPrompt of the next size bytes lie, and copies the rest of it to dst.
func (q *Question) scanHashes(s *scanner, size int, dst []byte) (_ []byte, ok bool) {
	after := s.left - size
	isSeen := false
	rest := q.prompt[:0]
	for s.left > after {
		num, kind, n, ok := s.field()
		if !ok || s.left-n < after {
			return dst, false
		}
		switch {
		case num != fieldLocalHashes:
			if rest, ok = s.keep(rest, num, kind, n); !ok {
				return dst, false
			}
		case kind != protowire.BytesType || n%8 != 0 || isSeen:
			return dst, false
		default:
			isSeen = true
			q.packed = s.span(q.packed, n)
		}
	}
	q.prompt = rest
	dst = protowire.AppendTag(dst, fieldBlockHashes, protowire.BytesType)
	return protowire.AppendBytes(dst, rest), s.left == after
}

// message is the question's RouteRequest, nil if an envelope has none. It lacks the array that packed has.
func (q *Question) message() *kvoraclev1.RouteRequest {
	switch {
	case !q.has:
		return nil
	case q.envelope.GetRequest() != nil:
		return q.envelope.GetRequest()
	default:
		return &q.route
	}
}

// Tag is the caller's name for the question on its stream.
func (q *Question) Tag() uint64 { return q.envelope.GetTag() }

// Timeout is how long the question may wait; 0: no limit.
func (q *Question) Timeout() time.Duration {
	return time.Duration(q.envelope.GetTimeoutMs()) * time.Millisecond
}

// Traceparent names the question's parent on its stream; empty: none.
func (q *Question) Traceparent() string { return q.envelope.GetTraceparent() }

// Explain says that the answer shall have its reasons.
func (q *Question) Explain() bool { return q.message().GetExplain() }

// Request checks the question and turns it into the oracle's form.
func (q *Question) Request(l Limits) (*oracle.RouteRequest, error) {
	m := q.message()
	if names := q.forms.names(); len(names) > 1 {
		return nil, invalid(names[0], "given together with "+strings.Join(names[1:], " and "), "want the prompt in one form")
	}
	if len(m.GetMultimodal()) > 0 && q.form == tokenIDs {
		// What lies under images is hashed with them, token by token.
		m.Prompt = &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: unpack32(q.packed)}}
		q.whole()
	}
	if err := decodeRoute(m, q.packedPrompt(), l, &q.request); err != nil {
		return nil, err
	}
	return &q.request, nil
}

// packedPrompt is the array beside the message.
func (q *Question) packedPrompt() packedPrompt { return packedPrompt{form: q.form, pieces: q.packed} }

// packedPrompt is a prompt's array as it came.
type packedPrompt struct {
	form   form
	pieces [][]byte
}

// unpack32 makes the slice that protobuf-go would have made.
func unpack32(pieces [][]byte) []uint32 {
	out := make([]uint32, block.PackedLen(pieces)/4)
	s := newScanner(pieces)
	var b [4]byte
	for i := range out {
		s.copyTo(b[:0], 4)
		out[i] = binary.LittleEndian.Uint32(b[:])
	}
	return out
}
