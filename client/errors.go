package client

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The kinds of errors, by what the caller can do about them. Ask with errors.Is; details are in *Error.
var (
	// ErrInvalid: the call can never work as it is. Fix it.
	ErrInvalid = errors.New("kvoracle: invalid")
	// ErrModelUnknown: no worker serves the model, says the oracle.
	ErrModelUnknown = errors.New("kvoracle: model unknown")
	// ErrMismatch: the two sides disagree about something they must share, such as the block size or the incarnation.
	ErrMismatch = errors.New("kvoracle: precondition failed")
	// ErrUnserved: valid, but this oracle does not do it.
	ErrUnserved = errors.New("kvoracle: not served")
	// ErrNoEligibleWorker: the model is known but each worker is excluded, says the oracle; Error.Metadata has the
	// counts by cause. Another try a moment later may work.
	ErrNoEligibleWorker = errors.New("kvoracle: no eligible worker")
	// ErrFleetFull: every worker is at its limit, and the question, which was ready to wait (Request.MaxQueue), found no room
	// among those that do or no place in its time. Error.RetryAfter is the wait that the oracle predicts. There is no fallback:
	// a worker that is full would refuse the request.
	ErrFleetFull = errors.New("kvoracle: fleet full")
	// ErrNoFallback: the oracle did not answer and no worker is known that could serve the request. The oracle's own
	// failure is in the chain.
	ErrNoFallback = errors.New("kvoracle: no fallback")
	// ErrUnavailable: the oracle could not be reached or could not answer. Only calls without a fallback return it.
	ErrUnavailable = errors.New("kvoracle: unavailable")
	// ErrParentConflict: a block was stored as its own parent, or under another parent than the one it is held under.
	// Nothing of that store took effect.
	ErrParentConflict = errors.New("kvoracle: parent conflict")
	// ErrHashConflict: an engine hash stands for a block and was told with other content or another parent, or follows one
	// for which that has happened. Nothing of that store took effect.
	ErrHashConflict = errors.New("kvoracle: engine hash conflict")
	// ErrTooManyHashes: an EngineBlocks knows as many engine hashes as it may. Nothing of that store took effect.
	ErrTooManyHashes = errors.New("kvoracle: too many engine hashes")
	// ErrRunning: Run was called while another Run of the same object has not returned.
	ErrRunning = errors.New("kvoracle: already running")
)

// Error is every error of this package but ErrRunning and those of contexts. It never holds prompt contents.
type Error struct {
	// Kind is one of the Err values above.
	Kind error
	// FromOracle is true for what the oracle said, and false for what this package or the transport made up.
	FromOracle bool
	// Code is the gRPC code; codes.OK for an error made before anything was sent.
	Code codes.Code
	// Reason is the oracle's stable word, such as "MODEL_UNKNOWN"; empty if it said none.
	Reason string
	// Field is the field at fault; empty if there is none.
	Field string
	// Metadata is what the oracle added for programs; often nil. Not to be changed.
	Metadata map[string]string
	// Message is for people.
	Message string

	retryAfter time.Duration
	cause      error
}

// Error implements error.
func (e *Error) Error() string {
	switch {
	case e.Field != "" && !e.FromOracle:
		return fmt.Sprintf("%v: %s: %s", e.Kind, e.Field, e.Message)
	case e.cause != nil && e.Kind == ErrNoFallback: //nolint:errorlint // Kind is one of our own values, never wrapped
		return fmt.Sprintf("%v: %s: %v", e.Kind, e.Message, e.cause)
	default:
		return fmt.Sprintf("%v: %s", e.Kind, e.Message)
	}
}

// RetryAfter is how long the oracle asked to be left alone with this; 0: it did not say.
func (e *Error) RetryAfter() time.Duration { return e.retryAfter }

// Unwrap makes errors.Is find the kind and errors.As the cause.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.cause}
}

// GRPCStatus is what the oracle or the transport said, for callers that pass it on. An error made before anything was
// sent is INVALID_ARGUMENT.
func (e *Error) GRPCStatus() *status.Status {
	if st, ok := status.FromError(e.cause); ok && e.cause != nil {
		return st
	}
	return status.New(codes.InvalidArgument, e.Error())
}

// domain is how the oracle signs its errors.
const domain = "kvoracle"

// invalid is a complaint about a field, made before anything was sent.
func invalid(field, message string) *Error {
	return &Error{Kind: ErrInvalid, Field: field, Message: message}
}

// errorFrom reads what came back from an RPC.
func errorFrom(err error) *Error {
	st := status.Convert(err)
	e := &Error{Code: st.Code(), Message: st.Message(), cause: err}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == domain {
				e.FromOracle, e.Reason, e.Metadata = true, d.GetReason(), d.GetMetadata()
				if f := e.Metadata["field"]; f != "" {
					e.Field = f
				}
			}
		case *errdetails.BadRequest:
			if v := d.GetFieldViolations(); len(v) > 0 && e.Field == "" {
				e.Field = v[0].GetField()
			}
		case *errdetails.RetryInfo:
			e.retryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	e.Kind = kindOf(e)
	return e
}

// kindOf sorts by what the caller can do. A NOT_FOUND or UNAVAILABLE that the oracle did not sign came from something
// in between (a proxy, a missing route) and says nothing about models or workers.
func kindOf(e *Error) error {
	switch e.Code {
	case codes.InvalidArgument, codes.OutOfRange:
		return ErrInvalid
	case codes.FailedPrecondition:
		return ErrMismatch
	case codes.Unimplemented:
		return ErrUnserved
	case codes.ResourceExhausted:
		if e.FromOracle && (e.Reason == "QUEUE_FULL" || e.Reason == "QUEUE_TIMEOUT") {
			return ErrFleetFull
		}
	case codes.NotFound:
		if e.FromOracle {
			return ErrModelUnknown
		}
	case codes.Unavailable:
		if e.FromOracle && e.Reason == "NO_ELIGIBLE_WORKER" {
			return ErrNoEligibleWorker
		}
	}
	return ErrUnavailable
}
