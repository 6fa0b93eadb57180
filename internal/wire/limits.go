package wire

import (
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// Limits bounds what a message may hold. Zero fields mean their defaults.
type Limits struct {
	// MaxPromptTokens is the longest prompt; default 1,048,576.
	MaxPromptTokens int
	// MaxMessageBytes is told to reporters as the largest message the server reads; default 4 bytes a prompt token and
	// 64 KiB.
	MaxMessageBytes int
}

// WithDefaults fills in the zeros.
func (l Limits) WithDefaults() Limits {
	if l.MaxPromptTokens <= 0 {
		l.MaxPromptTokens = 1 << 20
	}
	if l.MaxMessageBytes <= 0 {
		l.MaxMessageBytes = 4*l.MaxPromptTokens + 64<<10
	}
	return l
}

const (
	maxName         = 256
	maxRequestID    = 128
	maxAddress      = 512
	maxWorkerList   = 16_384
	maxLabels       = 64
	maxRanks        = 1024
	maxRequestsCap  = 1 << 20
	maxAlternatives = 16
	maxTarget       = 86_400 // seconds
	maxQueue        = 3600   // seconds
	maxOps          = 65_536
	maxBlocksPerOp  = 65_536
	maxDetail       = 256
	maxRoots        = 16
	maxEngineDigest = 64 // bytes
	maxEvents       = 1024
	maxExpected     = 1 << 24 // output tokens
	maxSeconds      = 86_400
)

func missing(field string) error {
	return oracle.Fault(oracle.InvalidArgument, oracle.ReasonFieldMissing, field, "", "is required")
}

func invalid(field, value, want string) error {
	return oracle.Fault(oracle.InvalidArgument, oracle.ReasonFieldInvalid, field, value, want)
}

func unserved(field, value string) error {
	return oracle.Fault(oracle.Unserved, oracle.ReasonFieldUnserved, field, value, "is not served yet")
}

// name checks a string's length in bytes. proto3 strings are valid UTF-8 when they come off the wire; callers in the
// same process get no such promise.
func name(field, v string, most int, required bool) error {
	switch {
	case v == "" && required:
		return missing(field)
	case len(v) > most:
		return oracle.Fault(oracle.InvalidArgument, oracle.ReasonFieldTooLong, field,
			strconv.Itoa(len(v))+" bytes", "want at most "+strconv.Itoa(most))
	case !utf8.ValidString(v):
		return invalid(field, "invalid UTF-8", "want UTF-8")
	}
	return nil
}

func scheme(field, v string) error {
	if v == "" {
		return oracle.Fault(oracle.FailedPrecondition, oracle.ReasonFieldMissing, field, "", "is required; known: "+strconv.Quote(block.Scheme))
	}
	if v != block.Scheme {
		if len(v) > maxName {
			v = v[:maxName]
		}
		return oracle.Fault(oracle.FailedPrecondition, oracle.ReasonHashSchemeMismatch, field, strconv.Quote(v), "known: "+strconv.Quote(block.Scheme))
	}
	return nil
}

func blockSize(field string, v uint32) error {
	if v < 1 || v > block.MaxSize {
		return invalid(field, fmt.Sprint(v), fmt.Sprintf("want 1 to %d tokens", block.MaxSize))
	}
	return nil
}

func labels(field string, m map[string]string) error {
	if len(m) > maxLabels {
		return invalid(field, strconv.Itoa(len(m))+" labels", "want at most "+strconv.Itoa(maxLabels))
	}
	for k, v := range m {
		if err := name(field+" key", k, maxName, true); err != nil {
			return err
		}
		if err := name(field+"["+strconv.Quote(k)+"]", v, maxName, false); err != nil {
			return err
		}
	}
	return nil
}
