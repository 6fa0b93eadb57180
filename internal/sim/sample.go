package sim

import (
	"bytes"
	_ "embed" // for sampleFile
)

// sampleFile is described, with its source and licence, in sample/README.md.
//
//go:embed sample/mooncake_conversation_sample.jsonl.gz
var sampleFile []byte

// SampleRequests is how many requests Sample has.
const SampleRequests = 2395

// Sample reads the trace that comes with this package: the first 798 s of Mooncake's conversation trace, 3 requests a
// second with prompts of 13,800 tokens on average, all of which begin with the same 512 tokens. Arrivals, which the trace
// gives to 3 s, are spread over them.
func Sample() (*Trace, error) {
	return ReadTrace(bytes.NewReader(sampleFile), ReadOptions{Spread: 3})
}
