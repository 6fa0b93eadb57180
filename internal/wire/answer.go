package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// AppendAnswer appends the bytes of EncodeAnswer's message without candidate rows, making no message on the way: a
// decision's answer is a dozen small messages in one. A test holds the two together.
func AppendAnswer(b []byte, a *oracle.Answer) []byte {
	if a.Decision != 0 {
		b = protowire.AppendTag(b, 1, protowire.BytesType)
		b = protowire.AppendVarint(b, decisionDigits)
		b = appendDecision(b, a.Decision)
	}
	b = appendTarget(b, 2, a.Target)
	if a.Prefill != nil {
		b = appendTarget(b, 3, *a.Prefill)
	}
	b = appendTiers(b, 4, a.Matched)
	b = appendUint(b, 5, uint64(a.PromptTokens))
	b = appendDouble(b, 6, a.TTFT)
	for i := range a.Alternatives {
		alt := &a.Alternatives[i]
		var at int
		b, at = begin(b, 7)
		b = appendTarget(b, 1, alt.Target)
		b = appendTiers(b, 2, alt.Matched)
		b = appendDouble(b, 3, alt.TTFT)
		if alt.Prefill != nil {
			b = appendTarget(b, 4, *alt.Prefill)
		}
		b = appendConfidence(b, 5, alt.Blocks, alt.Load)
		if alt.Prefill != nil {
			b = appendConfidence(b, 6, alt.PrefillBlocks, alt.PrefillLoad)
		}
		b = end(b, at)
	}
	b = appendConfidence(b, 8, a.Blocks, a.Load)
	b = appendString(b, 9, a.Policy)
	b = appendUint(b, 10, uint64(choiceReason(a.Reason)))
	b = appendDouble(b, 12, a.Lease.Seconds())
	if a.Repeated {
		b = appendUint(b, 13, 1)
	}
	b = appendUint(b, 14, uint64(sessionOutcome(a.Session)))
	if a.Prefill != nil {
		b = appendTiers(b, 15, a.PrefillMatched)
	}
	b = appendDouble(b, 16, a.TPOT)
	if a.MissesTTFT {
		b = appendUint(b, 17, 1)
	}
	if a.MissesTPOT {
		b = appendUint(b, 18, 1)
	}
	b = appendDouble(b, 19, a.Waited.Seconds())
	b = appendUint(b, 20, uint64(uint32(a.Position)))
	if a.Prefill != nil {
		b = appendConfidence(b, 21, a.PrefillBlocks, a.PrefillLoad)
	}
	return b
}

// AppendStreamAnswer appends a RouteStreamResponse with that answer.
func AppendStreamAnswer(b []byte, tag uint64, a *oracle.Answer) []byte {
	b = appendUint(b, 1, tag)
	b, at := begin(b, 2)
	return end(AppendAnswer(b, a), at)
}

const decisionDigits = 16

func appendDecision(b []byte, id oracle.DecisionID) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[uint64(id)>>shift&15])
	}
	return b
}

func appendTarget(b []byte, num protowire.Number, t oracle.TargetRef) []byte {
	b, at := begin(b, num)
	b = appendString(b, 1, t.Worker)
	b = appendUint(b, 2, uint64(uint32(t.Rank)))
	b = appendString(b, 3, t.Address)
	return end(b, at)
}

func appendTiers(b []byte, num protowire.Number, t oracle.TierTokens) []byte {
	b, at := begin(b, num)
	b = appendUint(b, 1, uint64(t[fleet.Device]))
	b = appendUint(b, 2, uint64(t[fleet.Host]))
	b = appendUint(b, 3, uint64(t[fleet.Disk]))
	b = appendUint(b, 4, uint64(t[fleet.Shared]))
	return end(b, at)
}

func appendConfidence(b []byte, num protowire.Number, blocks oracle.BlockConfidence, load oracle.LoadConfidence) []byte {
	b, at := begin(b, num)
	b = appendUint(b, 1, uint64(BlockConfidence(blocks)))
	b = appendUint(b, 2, uint64(loadConfidence(load)))
	return end(b, at)
}

// begin opens a message inside a message; its length is written when it is known. Nearly all are shorter than 128 bytes.
func begin(b []byte, num protowire.Number) (_ []byte, at int) {
	b = append(protowire.AppendTag(b, num, protowire.BytesType), 0)
	return b, len(b)
}

// end closes the message whose contents begin at.
func end(b []byte, at int) []byte {
	n := len(b) - at
	if n < 0x80 {
		b[at-1] = byte(n)
		return b
	}
	more := protowire.SizeVarint(uint64(n)) - 1
	for range more {
		b = append(b, 0)
	}
	copy(b[at+more:], b[at:at+n])
	protowire.AppendVarint(b[:at-1], uint64(n))
	return b
}

func appendUint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendDouble(b []byte, num protowire.Number, v float64) []byte {
	bits := math.Float64bits(v)
	if bits == 0 { // minus zero is sent, as protobuf-go does
		return b
	}
	return protowire.AppendFixed64(protowire.AppendTag(b, num, protowire.Fixed64Type), bits)
}

func appendString(b []byte, num protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), v)
}
