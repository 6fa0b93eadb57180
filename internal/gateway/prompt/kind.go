package prompt

import "strings"

// Kind is the sort of request, by its path.
type Kind uint8

// The kinds.
const (
	None        Kind = iota // nothing that has a prompt
	Chat                    // OpenAI: POST .../chat/completions
	Completions             // OpenAI: POST .../completions
	Embeddings              // OpenAI: POST .../embeddings
	Responses               // OpenAI: POST .../responses
	Messages                // Anthropic: POST .../messages
	Generate                // vLLM's tokens in, tokens out: POST .../inference/v1/generate
)

// String gives the lower-case name.
func (k Kind) String() string {
	switch k {
	case None:
		return "none"
	case Chat:
		return "chat"
	case Completions:
		return "completions"
	case Embeddings:
		return "embeddings"
	case Responses:
		return "responses"
	case Messages:
		return "messages"
	case Generate:
		return "generate"
	default:
		return "unknown"
	}
}

// KindOf tells a request's kind by its method and path. What stands before the last names does not matter, so that routes
// with a prefix work too.
func KindOf(method, path string) Kind {
	if method != "POST" {
		return None
	}
	path, _, _ = strings.Cut(path, "?")
	path = strings.TrimSuffix(path, "/")
	switch {
	case strings.HasSuffix(path, "/chat/completions"):
		return Chat
	case strings.HasSuffix(path, "/completions"):
		return Completions
	case strings.HasSuffix(path, "/embeddings"):
		return Embeddings
	case strings.HasSuffix(path, "/responses"):
		return Responses
	case strings.HasSuffix(path, "/messages"):
		return Messages
	case strings.HasSuffix(path, "/inference/v1/generate"):
		return Generate
	default:
		return None
	}
}

// Places in a prompt's text.
const (
	first = iota
	second
	third
	numPlaces
)

// place tells where in the text a member of the body belongs; -1: nowhere.
func (k Kind) place(name string) int {
	switch k {
	case Chat:
		switch name {
		case "tools":
			return first
		case "messages":
			return third
		}
	case Messages:
		switch name {
		case "tools":
			return first
		case "system":
			return second
		case "messages":
			return third
		}
	case Responses:
		switch name {
		case "tools":
			return first
		case "instructions":
			return second
		case "input":
			return third
		}
	case Completions:
		if name == "prompt" {
			return third
		}
	case Embeddings:
		switch name {
		case "input", "messages":
			return third
		}
	case Generate:
		if name == "token_ids" {
			return third
		}
	case None:
	}
	return -1
}

// takesTokens says that the prompt may be token ids.
func (k Kind) takesTokens() bool { return k == Completions || k == Embeddings }
