package client

import (
	"time"

	"google.golang.org/grpc/codes"
)

// fallback decides without the oracle.
func (r *Router) fallback(req *Request, reason Reason, cause *Error) (Decision, error) {
	now := time.Now()
	cands := r.fleet.candidates(req, now)
	var prefill *Target
	if len(cands) == 0 && req.Phase == PhaseBoth {
		cands, prefill = r.fallbackPair(req, now)
	}
	if len(cands) == 0 {
		r.stats.errors.Add(1)
		if reason == ReasonOracleAmnesia {
			return Decision{}, cause // no better word than the oracle's own
		}
		e := &Error{Kind: ErrNoFallback, Message: "no fleet list has an eligible worker; " + string(reason)}
		if r.fleet.age(now) < 0 {
			e.Message = "no fleet list was ever fetched; " + string(reason)
		}
		if cause != nil {
			e.Code, e.Reason, e.cause = cause.Code, cause.Reason, cause
		}
		return Decision{}, e
	}
	d := Decision{PromptTokens: req.promptTokens(), Source: SourceFallback, Reason: reason}
	if cause != nil {
		d.cause = cause
	}
	alternatives := min(req.Alternatives, 16)
	if alternatives <= 0 {
		alternatives = 2
	}
	best, booking := r.bookings.choose(cands, 1+alternatives, req.DryRun, now)
	d.Target, d.booking, d.Prefill = best[0], booking, prefill
	for _, t := range best[1:] {
		d.Alternatives = append(d.Alternatives, Alternative{Target: t, Prefill: prefill})
	}
	r.stats.fallback(reason)
	return d, nil
}

// fallbackPair gives who may decode and the least booked of those that prefill, in a fleet where nobody does both; neither
// if one is missing. What a prefill takes is not booked here: it is over long before the request is.
func (r *Router) fallbackPair(req *Request, now time.Time) (decode []Target, prefill *Target) {
	part := *req
	part.Phase = PhasePrefill
	starts := r.fleet.candidates(&part, now)
	part.Phase = PhaseDecode
	decode = r.fleet.candidates(&part, now)
	if len(starts) == 0 || len(decode) == 0 {
		return nil, nil
	}
	best, _ := r.bookings.choose(starts, 1, true, now)
	return decode, &best[0]
}

// blameFor says why the oracle has no answer, and whether that is a sign of trouble.
func blameFor(e *Error) (reason Reason, blame bool) {
	switch e.Code {
	case codes.DeadlineExceeded:
		return ReasonOracleLate, true
	case codes.Unavailable, codes.Canceled: // the caller did not cancel it, so the connection was closed
		return ReasonOracleGone, true
	case codes.ResourceExhausted:
		// Unsigned it is a transport's complaint about the size of this one message.
		return ReasonOracleShed, e.FromOracle
	default:
		return ReasonOracleFault, true
	}
}
