package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/internal/gateway/extproc"
	"github.com/kvoracle/kvoracle/internal/gateway/httpjson"
	"github.com/kvoracle/kvoracle/internal/gateway/tokenize"
	"github.com/kvoracle/kvoracle/internal/oracle"
	"github.com/kvoracle/kvoracle/internal/telemetry"
)

// newExtProc makes the endpoint picker for Envoy. The configuration is valid and has its defaults.
func (s *Server) newExtProc() *extproc.Service {
	models, _ := parseModels(s.cfg.ModelNames)
	cfg := extproc.Config{
		Oracle:        s.oracle,
		Route:         s.pick,
		Observer:      pickObserver{s.tel},
		Overloaded:    s.overloaded,
		MaxBody:       s.cfg.ExtProcMaxBody,
		MaxTokens:     s.cfg.MaxPromptTokens,
		BodyTimeout:   s.cfg.ExtProcBodyTimeout,
		SessionHeader: strings.ToLower(s.cfg.SessionHeader),
		Models:        models,

		Queue:            extproc.Queue{MaxWait: s.cfg.GatewayMaxQueue},
		FirstByteIsToken: s.cfg.FirstByteIsToken,
		Guard:            s.rescuedLoop,
		HasReplicas:      s.cfg.NATSURL != "",
	}
	cfg.Queue.Objectives, _ = parseObjectives(s.cfg.Objectives)
	if s.cfg.TokenizeURL != "" {
		cfg.Tokenize = tokenize.New(tokenize.Config{
			URL: s.cfg.TokenizeURL, Budget: s.cfg.TokenizeBudget, MaxTokens: s.cfg.MaxPromptTokens,
			Counted: func(o tokenize.Outcome) { s.tel.Tokenized(o.String()) },
		}).Tokens
	}
	return extproc.New(cfg)
}

// authzPath is what stands before the paths of requests about which Envoy's ext_authz filter asks (path_prefix).
const authzPath = "/envoy/"

// authz answers Envoy's ext_authz filter, on the way of a call to its other picker. What is refused on this way is no word on the
// request, and must not reach its client: it is 500, at which Envoy goes on without a choice.
func (s *Server) authz(bodies *httpjson.Door) http.Handler {
	const method = extproc.Process
	incoming := httpjson.Incoming
	if s.auth == nil {
		incoming = httpjson.IncomingCredentials // nobody reads more
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := s.local.Admit(incoming(r), method)
		if err == nil {
			ctx = grpc.NewContextWithServerTransportStream(ctx, localStream(method))
			_, err = s.lean(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
				body, release, err := bodies.Body(r)
				defer release()
				if err == nil {
					s.picker.Check(w, r, body, func() bool { return hasLeft(r.Context()) })
				}
				return nil, err
			})
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
}

// pick is one decision for a proxy, with its span.
func (s *Server) pick(ctx context.Context, traceparent string, r *oracle.RouteRequest) (*oracle.Answer, error) {
	ctx, span := s.tel.StartDecision(s.tel.ContextFromTraceparent(ctx, traceparent))
	a, err := s.oracle.Route(ctx, r, time.Now())
	s.tel.EndDecision(span, a, err)
	return a, err
}

// overloaded lets a share of requests go on without a decision. The observer counts them.
func (s *Server) overloaded(ctx context.Context) bool {
	if !s.shedder.letsGo(ctx) {
		return false
	}
	s.sheds.Add(1)
	return true
}

// pickObserver counts what proxies are told.
type pickObserver struct{ tel *telemetry.Telemetry }

// Picked implements extproc.Observer.
func (o pickObserver) Picked(x extproc.Outcome) { o.tel.Picked(x.String()) }

// Prompted implements extproc.Observer.
func (o pickObserver) Prompted(x extproc.Source) { o.tel.Prompted(x.String()) }

// Unobserved implements extproc.Observer.
func (o pickObserver) Unobserved() { o.tel.Unobserved() }

// Logged implements extproc.Observer.
func (o pickObserver) Logged(x extproc.Entry) { o.tel.Logged(x.String()) }

// parseObjectives reads Config.Objectives: "name=priority", separated by commas.
func parseObjectives(s string) (map[string]int32, error) {
	out := make(map[string]int32)
	if s == "" {
		return out, nil
	}
	for one := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(one, "=")
		n, err := strconv.ParseInt(value, 10, 32)
		if !ok || name == "" || len(name) > maxModelName || err != nil {
			return nil, fmt.Errorf("got %q, want name=priority, a whole number of 32 bits", one)
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%q comes twice", name)
		}
		out[name] = int32(n)
	}
	return out, nil
}

// parseModels reads Config.ModelNames: "name=model", "name=model+adapter" or "name=model+adapter@revision", separated by
// commas.
func parseModels(s string) (map[string]extproc.Model, error) {
	out := make(map[string]extproc.Model)
	if s == "" {
		return out, nil
	}
	for one := range strings.SplitSeq(s, ",") {
		name, means, ok := strings.Cut(one, "=")
		base, adapter, hasAdapter := strings.Cut(means, "+")
		lora, revision, _ := strings.Cut(adapter, "@")
		switch {
		case !ok || name == "" || base == "" || hasAdapter && lora == "":
			return nil, fmt.Errorf("got %q, want name=model or name=model+adapter@revision", one)
		case max(len(base), len(lora), len(revision)) > maxModelName:
			return nil, errors.New("want names of at most 256 bytes")
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%q comes twice; it is one of %s", name, strings.Join(slices.Sorted(maps.Keys(out)), ", "))
		}
		out[name] = extproc.Model{Base: base, LoRA: lora, Revision: revision}
	}
	return out, nil
}

// maxModelName is the longest name of a model or adapter, in bytes.
const maxModelName = 256
