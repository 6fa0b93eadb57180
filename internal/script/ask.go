package script

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/kvoracle/kvoracle/internal/block"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// ask runs an RT or ov line.
func (r *Runner) ask(ctx context.Context, overlap bool, args []string, o map[string]string) (string, error) {
	req, err := r.request(args[0], o)
	if err != nil {
		return "", err
	}
	if overlap {
		req.DryRun, req.Explain = true, true
		m, err := r.route.Route(ctx, req)
		if err != nil {
			return refusal(err)
		}
		return r.printOverlap(m, len(args) > 1 && args[1] == "guesses"), nil
	}
	times, free := 1, false
	for _, a := range args[1:] {
		switch {
		case a == "free":
			free = true
		case isNumbered(a, 'x'):
			times, _ = strconv.Atoi(a[1:])
		default:
			return "", fmt.Errorf("RT: cannot read %q", a)
		}
	}
	chosen := make(map[string]int)
	for range times {
		m, err := r.route.Route(ctx, req)
		if err != nil {
			return refusal(err)
		}
		chosen[m.GetTarget().GetWorkerId()]++
		if free {
			if _, err := r.route.RecordProgress(ctx, &kvoraclev1.RecordProgressRequest{Events: []*kvoraclev1.ProgressEvent{
				{DecisionId: m.GetDecisionId(), Step: &kvoraclev1.ProgressEvent_Finished{Finished: &kvoraclev1.Finished{OutputTokens: 1}}},
			}}); err != nil {
				return refusal(err)
			}
		}
		if as := o["as"]; as != "" {
			r.names[as] = m.GetDecisionId()
		}
		if times == 1 {
			answer := r.printChoice(m)
			if o["else"] != "" {
				answer += r.printAlternatives(m)
			}
			return answer, nil
		}
	}
	return printCounts(chosen), nil
}

// request is the Route message of a line.
func (r *Runner) request(prompt string, o map[string]string) (*kvoraclev1.RouteRequest, error) {
	tokens, err := tokensOf(prompt)
	if err != nil {
		return nil, err
	}
	items, err := images(o)
	if err != nil {
		return nil, err
	}
	req := &kvoraclev1.RouteRequest{
		Multimodal: asked(items),
		Model:      "m", Lora: lora(o), CacheSalt: o["salt"], SessionId: o["session"], RequestId: o["id"],
		Prompt: &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: tokens}},
	}
	for k, v := range o {
		switch k {
		case "model":
			req.Model = v
		case "deny":
			req.DeniedWorkers = strings.Split(v, ",")
		case "allow":
			req.AllowedWorkers = strings.Split(v, ",")
		case "phase":
			req.Phase = kvoraclev1.Phase(kvoraclev1.Phase_value["PHASE_"+strings.ToUpper(v)])
		case "hashes":
			size, err := strconv.ParseUint(v, 10, 32)
			if err != nil {
				return nil, err
			}
			req.Prompt = hashed(tokens, int(size), o["scheme"], items)
			req.Multimodal = nil // the hashes have them in
		case "form":
			switch v {
			case "none":
				req.Prompt = nil
			case "text":
				req.Prompt = &kvoraclev1.RouteRequest_Text{Text: prompt}
			default:
				return nil, fmt.Errorf("form=%s: want none or text", v)
			}
		case "wait":
			if req.MaxQueueSeconds, err = strconv.ParseFloat(v, 64); err != nil {
				return nil, err
			}
		case "priority":
			n, err := strconv.ParseInt(v, 10, 32)
			if err != nil {
				return nil, err
			}
			req.Priority = int32(n)
		case "tenant":
			req.TenantId = v
		case "else":
			n, err := strconv.ParseUint(v, 10, 32)
			if err != nil {
				return nil, err
			}
			req.MaxAlternatives = uint32(n)
		case "img", "lora", "salt", "session", "id", "as", "scheme":
		default:
			if err := label(req, k, v); err != nil {
				return nil, err
			}
		}
	}
	return req, nil
}

