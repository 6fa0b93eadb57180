package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// errorDomain is ErrorInfo.domain of every error made here.
const errorDomain = "kvoracle"

// retryAfter is RetryInfo's advice when a limit was hit and nobody knows better. Bookings end within seconds.
const retryAfter = time.Second

// drained ends what is long, or would have to wait, when the server is going.
func drained() error {
	return oracle.Fault(oracle.Unavailable, oracle.ReasonDraining, "", "", "the server is going; reconnect")
}

// codeOf is the one table from kinds of errors to gRPC codes.
func codeOf(k oracle.Kind) codes.Code {
	switch k {
	case oracle.InvalidArgument:
		return codes.InvalidArgument
	case oracle.Unserved:
		return codes.Unimplemented
	case oracle.NotFound:
		return codes.NotFound
	case oracle.FailedPrecondition:
		return codes.FailedPrecondition
	case oracle.Unavailable:
		return codes.Unavailable
	case oracle.Exhausted:
		return codes.ResourceExhausted
	case oracle.Aborted:
		return codes.Aborted
	case oracle.Expired:
		return codes.DeadlineExceeded
	case oracle.Unauthenticated:
		return codes.Unauthenticated
	case oracle.Denied:
		return codes.PermissionDenied
	case oracle.Internal:
		return codes.Internal
	default:
		return codes.Internal
	}
}

// toStatus turns an error into what the peer sees: a gRPC status with its details. An error that already is a status
// stays as it is. A fault of ours becomes INTERNAL without its text, which is for the log; errors.Unwrap finds it.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	// Not errors.As: a wrapped status has text of its own.
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	var e *oracle.Error
	switch {
	case errors.As(err, &e) && e.Kind != oracle.Internal:
		return &statusError{status: describe(e), cause: err}
	case errors.Is(err, context.Canceled):
		return &statusError{status: status.New(codes.Canceled, "the caller has gone"), cause: err}
	case errors.Is(err, context.DeadlineExceeded):
		e = oracle.Fault(oracle.Expired, oracle.ReasonDeadline, "", "", "the caller's deadline has passed")
	default:
		e = oracle.Fault(oracle.Internal, oracle.ReasonInternal, "", "", "internal error")
	}
	return &statusError{status: describe(e), cause: err}
}

// statusError is a status that remembers where it came from. Only the status goes over the wire.
type statusError struct {
	status *status.Status
	cause  error
}

// Error implements error.
func (e *statusError) Error() string { return e.status.String() }

// GRPCStatus is how gRPC finds the status.
func (e *statusError) GRPCStatus() *status.Status { return e.status }

// Unwrap gives the cause.
func (e *statusError) Unwrap() error { return e.cause }

// describe makes the status of an error with its details.
func describe(e *oracle.Error) *status.Status {
	info := &errdetails.ErrorInfo{Reason: string(e.Reason), Domain: errorDomain}
	if e.Field != "" {
		info.Metadata = map[string]string{"field": e.Field}
		if e.Value != "" {
			info.Metadata["value"] = e.Value
		}
	}
	details := []protoadapt.MessageV1{info}
	switch e.Kind {
	case oracle.InvalidArgument:
		if e.Field != "" {
			details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: e.Field, Description: e.Error(), Reason: string(e.Reason)},
			}})
		}
	case oracle.FailedPrecondition:
		details = append(details, &errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{
			{Type: string(e.Reason), Subject: e.Field, Description: e.Error()},
		}})
	case oracle.Exhausted:
		after := retryAfter
		if e.RetryAfter > 0 {
			after = e.RetryAfter
		}
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	case oracle.Internal, oracle.Unserved, oracle.NotFound, oracle.Unavailable, oracle.Aborted, oracle.Expired,
		oracle.Unauthenticated, oracle.Denied:
	}
	st := status.New(codeOf(e.Kind), e.Error())
	if full, err := st.WithDetails(details...); err == nil {
		return full
	}
	return st // a field that is not UTF-8 cannot be a detail; the code and the text still go
}

// errorInfo finds our ErrorInfo in a status, or nil.
func errorInfo(st *status.Status) *errdetails.ErrorInfo {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info
		}
	}
	return nil
}
