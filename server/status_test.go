package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// details sorts a status's details by kind.
func details(t *testing.T, err error) (info *errdetails.ErrorInfo, bad *errdetails.BadRequest, pre *errdetails.PreconditionFailure, retry *errdetails.RetryInfo) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			bad = d
		case *errdetails.PreconditionFailure:
			pre = d
		case *errdetails.RetryInfo:
			retry = d
		default:
			t.Errorf("an unexpected detail: %T", d)
		}
	}
	return info, bad, pre, retry
}

func TestEachKindHasItsCode(t *testing.T) {
	want := map[oracle.Kind]codes.Code{
		oracle.InvalidArgument:    codes.InvalidArgument,
		oracle.Unserved:           codes.Unimplemented,
		oracle.NotFound:           codes.NotFound,
		oracle.FailedPrecondition: codes.FailedPrecondition,
		oracle.Unavailable:        codes.Unavailable,
		oracle.Exhausted:          codes.ResourceExhausted,
		oracle.Aborted:            codes.Aborted,
		oracle.Expired:            codes.DeadlineExceeded,
		oracle.Unauthenticated:    codes.Unauthenticated,
		oracle.Denied:             codes.PermissionDenied,
		oracle.Internal:           codes.Internal,
	}
	used := make(map[codes.Code]oracle.Kind)
	for _, kind := range oracle.Kinds() {
		code, ok := want[kind]
		if !ok {
			t.Errorf("kind %d is in no test: decide its code", kind)
			continue
		}
		if other, twice := used[code]; twice {
			t.Errorf("kinds %d and %d share %v", kind, other, code)
		}
		used[code] = kind

		fault := oracle.Fault(kind, oracle.ReasonModelUnknown, "model", `"x"`, "want y")
		err := toStatus(fmt.Errorf("wrapped: %w", fault))
		if got := status.Code(err); got != code {
			t.Errorf("kind %d: %v, want %v", kind, got, code)
		}
		info, bad, pre, retry := details(t, err)
		if kind == oracle.Internal {
			if info.GetReason() != "INTERNAL" || strings.Contains(err.Error(), "want y") {
				t.Errorf("a fault of ours says too much: %v %v", err, info)
			}
			continue
		}
		if text := status.Convert(err).Message(); text != `model: got "x", want y` {
			t.Errorf("kind %d: text %q", kind, text)
		}
		if info.GetReason() != "MODEL_UNKNOWN" || info.GetDomain() != "kvoracle" {
			t.Errorf("kind %d: ErrorInfo %v", kind, info)
		}
		if d := cmp.Diff(map[string]string{"field": "model", "value": `"x"`}, info.GetMetadata()); d != "" {
			t.Errorf("kind %d: metadata (-want +got):\n%s", kind, d)
		}
		if (bad != nil) != (kind == oracle.InvalidArgument) || (pre != nil) != (kind == oracle.FailedPrecondition) || (retry != nil) != (kind == oracle.Exhausted) {
			t.Errorf("kind %d: BadRequest %v, PreconditionFailure %v, RetryInfo %v", kind, bad, pre, retry)
		}
		if bad != nil {
			if v := bad.GetFieldViolations()[0]; v.GetField() != "model" || v.GetDescription() != `model: got "x", want y` {
				t.Errorf("violation %v", v)
			}
		}
		if pre != nil {
			if v := pre.GetViolations()[0]; v.GetType() != "MODEL_UNKNOWN" || v.GetSubject() != "model" {
				t.Errorf("violation %v", v)
			}
		}
		if retry != nil && retry.GetRetryDelay().AsDuration() != time.Second {
			t.Errorf("retry after %v", retry)
		}
	}
}

func TestBadRequestOnlyWhereAFieldIsAtFault(t *testing.T) {
	info, bad, _, _ := details(t, toStatus(oracle.Fault(oracle.InvalidArgument, oracle.ReasonPromptEmpty, "", "", "no")))
	if bad != nil || info.GetReason() != "PROMPT_EMPTY" || len(info.GetMetadata()) != 0 {
		t.Errorf("BadRequest %v, ErrorInfo %v", bad, info)
	}
}

func TestOtherErrorsDoNotLeak(t *testing.T) {
	cause := errors.New("secret 4711")
	err := toStatus(cause)
	if status.Code(err) != codes.Internal || strings.Contains(status.Convert(err).Proto().String(), "4711") || strings.Contains(err.Error(), "4711") {
		t.Errorf("got %v", err)
	}
	if !errors.Is(err, cause) {
		t.Error("the log cannot find the cause")
	}
}

func TestContextErrors(t *testing.T) {
	if err := toStatus(fmt.Errorf("x: %w", context.Canceled)); status.Code(err) != codes.Canceled {
		t.Errorf("canceled: %v", err)
	}
	err := toStatus(fmt.Errorf("x: %w", context.DeadlineExceeded))
	if info, _, _, _ := details(t, err); status.Code(err) != codes.DeadlineExceeded || info.GetReason() != "DEADLINE" {
		t.Errorf("deadline: %v, %v", err, info)
	}
}

func TestStatusesStayAsTheyAre(t *testing.T) {
	if toStatus(nil) != nil {
		t.Error("no error became one")
	}
	st := status.Error(codes.DataLoss, "as is")
	if err := toStatus(st); err != st { //nolint:errorlint // the very same
		t.Errorf("got %v", err)
	}
	once := toStatus(oracle.Fault(oracle.Aborted, oracle.ReasonSuperseded, "", "", "x"))
	if err := toStatus(once); err != once { //nolint:errorlint // the very same
		t.Errorf("got %v", err)
	}
}

func TestBrokenTextStillHasItsCode(t *testing.T) {
	if err := toStatus(oracle.Fault(oracle.NotFound, oracle.ReasonWorkerUnknown, "worker", "\xff", "x")); status.Code(err) != codes.NotFound {
		t.Errorf("got %v", err)
	}
}
