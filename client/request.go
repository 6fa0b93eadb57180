package client

import (
	"math"
	"slices"
	"time"
	"unicode/utf8"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Request is one question: which worker should serve this prompt? Zero values mean "not said". Slices and maps are only
// read, and only until Route returns.
type Request struct {
	// ID is the caller's name for the request, at most 128 bytes. While the booking lives, the oracle gives the same ID
	// the same decision and books nothing more. Empty: each call is a request of its own.
	ID string
	// Model is the base model, as workers name it. Required.
	Model string

	// The prompt, in exactly one form: Tokens, or Hashes with BlockSize and TokenCount, or Text.

	// Tokens are the token ids of the whole prompt.
	Tokens []uint32
	// Hashes are the local hashes of the prompt's full blocks (LocalHashes); empty for a prompt shorter than a block.
	Hashes []LocalHash
	// BlockSize is the number of tokens a hash stands for.
	BlockSize int
	// TokenCount is the length of the whole prompt, the rest behind the last full block included.
	TokenCount int

	// Text is the prompt of a gateway that has no tokenizer. It is matched with text that was sent before, not with what
	// engines report, and four bytes of it count as a token. Write the parts of a conversation the same way each time.
	Text string

	// Multimodal are the items under placeholders among Tokens, in any order. With Hashes none: hand them to LocalHashes.
	Multimodal []MultimodalItem
	// LoRA is the adapter the request is for. Nothing matches across adapters or revisions.
	LoRA LoRA
	// CacheSalt keeps tenants' caches apart, as the engine's cache_salt; at most 256 bytes.
	CacheSalt string
	// ExpectedOutputTokens is a guess; 0: the fleet's mean.
	ExpectedOutputTokens int
	// SessionID is the conversation; equal choices stay with its last worker. At most 128 bytes.
	SessionID string
	// TTFTTarget and TPOTTarget are how soon the first and each further token are wanted; 0: whenever. Workers that are
	// predicted to be soon enough are preferred; Decision.Raw says what is missed.
	TTFTTarget, TPOTTarget time.Duration
	// MaxQueue is how long the oracle may keep the question while every worker is at its limit, at most an hour; the router's
	// timeout is that much longer. 0: not at all. Where it ends without a place, Route returns ErrFleetFull.
	MaxQueue time.Duration
	// Priority and Tenant order the questions that wait: the higher priority goes first, and within one tenants take turns by
	// predicted cost. Tenant is at most 128 bytes.
	Priority int32
	Tenant   string
	// Phase is the part of the work to place.
	Phase Phase
	// Allowed, if not empty, are the only candidates.
	Allowed []string
	// Denied are no candidates; a retry names the worker that failed.
	Denied []string
	// RequiredLabels must be there on a candidate, with these values.
	RequiredLabels map[string]string
	// PreferredLabels break ties between workers that cost and hold the same.
	PreferredLabels map[string]string
	// Explain asks for a row per candidate: Decision.Raw().GetCandidates().
	Explain bool
	// DryRun decides and books nothing.
	DryRun bool
	// Alternatives is how many runners-up are wanted; 0 means 2, at most 16.
	Alternatives int
}

// proto checks what even a fallback must not answer, and puts the rest into the oracle's terms unchecked: its complaint
// is better than a second opinion here.
func (r *Request) proto() (*kvoraclev1.RouteRequest, *Error) {
	hashed := len(r.Hashes) > 0 || r.TokenCount != 0 || r.BlockSize != 0
	switch {
	case r.Model == "":
		return nil, invalid("Request.Model", "want a model")
	case len(r.Tokens) > 0 && hashed:
		return nil, invalid("Request.Tokens", "want tokens or hashes, not both")
	case r.Text != "" && (hashed || len(r.Tokens) > 0):
		return nil, invalid("Request.Text", "want text alone, without tokens or hashes")
	case len(r.Tokens) == 0 && !hashed && r.Text == "":
		return nil, invalid("Request.Tokens", "want a prompt of at least one token")
	case len(r.Multimodal) > 0 && hashed:
		return nil, invalid("Request.Multimodal", "want it only with tokens; hashes have it in already")
	case len(r.Multimodal) > 0 && r.Text != "":
		return nil, invalid("Request.Multimodal", "want it only with tokens; in text it has no place")
	case hashed && (r.TokenCount < 1 || r.BlockSize < 1):
		return nil, invalid("Request.Hashes", "want BlockSize and TokenCount with them")
	}
	if f := r.badText(); f != "" {
		return nil, invalid("Request."+f, "want UTF-8")
	}
	items := make([]*kvoraclev1.MultimodalItem, len(r.Multimodal))
	for i := range r.Multimodal {
		x := &r.Multimodal[i]
		if x.FirstToken < 0 {
			return nil, invalid("Request.Multimodal", "want FirstToken of at least 0")
		}
		items[i] = &kvoraclev1.MultimodalItem{FirstToken: clamp32(x.FirstToken), TokenCount: clamp32(x.TokenCount), Digest: x.Digest}
	}
	m := &kvoraclev1.RouteRequest{
		Multimodal:           items,
		RequestId:            r.ID,
		Model:                r.Model,
		CacheSalt:            r.CacheSalt,
		ExpectedOutputTokens: clamp32(r.ExpectedOutputTokens),
		SessionId:            r.SessionID,
		Phase:                r.Phase,
		TtftTargetSeconds:    r.TTFTTarget.Seconds(),
		TpotTargetSeconds:    r.TPOTTarget.Seconds(),
		MaxQueueSeconds:      max(r.MaxQueue, 0).Seconds(),
		Priority:             r.Priority,
		TenantId:             r.Tenant,
		PreferredLabels:      r.PreferredLabels,
		AllowedWorkers:       r.Allowed,
		DeniedWorkers:        r.Denied,
		RequiredLabels:       r.RequiredLabels,
		Explain:              r.Explain,
		DryRun:               r.DryRun,
		MaxAlternatives:      clamp32(r.Alternatives),
		Lora:                 r.LoRA.proto(),
	}
	switch {
	case r.Text != "":
		m.Prompt = &kvoraclev1.RouteRequest_Text{Text: r.Text}
	case hashed:
		hashes := make([]uint64, len(r.Hashes))
		for i, h := range r.Hashes {
			hashes[i] = uint64(h)
		}
		m.Prompt = &kvoraclev1.RouteRequest_BlockHashes{BlockHashes: &kvoraclev1.BlockHashPrompt{
			HashScheme:  HashScheme,
			BlockSize:   clamp32(r.BlockSize),
			LocalHashes: hashes,
			TokenCount:  clamp32(r.TokenCount),
		}}
	default:
		m.Prompt = &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: r.Tokens}}
	}
	return m, nil
}

