// Package tokenize asks an inference engine for the token ids of a prompt that came as text: by vLLM's /render (POST
// /v1/chat/completions/render and the like, with --enable-scale-out), which takes the whole request and says what the engine would
// compute; or by POST /tokenize, which applies the model's own chat template to messages and tools. Which of them is served is found
// out by asking: an engine that has no /render is not asked for it again for a minute, and /tokenize answers within what is left of
// the same budget. A prompt whose tokens are known is matched with what engines report; one whose are
// not, by its text. Images and the like are placeholders among tokens, the same for all: /render says what the engine's cache calls
// each, and a prompt of which that is not said is known by its text, where they stand as they came.
//
// It is a help and no need: an answer that does not come within the budget is done without, so a decision waits for no
// longer than that. At most Config.Parallel are under way, the next is done without at once.
//
// What was asked is remembered, by a hash of the question that is seeded per process:
//
//	sum of tokens remembered <= Config.CacheTokens
//
// least recently used first to go. A turn of a conversation is a new question, so the cache is for what is asked again: retries,
// fixed prompts, several answers to one.
package tokenize
