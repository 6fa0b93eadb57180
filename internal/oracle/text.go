package oracle

import "math"

// A prompt may be text that nobody has tokenized. Four bytes of it are taken for a token, and its blocks lie in a keyspace of
// their own, where no report ever says anything. What is known of them is learned from what was sent where and from what
// engines counted, as of targets that do not report tokens (approx.go), but of every target and in an index apart: facts about
// tokens say nothing about text, and the other way round. So a target may be FRESH for one question and APPROXIMATE for
// the next.

// form is what a prompt is made of.
type form uint8

const (
	asTokens form = iota
	asText

	numForms
)

// textBytes is how many bytes of text are taken for a token.
const textBytes = 4

// TextPrompt is the prompt that a text is, in pieces that are joined. Route reads them while it runs and keeps none.
func TextPrompt(pieces [][]byte) Prompt {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	return Prompt{PackedTokens: pieces, Length: max(1, (n+textBytes-1)/textBytes), IsText: true}
}

func (p *Prompt) form() form { return formOf(p.IsText) }

func (m *remembered) form() form { return formOf(m.isText) }

func formOf(isText bool) form {
	if isText {
		return asText
	}
	return asTokens
}

// formOf is what the prompt of a recent decision was made of.
func (o *Oracle) formOf(id DecisionID) form {
	if m, ok := o.recall(id); ok {
		return m.form()
	}
	return asTokens
}

// cached is what an engine has found in its cache, in the tokens that the decision reckoned in; negative: it did not say.
// A text's tokens are guessed, the engine's are counted: what they have in common is the share of the prompt.
func (m *remembered) cached(e *Event) int {
	if !m.isText || e.Cached < 0 || e.PromptTokens <= 0 {
		return e.Cached
	}
	share := min(1, float64(e.Cached)/float64(e.PromptTokens))
	return int(math.Round(share * float64(m.promptTokens)))
}

// textConfidence is confidence for a question that is text.
func (f *feed) textConfidence() BlockConfidence {
	if f.credited[asText].Load() != 0 {
		return Approximate
	}
	return Silent
}
