package extproc

import (
	"context"
	"time"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// Oracle is what is asked of the oracle.
type Oracle interface {
	// Progress tells a step in a request's life.
	Progress(e *oracle.Event, now time.Time) (oracle.Outcome, error)
	// Addresses lists where workers are reached that can be chosen; only narrows them unless it is nil.
	Addresses(only []string) []string
	// OnlyModel is the model of all workers; false: there are several, or none.
	OnlyModel() (model string, ok bool)
	// IsBooked says whether a decision's booking lives.
	IsBooked(id oracle.DecisionID) bool
	// At finds the worker of a model that is reached at an address.
	At(model, hostPort string) (worker string, ok bool)
}

// Model is what a name in a request stands for.
type Model struct {
	Base     string // the model as workers name it
	LoRA     string // the adapter; empty: none
	Revision string // of the adapter
}

// Config is what a Service is told. Oracle and Route must be set; every other zero means its default.
type Config struct {
	Oracle Oracle
	// Route decides and books. traceparent is the request's, or empty.
	Route func(ctx context.Context, traceparent string, r *oracle.RouteRequest) (*oracle.Answer, error)
	// Observer counts. nil: nobody does.
	Observer Observer

	// Overloaded is asked once for each request with a prompt, when its headers have come: whether it shall go on without a
	// decision, since more is asked than can be answered. The context is its stream's. nil: never.
	Overloaded func(ctx context.Context) bool

	// MaxBody is the longest body that is read, in bytes; default 4 MiB. A longer one is answered with 413.
	MaxBody int
	// MaxTokens is the longest prompt; default 1,048,576. A longer one is not looked at.
	MaxTokens int
	// BodyTimeout is how long a streamed body may take to come, from its headers; default 30 s.
	BodyTimeout time.Duration
	// SessionHeader names the session of a request; default "x-session-id".
	SessionHeader string
	// Models says what names in requests stand for. A name that is not here stands for itself.
	Models map[string]Model
	// Queue says what headers may ask for while all workers are at their limits.
	Queue Queue
	// FirstByteIsToken says that engines send nothing of a streamed answer before its first token, so that an access log tells
	// when that came. vLLM and SGLang send their headers at once: false.
	FirstByteIsToken bool
	// LogSilence is how long a booking is kept after its stream has ended, or after the last news, until the access log tells
	// its end; default 2 min. It matters where Envoy is lost: a booking's lease may end it sooner.
	LogSilence time.Duration
	// HasReplicas says that other replicas decide too, and that Oracle passes steps of their decisions on: an access log may then
	// come to one replica for all, and the end of a booking be told elsewhere.
	HasReplicas bool
	// MaxAwaited bounds the bookings that wait for that; default 65,536. What is beyond ends with its stream.
	MaxAwaited int
	// Guard runs what a call leaves to another goroutine, and makes an error of a panic there. nil: nothing does.
	Guard func(ctx context.Context, f func() error) error
	// Tokenize turns a request's text into token ids, if it can in the time it allows itself, and says what lies under
	// placeholders among them. nil: never.
	Tokenize func(ctx context.Context, kind prompt.Kind, r *prompt.Request, body [][]byte) ([]uint32, []block.Item)
}

const (
	defaultMaxBody     = 4 << 20
	defaultMaxTokens   = 1 << 20
	defaultBodyTimeout = 30 * time.Second
	defaultSession     = "x-session-id"
	defaultLogSilence  = 2 * time.Minute
	defaultMaxAwaited  = 1 << 16
)

func (c Config) withDefaults() Config {
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.MaxBody <= 0 {
		c.MaxBody = defaultMaxBody
	}
	if c.MaxTokens <= 0 {
		c.MaxTokens = defaultMaxTokens
	}
	if c.BodyTimeout <= 0 {
		c.BodyTimeout = defaultBodyTimeout
	}
	if c.SessionHeader == "" {
		c.SessionHeader = defaultSession
	}
	if c.LogSilence <= 0 {
		c.LogSilence = defaultLogSilence
	}
	if c.MaxAwaited <= 0 {
		c.MaxAwaited = defaultMaxAwaited
	}
	if c.Guard == nil {
		c.Guard = func(_ context.Context, f func() error) error { return f() }
	}
	return c
}

// Outcome is what was answered to a request. Each has one.
type Outcome uint8

// The outcomes.
const (
	Decided      Outcome = iota // a worker was chosen for its prompt
	InTurn                      // it has no prompt that could be looked at: a worker in turn, or none
	Unparsed                    // not a request that is understood: it goes on without a choice
	UnknownModel                // nobody serves its model: the same
	Late                        // its body took too long: the same
	Failed                      // the oracle failed: the same
	NoEndpoint                  // 503
	Shed                        // 429
	TooLarge                    // 413
	Overloaded                  // more was asked than can be answered: the same
	Abandoned                   // its stream ended before there was an answer

	numOutcomes
)

// Outcomes lists all of them.
func Outcomes() []Outcome {
	out := make([]Outcome, numOutcomes)
	for i := range out {
		out[i] = Outcome(i)
	}
	return out
}

// String gives the name in metrics.
func (o Outcome) String() string {
	switch o {
	case Decided:
		return "decided"
	case InTurn:
		return "in_turn"
	case Unparsed:
		return "unparsed"
	case UnknownModel:
		return "unknown_model"
	case Late:
		return "late"
	case Failed:
		return "failed"
	case NoEndpoint:
		return "no_endpoint"
	case Shed:
		return "shed"
	case TooLarge:
		return "too_large"
	case Overloaded:
		return "overloaded"
	case Abandoned:
		return "abandoned"
	default:
		return "unknown"
	}
}

// Source is what a prompt was known by.
type Source uint8

// The sources.
const (
	FromBody      Source = iota // token ids in the body
	FromTokenizer               // token ids of its text
	FromText                    // its text
)

// String gives the name in metrics.
func (s Source) String() string {
	switch s {
	case FromBody:
		return "body"
	case FromTokenizer:
		return "tokenizer"
	case FromText:
		return "text"
	default:
		return "unknown"
	}
}

// Observer counts. Its methods are called concurrently and must be quick.
type Observer interface {
	// Picked counts a request that was answered.
	Picked(o Outcome)
	// Prompted counts a prompt that was decided for.
	Prompted(s Source)
	// Unobserved counts a response whose decision is not known here: another replica's, or over already.
	Unobserved()
	// Logged counts an entry of an access log, or a booking that was given up for want of one.
	Logged(e Entry)
}

type nobody struct{}

func (nobody) Picked(Outcome)  {}
func (nobody) Prompted(Source) {}
func (nobody) Unobserved()     {}
func (nobody) Logged(Entry)    {}
