package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

type routeCmd struct {
	Model   string   `help:"Model the prompt is for." default:"demo"`
	Tokens  string   `help:"Token ids, separated by commas; a range is FROM-TO." placeholder:"IDS" xor:"prompt" required:""`
	Text    string   `help:"The prompt as text, for a fleet whose gateways have no tokenizer: it is matched with text that was sent before." xor:"prompt" required:""`
	Lora    string   `help:"LoRA adapter, NAME or NAME@REVISION."`
	Salt    string   `help:"Cache salt."`
	Session string   `help:"Session the request belongs to."`
	Deny    []string `help:"Workers that must not be chosen."`
	Book    bool     `help:"Book the request on the chosen worker, as a gateway would. Without it nothing is changed."`
	Explain bool     `help:"Show every candidate and the terms of its cost."`
}

// Run asks.
func (c *routeCmd) Run(e *env) error {
	req := &kvoraclev1.RouteRequest{
		Model:         c.Model,
		Prompt:        &kvoraclev1.RouteRequest_Text{Text: c.Text},
		CacheSalt:     c.Salt,
		SessionId:     c.Session,
		DeniedWorkers: c.Deny,
		DryRun:        !c.Book,
		Explain:       c.Explain,
	}
	if c.Tokens != "" {
		tokens, err := parseTokens(c.Tokens)
		if err != nil {
			return err
		}
		req.Prompt = &kvoraclev1.RouteRequest_Tokens{Tokens: &kvoraclev1.TokenPrompt{TokenIds: tokens}}
	}
	conn, err := e.dial()
	if err != nil {
		return err
	}
	ctx, cancel := e.call()
	defer cancel()
	if name, rev, _ := strings.Cut(c.Lora, "@"); name != "" {
		req.Lora = &kvoraclev1.LoraAdapter{Name: name, Revision: rev}
	}
	m, err := kvoraclev1.NewRouteServiceClient(conn).Route(ctx, req)
	if err != nil {
		return err
	}
	return printDecision(e, m)
}

// maxTokens bounds what a range on the command line may ask for.
const maxTokens = 4 << 20

// parseTokens reads "1,2,100-199".
func parseTokens(s string) ([]uint32, error) {
	var out []uint32
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.ParseUint(from, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--tokens: %q is no token id", part)
		}
		b := a
		if isRange {
			if b, err = strconv.ParseUint(to, 10, 32); err != nil || b < a {
				return nil, fmt.Errorf("--tokens: %q is no range of token ids", part)
			}
		}
		if uint64(len(out))+b-a >= maxTokens {
			return nil, errors.New("--tokens: too many")
		}
		for t := a; t <= b; t++ {
			out = append(out, uint32(t))
		}
	}
	return out, nil
}

// word is an enum value without its prefix, in small letters.
func word(v fmt.Stringer, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(v.String(), prefix)), "_", " ")
}

func targetName(t *kvoraclev1.Target) string {
	s := t.GetWorkerId()
	if t.GetDpRank() > 0 {
		s += fmt.Sprintf(" rank %d", t.GetDpRank())
	}
	return s
}

func tokensOf(t *kvoraclev1.TokensByTier) uint64 {
	return t.GetDevice() + t.GetHost() + t.GetDisk() + t.GetShared()
}