// label adds label.K=V, which a worker must have, or prefer.K=V, which it had better have.
func label(req *kvoraclev1.RouteRequest, k, v string) error {
	kind, key, _ := strings.Cut(k, ".")
	to := &req.RequiredLabels
	switch kind {
	case "label":
	case "prefer":
		to = &req.PreferredLabels
	default:
		return fmt.Errorf("unknown option %q", k)
	}
	if *to == nil {
		*to = make(map[string]string)
	}
	(*to)[key] = v
	return nil
}

func hashed(tokens []uint32, size int, scheme string, items []image) *kvoraclev1.RouteRequest_BlockHashes {
	p := &kvoraclev1.BlockHashPrompt{HashScheme: block.Scheme, BlockSize: uint32(size), TokenCount: uint32(len(tokens))}
	if scheme != "" {
		p.HashScheme = scheme
	}
	if size > 0 {
		locals := block.AppendLocals(nil, tokens, size)
		mix(locals, size, items)
		for _, l := range locals {
			p.LocalHashes = append(p.LocalHashes, uint64(l))
		}
	}
	return &kvoraclev1.RouteRequest_BlockHashes{BlockHashes: p}
}

// progress runs a line about a routed request.
func (r *Runner) progress(ctx context.Context, verb string, args []string, o map[string]string) (string, error) {
	id, ok := r.names[args[0]]
	if !ok {
		id = args[0]
	}
	e := &kvoraclev1.ProgressEvent{DecisionId: id}
	switch verb {
	case "sent":
		worker, rank, err := target(args[1])
		if err != nil {
			return "", err
		}
		e.Step = &kvoraclev1.ProgressEvent_Dispatched{Dispatched: &kvoraclev1.Dispatched{Target: &kvoraclev1.Target{WorkerId: worker, DpRank: rank}}}
	case "first":
		e.Step = &kvoraclev1.ProgressEvent_FirstToken{FirstToken: &kvoraclev1.FirstToken{}}
	case "gen":
		n, err := strconv.ParseUint(args[1], 10, 32)
		if err != nil {
			return "", err
		}
		e.Step = &kvoraclev1.ProgressEvent_Generating{Generating: &kvoraclev1.Generating{OutputTokens: uint32(n)}}
	case "free":
		f := &kvoraclev1.Finished{OutputTokens: 1}
		if v, ok := o["cached"]; ok {
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				return "", err
			}
			f.CachedTokens = &n
		}
		e.Step = &kvoraclev1.ProgressEvent_Finished{Finished: f}
	case "cancel":
		e.Step = &kvoraclev1.ProgressEvent_Cancelled{Cancelled: &kvoraclev1.Cancelled{}}
	case "fail":
		e.Step = &kvoraclev1.ProgressEvent_Failed{Failed: &kvoraclev1.Failed{Reason: "script"}}
	}
	if name, ok := o["gw"]; ok {
		s := r.gates[name]
		if s == nil {
			return "", fmt.Errorf("%s: no stream of gateway %q is open", verb, name)
		}
		answer, err := s.tell(&kvoraclev1.ReportProgressRequest_Event{Event: e})
		if err != nil {
			delete(r.gates, name)
			return refusal(err)
		}
		return answer, nil
	}
	m, err := r.route.RecordProgress(ctx, &kvoraclev1.RecordProgressRequest{Events: []*kvoraclev1.ProgressEvent{e}})
	if err != nil {
		return refusal(err)
	}
	return outcome(uint64(m.GetUnknownDecisions()), uint64(m.GetLateEvents()), 0), nil
}

func printCounts(chosen map[string]int) string {
	names := make([]string, 0, len(chosen))
	for n := range chosen {
		names = append(names, n)
	}
	sort.Strings(names)
	parts := make([]string, len(names))
	for i, n := range names {
		parts[i] = fmt.Sprintf("%s=%d", n, chosen[n])
	}
	return strings.Join(parts, " ") + "\n"
}
