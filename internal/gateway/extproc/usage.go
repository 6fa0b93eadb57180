package extproc

import (
	"bytes"
	"encoding/json"
)

// keptUsage is how much of a response's beginning and end is kept to find its usage in: engines put it there.
const keptUsage = 4 << 10

// usageReader keeps the beginning and the end of a response.
type usageReader struct {
	head, tail []byte
}

// add takes the next piece.
func (r *usageReader) add(b []byte) {
	if room := keptUsage - len(r.head); room > 0 {
		n := min(room, len(b))
		r.head = append(r.head, b[:n]...)
		b = b[n:]
	}
	if len(b) >= keptUsage {
		r.tail = append(r.tail[:0], b[len(b)-keptUsage:]...)
		return
	}
	if over := len(r.tail) + len(b) - keptUsage; over > 0 {
		r.tail = r.tail[:copy(r.tail, r.tail[over:])]
	}
	r.tail = append(r.tail, b...)
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

// find looks for what was counted. Anthropic's streams tell the prompt at their beginning and the output at their end.
func (r *usageReader) find() (u usage, ok bool) {
	u.cached = -1
	for _, part := range [][]byte{r.head, append(r.head[:len(r.head):len(r.head)], r.tail...)} {
		e, found := lastUsage(part)
		if !found {
			continue
		}
		ok = true
		u.merge(e)
	}
	return u, ok
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

// lastUsage finds the last usage that is an object. Inside of generated text its quotes would have backslashes.
func lastUsage(b []byte) (*engineUsage, bool) {
	name := []byte(`"usage":`)
	for {
		i := bytes.LastIndex(b, name)
		if i < 0 {
			return nil, false
		}
		var e engineUsage
		rest := bytes.TrimLeft(b[i+len(name):], " ")
		if len(rest) > 0 && rest[0] == '{' && json.NewDecoder(bytes.NewReader(rest)).Decode(&e) == nil {
			return &e, true
		}
		b = b[:i]
	}
}