// printDecision shows the answer in words and, when it has them, the candidates as a table.
func printDecision(e *env, m *kvoraclev1.RouteResponse) error {
	t := m.GetTarget()
	fmt.Fprintf(e.out, "%s", targetName(t))
	if t.GetAddress() != "" {
		fmt.Fprintf(e.out, " at %s", t.GetAddress())
	}
	fmt.Fprintf(e.out, ": holds %d of %d prompt tokens, first token in about %.0f ms\n",
		tokensOf(m.GetMatched()), m.GetPromptTokens(), m.GetPredictedTtftSeconds()*1e3)
	if p := m.GetPrefillTarget(); p != nil {
		fmt.Fprintf(e.out, "  prefill: %s, which holds %d; cache %s, load %s\n", targetName(p), tokensOf(m.GetPrefillMatched()),
			word(m.GetPrefillConfidence().GetBlocks(), "BLOCK_CONFIDENCE_"), word(m.GetPrefillConfidence().GetLoad(), "LOAD_CONFIDENCE_"))
	}
	fmt.Fprintf(e.out, "  why: %s (policy %s); cache %s, load %s\n", word(m.GetReason(), "CHOICE_REASON_"), m.GetPolicy(),
		word(m.GetConfidence().GetBlocks(), "BLOCK_CONFIDENCE_"), word(m.GetConfidence().GetLoad(), "LOAD_CONFIDENCE_"))
	if id := m.GetDecisionId(); id != "" {
		fmt.Fprintf(e.out, "  decision %s, booked for %.0f s without news\n", id, m.GetLeaseSeconds())
	}
	if len(m.GetCandidates()) == 0 {
		for i, a := range m.GetAlternatives() {
			if i == 0 {
				fmt.Fprint(e.out, "  else: ")
			} else {
				fmt.Fprint(e.out, ", ")
			}
			fmt.Fprintf(e.out, "%s (%d tokens, %.0f ms; cache %s, load %s)", targetName(a.GetTarget()), tokensOf(a.GetMatched()),
				a.GetPredictedTtftSeconds()*1e3, word(a.GetConfidence().GetBlocks(), "BLOCK_CONFIDENCE_"), word(a.GetConfidence().GetLoad(), "LOAD_CONFIDENCE_"))
		}
		if len(m.GetAlternatives()) > 0 {
			fmt.Fprintln(e.out)
		}
		return nil
	}
	return printCandidates(e, m.GetCandidates())
}

func printCandidates(e *env, rows []*kvoraclev1.CandidateExplanation) error {
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\ncandidate\theld\texpected\tto compute\tin flight\tcost ms")
	for _, t := range rows[0].GetTerms() {
		fmt.Fprintf(w, "\t%s", t.GetName())
	}
	fmt.Fprint(w, "\tcache\tload\t\n")
	for _, r := range rows {
		name := targetName(r.GetTarget())
		if p := r.GetPrefillTarget(); p != nil {
			name = targetName(p) + " > " + name
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t", name, tokensOf(r.GetMatched()), r.GetExpectedTokens())
		if x := r.GetExcluded(); x != kvoraclev1.ExclusionReason_EXCLUSION_REASON_UNSPECIFIED {
			fmt.Fprintf(w, "excluded: %s\t\n", word(x, "EXCLUSION_REASON_"))
			continue
		}
		fmt.Fprintf(w, "%d\t%d\t%.1f", r.GetUncachedTokens(), r.GetInFlight(), r.GetTotalCostSeconds()*1e3)
		for _, t := range r.GetTerms() {
			fmt.Fprintf(w, "\t%.1f", t.GetSeconds()*1e3)
		}
		fmt.Fprintf(w, "\t%s\t%s\t\n", word(r.GetConfidence().GetBlocks(), "BLOCK_CONFIDENCE_"), word(r.GetConfidence().GetLoad(), "LOAD_CONFIDENCE_"))
	}
	return w.Flush()
}

type explainCmd struct {
	Decision string `arg:"" help:"Decision id, from the gateway's log or from route --book."`
}

// Run explains.
func (c *explainCmd) Run(e *env) error {
	conn, err := e.dial()
	if err != nil {
		return err
	}
	ctx, cancel := e.call()
	defer cancel()
	m, err := kvoraclev1.NewFleetServiceClient(conn).ExplainDecision(ctx, &kvoraclev1.ExplainDecisionRequest{DecisionId: c.Decision})
	if err != nil {
		return err
	}
	fmt.Fprintf(e.out, "model %s, decided %s\n", m.GetModel(), m.GetDecidedAt().AsTime().Format("2006-01-02 15:04:05.000 MST"))
	return printDecision(e, m.GetDecision())
}
