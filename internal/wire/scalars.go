package wire

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// What nearly every question has are fields of one value. They are read here as protobuf-go reads them: the last one of a
// number counts, a number that is too large loses its upper bits. Whatever else there is goes to protobuf-go.

// Field numbers of RouteRequest's single values.
const (
	fieldRequestID       = 1
	fieldModel           = 2
	fieldCacheSalt       = 7
	fieldExpectedOutput  = 9
	fieldPriority        = 10
	fieldSession         = 11
	fieldPhase           = 12
	fieldExplain         = 17
	fieldDryRun          = 18
	fieldMaxAlternatives = 19
	fieldTTFTTarget      = 20
	fieldTPOTTarget      = 21
	fieldMaxQueue        = 22
	fieldTenant          = 23
)

// Field numbers of RouteStreamRequest's.
const (
	fieldTag         = 1
	fieldTimeout     = 3
	fieldTraceparent = 4
)

// scalar reads a field whose beginning has been read, if it is a single value of m. Not is: it is not, and nothing was read.
// Not ok: protobuf-go would refuse it.
func (q *Question) scalar(s *scanner, m *kvoraclev1.RouteRequest, num protowire.Number, kind protowire.Type, size int) (is, ok bool) {
	switch kind {
	case protowire.BytesType:
		var to *string
		switch int32(num) {
		case fieldRequestID:
			to = &m.RequestId
		case fieldModel:
			if m.Model, ok = s.text(size, q.model); ok {
				q.model = m.Model
			}
			return true, ok
		case fieldCacheSalt:
			to = &m.CacheSalt
		case fieldSession:
			to = &m.SessionId
		case fieldTenant:
			to = &m.TenantId
		default:
			return false, true
		}
		*to, ok = s.text(size, *to)
		return true, ok
	case protowire.VarintType:
		return numberOf(s, m, num)
	case protowire.Fixed64Type:
		var to *float64
		switch int32(num) {
		case fieldTTFTTarget:
			to = &m.TtftTargetSeconds
		case fieldTPOTTarget:
			to = &m.TpotTargetSeconds
		case fieldMaxQueue:
			to = &m.MaxQueueSeconds
		default:
			return false, true
		}
		var b [8]byte
		s.copyTo(b[:0], size)
		*to = math.Float64frombits(binary.LittleEndian.Uint64(b[:]))
		return true, true
	case protowire.Fixed32Type, protowire.StartGroupType, protowire.EndGroupType:
	}
	return false, true
}

// numberOf is scalar for varints.
func numberOf(s *scanner, m *kvoraclev1.RouteRequest, num protowire.Number) (is, ok bool) {
	switch int32(num) {
	case fieldExpectedOutput, fieldPriority, fieldPhase, fieldExplain, fieldDryRun, fieldMaxAlternatives:
	default:
		return false, true
	}
	v, ok := s.varint()
	switch int32(num) {
	case fieldExpectedOutput:
		m.ExpectedOutputTokens = uint32(v)
	case fieldPriority:
		m.Priority = int32(v)
	case fieldPhase:
		m.Phase = kvoraclev1.Phase(v)
	case fieldExplain:
		m.Explain = v != 0
	case fieldDryRun:
		m.DryRun = v != 0
	case fieldMaxAlternatives:
		m.MaxAlternatives = uint32(v)
	}
	return true, ok
}

// scalarOf is scalar for the envelope.
func scalarOf(s *scanner, m *kvoraclev1.RouteStreamRequest, num protowire.Number, kind protowire.Type, size int) (is, ok bool) {
	switch {
	case num == fieldTag && kind == protowire.VarintType:
		m.Tag, ok = s.varint()
	case num == fieldTimeout && kind == protowire.VarintType:
		var v uint64
		v, ok = s.varint()
		m.TimeoutMs = uint32(v)
	case num == fieldTraceparent && kind == protowire.BytesType:
		m.Traceparent, ok = s.text(size, m.Traceparent)
	default:
		return false, true
	}
	return true, ok
}

// text reads the next n bytes as a string; not ok: they are not UTF-8. Where they are what is known already, which is UTF-8,
// they are not copied.
func (s *scanner) text(n int, known string) (_ string, ok bool) {
	b := s.rest[:min(n, len(s.rest))]
	if len(b) < n { // it lies in several pieces
		b = s.copyTo(make([]byte, 0, n), n)
	} else {
		s.skip(n)
	}
	if string(b) == known {
		return known, true
	}
	return string(b), utf8.Valid(b)
}
