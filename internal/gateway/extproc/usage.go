package extproc

import (
	"bytes"
	"encoding/json"
)

// longestUsage is the most of an object that is read as usage, in bytes.
const longestUsage = 4 << 10

// usageReader finds what was counted, wherever in a response it stands, and keeps that alone: engines put it at the end, but
// what a request asks for besides (logprobs of its prompt, its token ids) comes after it, and is longer than any answer.
type usageReader struct {
	first, last engineUsage
	found       int    // how many there were
	begun       []byte // what may become the next: a part of its name, or of its object
}

// usageName stands before each. Inside of generated text its quotes would have backslashes.
const usageName = `"usage":`

// add takes the next piece.
func (r *usageReader) add(b []byte) {
	if len(r.begun) > 0 {
		b = append(r.begun, b...)
		r.begun = nil
	}
	for {
		i := bytes.Index(b, []byte(usageName))
		if i < 0 {
			r.keep(b[len(b)-tailOf(b):])
			return
		}
		object := bytes.TrimPrefix(b[i+len(usageName):], []byte(" "))
		isObject := len(object) > 0 && object[0] == '{'
		n := 0
		if isObject {
			n = objectIn(object)
		}
		switch {
		case len(object) == 0, isObject && n == 0 && len(object) < longestUsage:
			r.keep(b[i:]) // the rest comes later
			return
		case n > 0:
			r.note(object[:n])
		}
		b = object[n:]
	}
}

func (r *usageReader) keep(b []byte) {
	if len(b) > 0 {
		r.begun = bytes.Clone(b) // and not what lies around it
	}
}

func (r *usageReader) note(object []byte) {
	var e engineUsage
	if json.Unmarshal(object, &e) != nil {
		return
	}
	if r.found++; r.found == 1 {
		r.first = e
	}
	r.last = e
}

// tailOf is how much of the name the end of b may be.
func tailOf(b []byte) int {
	for n := min(len(b), len(usageName)-1); n > 0; n-- {
		if usageName[:n] == string(b[len(b)-n:]) {
			return n
		}
	}
	return 0
}

// objectIn is the length of the object that b begins with; 0: it ends later, or is longer than usage is.
func objectIn(b []byte) int {
	depth, isText := 0, false
	for i := 0; i < min(len(b), longestUsage); i++ {
		switch c := b[i]; {
		case isText && c == '\\':
			i++
		case c == '"':
			isText = !isText
		case isText:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// usage is what an engine counted. cached is negative if it did not say.
type usage struct {
	prompt, output, cached int
}

// engineUsage is the object that engines write: OpenAI's chat and responses, and Anthropic's.
type engineUsage struct {
	PromptTokens     *int     `json:"prompt_tokens"`
	CompletionTokens int      `json:"completion_tokens"`
	PromptDetails    *details `json:"prompt_tokens_details"`

	InputTokens   *int     `json:"input_tokens"`
	OutputTokens  int      `json:"output_tokens"`
	InputDetails  *details `json:"input_tokens_details"`
	CacheRead     *int     `json:"cache_read_input_tokens"`
	CacheCreation int      `json:"cache_creation_input_tokens"`
}

type details struct {
	Cached *int `json:"cached_tokens"`
}

// find says what was counted. Anthropic's streams tell the prompt at their beginning and the output at their end.
func (r *usageReader) find() (u usage, ok bool) {
	u.cached = -1
	if r.found > 0 {
		u.merge(&r.first)
		u.merge(&r.last)
	}
	return u, r.found > 0
}

func (u *usage) merge(e *engineUsage) {
	u.output = max(u.output, e.CompletionTokens, e.OutputTokens, 0)
	switch {
	case e.PromptTokens != nil:
		u.prompt = max(*e.PromptTokens, 0)
		if d := e.PromptDetails; d != nil && d.Cached != nil {
			u.cached = max(*d.Cached, 0)
		}
	case e.InputTokens != nil:
		u.prompt = max(*e.InputTokens, 0)
		if d := e.InputDetails; d != nil && d.Cached != nil {
			u.cached = max(*d.Cached, 0)
		}
		if e.CacheRead != nil { // Anthropic's input_tokens are those that were not
			u.cached = max(*e.CacheRead, 0)
			u.prompt += u.cached + max(e.CacheCreation, 0)
		}
	}
}
