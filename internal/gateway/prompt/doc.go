// Package prompt reads what a decision needs out of the bodies of inference requests: the model, the prompt, and what else
// sets its cache apart. OpenAI chat, completions, embeddings and responses, Anthropic messages, and token prompts as vLLM
// takes them, in completions and embeddings and at its own door for token ids, where images are told as well.
//
// Bodies come in pieces, as a proxy sent them. They are read token by token, and neither a tree of the body nor a copy of it
// is made: Request.Text is slices of the pieces. What is held besides is at most the longest single string or array of
// numbers, when it lies in several pieces.
//
// Text is the prompt as it lies in the body, JSON around it included. It is not what the engine's template makes of it, and
// need not be: two requests that begin alike begin alike here, so long as one client has written both. What comes first in
// templates comes first in it (tools, then system, then messages), whatever the order in the body:
//
//	chat       tools || messages without the closing bracket
//	messages   tools || system || messages without the closing bracket     (Anthropic)
//	responses  tools || instructions || input without the closing bracket or quote
//	completions, embeddings: the text of the prompt; of several prompts the first
//
// An attachment in it (a string that begins with "data:" and has more than 256 bytes) stands there as its digest: an image
// is not as many tokens as its bytes would be.
//
// Parse is a pure function and may be called concurrently. For a body that is JSON it finds what encoding/json finds (a name
// that comes twice counts as it last came); a body that is not is refused, however late its fault.
package prompt
