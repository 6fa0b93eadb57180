// Package metrics reads how busy an engine is, and what it is, from what the engine serves anyway: Prometheus text of vLLM,
// SGLang, TensorRT-LLM and Triton (names of older and newer releases), SGLang's load and server documents, the model list
// of the OpenAI API, TensorRT-LLM's iteration statistics, and ORCA load reports.
//
// # What it promises
//
//   - What the engine does not say stays nil (Sample) or zero (Facts). Nothing absent becomes a number, and no number that
//     cannot be (negative, NaN, infinite, a rank above MaxRank) is taken: those are counted in Reading.Odd.
//   - One source, one statement. Where two sources contradict each other about a fact (block size, model, capacity, batch
//     size, ranks), Merge refuses both with an error that names the fact, the values and where each was read.
//   - used <= total in every completed Sample.
//
// # What it takes
//
// Bodies are bounded (MaxBody) before they are read, calls by the caller's context. A scrape reads the lines that matter
// here and skips the rest unparsed, 0.2 ms for the 300 kB that a vLLM with all its
// histograms serves (go test -bench Text).
//
// # Ownership
//
// Everything returned is the caller's. Nothing is kept between calls, so all functions may be called concurrently; a
// Fetcher may be shared.
package metrics
