package httpjson

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// statusClientClosed is what is logged by proxies for a client that has gone; google.rpc's table has it for CANCELLED.
const statusClientClosed = 499

// HTTPStatus is the HTTP status of a gRPC code, as google/rpc/code.proto maps them.
func HTTPStatus(c codes.Code) int {
	switch c {
	case codes.OK:
		return http.StatusOK
	case codes.Canceled:
		return statusClientClosed
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// The door's own reasons, beside those of the service.
const (
	reasonBodyInvalid  = "BODY_INVALID"
	reasonBodyTooLarge = "BODY_TOO_LARGE"
	reasonBodyType     = "BODY_TYPE"
	reasonBodySlow     = "BODY_SLOW"
	reasonBodiesFull   = "BODIES_FULL"
	reasonPathUnknown  = "PATH_UNKNOWN"
	reasonVerbUnserved = "VERB_UNSERVED"
	reasonCrossOrigin  = "CROSS_ORIGIN"
)

const errorDomain = "kvoracle"

// fault is an error that arose at the door.
type fault struct {
	code   codes.Code
	http   int // 0: as HTTPStatus has it
	reason string
	field  string
	text   string
}

// Error implements error.
func (f *fault) Error() string { return f.text }

// GRPCStatus is how gRPC finds the status.
func (f *fault) GRPCStatus() *status.Status {
	info := &errdetails.ErrorInfo{Reason: f.reason, Domain: errorDomain}
	details := []protoadapt.MessageV1{info}
	if f.field != "" {
		info.Metadata = map[string]string{"field": f.field}
	}
	switch f.code {
	case codes.InvalidArgument:
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: f.field, Description: f.text, Reason: f.reason},
		}})
	case codes.ResourceExhausted:
		if f.http == 0 { // a body that is too large stays so
			details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
		}
	}
	st := status.New(f.code, f.text)
	if full, err := st.WithDetails(details...); err == nil {
		return full
	}
	return st // text that is not UTF-8 cannot be a detail
}

// errTwoNames is a field that path and body name differently.
var errTwoNames = errors.New("the path and the body name two")

// badText is the fault of a body that could not be read.
func badText(err error) error {
	var f *fieldError
	if errors.As(err, &f) {
		return &fault{code: codes.InvalidArgument, reason: "FIELD_INVALID", field: f.field, text: err.Error()}
	}
	return &fault{code: codes.InvalidArgument, reason: reasonBodyInvalid, text: "the body is not the message as JSON: " + err.Error()}
}

// Refuse answers with an error: google.rpc.Status as JSON.
func Refuse(w http.ResponseWriter, err error) {
	st := status.Convert(err)
	code := HTTPStatus(st.Code())
	var f *fault
	if errors.As(err, &f) && f.http != 0 {
		code = f.http
	}
	for _, d := range st.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retry.GetRetryDelay().AsDuration().Seconds()))))
		}
	}
	if code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(st.Proto())
	if err != nil { // a hook's details may be of a type that nobody knows
		text, _ = protojson.Marshal(status.New(st.Code(), st.Message()).Proto())
	}
	send(w, code, text)
}

func send(w http.ResponseWriter, code int, text []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = w.Write(text) // a caller who has gone is told nothing
}