// badText names a field that is not UTF-8. Such a message cannot be sent, and trying would look like a broken oracle.
func (r *Request) badText() string {
	for _, f := range []struct{ name, value string }{
		{"ID", r.ID},
		{"Model", r.Model},
		{"LoRA", r.LoRA.Name},
		{"LoRA", r.LoRA.Revision},
		{"CacheSalt", r.CacheSalt},
		{"SessionID", r.SessionID},
		{"Text", r.Text},
		{"Tenant", r.Tenant},
	} {
		if !utf8.ValidString(f.value) {
			return f.name
		}
	}
	bad := func(s string) bool { return !utf8.ValidString(s) }
	switch {
	case slices.ContainsFunc(r.Allowed, bad):
		return "Allowed"
	case slices.ContainsFunc(r.Denied, bad):
		return "Denied"
	}
	switch {
	case badLabels(r.RequiredLabels):
		return "RequiredLabels"
	case badLabels(r.PreferredLabels):
		return "PreferredLabels"
	}
	return ""
}

func badLabels(labels map[string]string) bool {
	for k, v := range labels {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return true
		}
	}
	return false
}

// promptTokens is the prompt's length; four bytes of text are taken for a token.
func (r *Request) promptTokens() int { return max(len(r.Tokens), r.TokenCount, (len(r.Text)+3)/4) }

func (l LoRA) proto() *kvoraclev1.LoraAdapter {
	if l == (LoRA{}) {
		return nil
	}
	return &kvoraclev1.LoraAdapter{Name: l.Name, Revision: l.Revision}
}

// clamp32 fits a count into the wire's type; below 0 is 0.
func clamp32(n int) uint32 {
	if n < 0 {
		return 0
	}
	return uint32(min(uint64(n), math.MaxUint32))
}
