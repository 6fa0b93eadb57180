package extproc

import (
	"context"
	"errors"
	"strconv"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// verdict is what is said about a request.
type verdict struct {
	outcome Outcome
	to      []string                      // addresses, best first; none: no choice
	answer  *oracle.Answer                // nil: nothing was decided
	refusal *extprocv3.ProcessingResponse // instead of all that
	length  int                           // of a body that is given back whole; -1: none is
}

// decision names what was decided, as the proxy is told it; empty: nothing was.
func (v *verdict) decision() string {
	if v.answer == nil || v.answer.Decision == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(v.answer.Decision), 16)
}

// longestName bounds the model's name and the salt of a request; longestSession its session's.
const (
	longestName    = 256
	longestSession = 128
)

// verdict looks at the body and asks the oracle.
func (x *exchange) verdict(ctx context.Context) verdict {
	cfg := &x.s.cfg
	r, err := x.s.parser.Parse(x.kind, x.body, prompt.Limits{Tokens: cfg.MaxTokens, Name: longestName})
	if err != nil {
		return x.inTurn(Unparsed)
	}
	if r.Model == "" { // engines that serve one model take a request for it that names none
		only, ok := cfg.Oracle.OnlyModel()
		if !ok {
			return x.inTurn(Unparsed)
		}
		r.Model = only
	}
	q := &oracle.RouteRequest{
		Model: r.Model, CacheSalt: r.CacheSalt, MaxAlternatives: alternatives, Addresses: x.only, NeedsAddress: true,
	}
	if m, ok := (*x.s.models.Load())[r.Model]; ok {
		q.Model, q.LoRAName, q.LoRARevision = m.Base, m.LoRA, m.Revision
	}
	x.wishes.apply(q, &cfg.Queue)
	if x.isShadow {
		q.MaxWait = 0 // it is under way already
	}
	source := FromBody
	switch ids := r.Tokens; {
	case ids != nil:
		q.Prompt = oracle.Prompt{Tokens: ids, Length: len(ids), Items: r.Items}
	default:
		var items []block.Item
		if cfg.Tokenize != nil {
			ids, items = cfg.Tokenize(ctx, x.kind, r, x.body)
		}
		if len(ids) > 0 && len(ids) <= cfg.MaxTokens {
			source = FromTokenizer
			q.Prompt = oracle.Prompt{Tokens: ids, Length: len(ids), Items: items}
		} else {
			source = FromText
			q.Prompt = oracle.TextPrompt(r.Text)
		}
	}
	if q.Prompt.Length > cfg.MaxTokens {
		return x.inTurn(Unparsed)
	}
	if x.kind == prompt.Embeddings {
		q.ExpectedOutput = 1 // nothing is generated
	}
	a, err := cfg.Route(ctx, x.wishes.parent, q)
	if err != nil {
		return x.undecided(err)
	}
	cfg.Observer.Prompted(source)
	return verdict{outcome: Decided, answer: a, to: addresses(a)}
}

// alternatives are the workers named for retries.
const alternatives = 2

// addresses lists the target's and its alternatives', each once.
func addresses(a *oracle.Answer) []string {
	out := make([]string, 1, 1+len(a.Alternatives))
	out[0] = oracle.HostPort(a.Target.Address)
	for i := range a.Alternatives {
		at := oracle.HostPort(a.Alternatives[i].Target.Address)
		isNew := true // ranks of one worker share its address
		for _, o := range out {
			isNew = isNew && o != at
		}
		if isNew {
			out = append(out, at)
		}
	}
	return out
}

// undecided says what becomes of a request that the oracle has not decided.
func (x *exchange) undecided(err error) verdict {
	var e *oracle.Error
	if !errors.As(err, &e) {
		return x.inTurn(Failed)
	}
	switch {
	case e.Kind == oracle.Unavailable && e.IsFull, e.Kind == oracle.Exhausted:
		return verdict{outcome: Shed, refusal: refusal(429, "every worker that could take this request is at its limit")}
	case e.Kind == oracle.Unavailable && e.Reason == oracle.ReasonNoEligibleWorker:
		return verdict{outcome: NoEndpoint, refusal: refusal(503, "no worker can take this request")}
	case e.Kind == oracle.NotFound:
		return x.inTurn(UnknownModel)
	case e.Kind == oracle.InvalidArgument:
		return x.inTurn(Unparsed)
	default:
		return x.inTurn(Failed)
	}
}

// inTurn lets a request go without a decision. One without a prompt is spread over all workers. Where candidates were named,
// or by the extension's protocol, a worker is chosen in turn or the answer is 503: the proxy has no fallback then.
func (x *exchange) inTurn(o Outcome) verdict {
	v := verdict{outcome: o}
	mustChoose := x.only != nil || x.reqMode == duplex
	if mustChoose || o == InTurn {
		v.to = x.s.next(x.only)
	}
	if mustChoose && len(v.to) == 0 {
		return verdict{outcome: NoEndpoint, refusal: refusal(503, "none of the endpoints can take this request")}
	}
	return v
}

func (x *exchange) tooLarge() *extprocv3.ProcessingResponse {
	return refusal(413, "the body is longer than the limit of the endpoint picker")
}
