package oracle

import (
	"fmt"
	"time"
)

// Kind is what went wrong, as a caller must react to it. The set is closed; server/status.go maps each to a gRPC code.
type Kind uint8

// The kinds.
const (
	Internal           Kind = iota // our own fault
	InvalidArgument                // the request can never work as it is
	Unserved                       // valid, but this server does not do it yet
	NotFound                       // the thing named is not there
	FailedPrecondition             // the two sides disagree about something they must share
	Unavailable                    // nothing can serve it now; try again
	Exhausted                      // a limit was hit; try again later
	Aborted                        // somebody else took this over
	Expired                        // the caller's time ran out
	Unauthenticated                // nobody knows who is calling
	Denied                         // the caller is known and may not do this
)

// Kinds lists all kinds, for tables that must be complete.
func Kinds() []Kind {
	return []Kind{Internal, InvalidArgument, Unserved, NotFound, FailedPrecondition, Unavailable, Exhausted, Aborted, Expired, Unauthenticated, Denied}
}

// Reason is the stable word of an error: UPPER_SNAKE, sent as google.rpc.ErrorInfo.reason and used as a metric label.
type Reason string

// The reasons. They are part of the API: never rename one.
const (
	ReasonInternal           Reason = "INTERNAL"
	ReasonFieldMissing       Reason = "FIELD_MISSING"
	ReasonFieldInvalid       Reason = "FIELD_INVALID"
	ReasonFieldTooLong       Reason = "FIELD_TOO_LONG"
	ReasonFieldUnserved      Reason = "FIELD_UNSERVED"
	ReasonPromptEmpty        Reason = "PROMPT_EMPTY"
	ReasonPromptTooLong      Reason = "PROMPT_TOO_LONG"
	ReasonModelUnknown       Reason = "MODEL_UNKNOWN"
	ReasonWorkerUnknown      Reason = "WORKER_UNKNOWN"
	ReasonDecisionUnknown    Reason = "DECISION_UNKNOWN"
	ReasonRequestIDTaken     Reason = "REQUEST_ID_TAKEN"
	ReasonNoEligibleWorker   Reason = "NO_ELIGIBLE_WORKER"
	ReasonHashSchemeMismatch Reason = "HASH_SCHEME_MISMATCH"
	ReasonBlockSizeMismatch  Reason = "BLOCK_SIZE_MISMATCH"
	ReasonOldIncarnation     Reason = "OLD_INCARNATION"
	ReasonSpecContradiction  Reason = "SPEC_CONTRADICTION"
	ReasonFleetFull          Reason = "FLEET_FULL"
	ReasonBookingsFull       Reason = "BOOKINGS_FULL"
	ReasonRecordingsFull     Reason = "RECORDINGS_FULL"
	ReasonSuperseded         Reason = "SUPERSEDED"
	ReasonWorkerGone         Reason = "WORKER_GONE"
	ReasonUnexpectedMessage  Reason = "UNEXPECTED_MESSAGE"
	ReasonDeadline           Reason = "DEADLINE"
	ReasonDraining           Reason = "DRAINING"
	ReasonGatewaysFull       Reason = "GATEWAYS_FULL"
	ReasonOverloaded         Reason = "OVERLOADED"
	ReasonQueueFull          Reason = "QUEUE_FULL"
	ReasonQueueTimeout       Reason = "QUEUE_TIMEOUT"
	ReasonCredentialsMissing Reason = "CREDENTIALS_MISSING"
	ReasonCredentialsUnknown Reason = "CREDENTIALS_UNKNOWN"
	ReasonRoleMissing        Reason = "ROLE_MISSING"
	ReasonNotYourWorker      Reason = "NOT_YOUR_WORKER"
	ReasonRateExceeded       Reason = "RATE_EXCEEDED"
	ReasonStreamsExceeded    Reason = "STREAMS_EXCEEDED"
	ReasonFirstMessageLate   Reason = "FIRST_MESSAGE_LATE"
)

// Error is every error this module sends to a caller. It carries no prompt contents.
type Error struct {
	Kind    Kind
	Reason  Reason
	Field   string // the field at fault as a proto path, or empty
	Value   string // its value as text (a length for long ones), or empty
	Message string // what is wanted instead, for people
	IsFull  bool   // of ReasonNoEligibleWorker: some target could take it but for its limit, so this passes

	RetryAfter time.Duration // of Exhausted: when to ask again; 0: nothing better than a second is known
}

// Error implements error.
func (e *Error) Error() string {
	switch {
	case e.Field == "":
		return e.Message
	case e.Value == "":
		return fmt.Sprintf("%s: %s", e.Field, e.Message)
	default:
		return fmt.Sprintf("%s: got %s, %s", e.Field, e.Value, e.Message)
	}
}

// Fault makes an Error.
func Fault(kind Kind, reason Reason, field, value, message string) *Error {
	return &Error{Kind: kind, Reason: reason, Field: field, Value: value, Message: message}
}
