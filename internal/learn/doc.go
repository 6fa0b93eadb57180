// Package learn finds out what work costs on each worker, from how long requests waited for their first token. It starts
// from a prior per performance class and corrects it by factors, one for each part of a prefill's time:
//
//	time = sum over parts of factor[part] * predicted[part]
//
// where the predictions are the prior's. (The shortest iteration stands in for the linear layers where they are less.) A
// worker's samples are its prefills laid end to end: the time that counts for one begins when the request was booked, or
// when the one before it on that target had its first token, whichever is later. Waiting in a queue is thus nobody's
// cost, and the sum over a busy spell is the spell. First tokens that come together (prompts that shared an iteration)
// make one sample.
//
// How far into an iteration a request came is not known, so a sample of k iterations is known up to a k-th of itself: it
// weighs that much less. Long prefills say what work costs, single iterations hardly.
//
// The factors are those of a class, fitted to the samples of all its targets by recursive least squares on relative
// errors, robustly:
//   - an error beyond a few times the usual one counts as that much, so that an outlier moves nothing far;
//   - the fit never becomes so sure that it cannot follow: uncertainty grows by a little with every sample, up to the
//     prior's;
//   - the prior's uncertainty is mostly common to all parts, so that a worker that is simply faster or slower is known
//     after a few samples, and only what the samples tell apart is told apart; factors that no sample tells apart are
//     drawn together, so that what the model leaves out does not drive them against one another.
//
// A target differs from its class by one number, its speed, and only as far as that stands out of its own error and shows in
// its shorter and in its longer prefills. Workers that are alike therefore look alike, exactly: a router that takes a few per cent of luck for a difference sends long
// prompts to the lucky and repeats prefixes there. For the same reason all targets of a class see what it has learned at
// one moment, when Publish is called.
//
// A worker may become another one: throttled, or well again. When all but one of its newest few samples say so beyond their
// error, the older ones are given up. And a worker of which nothing was heard for half a minute is believed in less and less:
// who looks slow is not asked where others are idle, and nobody would find out that it is well.
//
// Invariants, for any input: every factor is finite and in [MinFactor, MaxFactor]; a sample with a number that is not
// finite, negative or absurd is refused and counted and changes nothing; memory is bounded by the highest TargetID and
// MaxClasses; a target that begins a new life, or another class, starts from what its class has learned, and a class
// from the prior; Of changes for all targets of a class at once, but for their own speeds.
//
// Time is handed in (seconds on any one clock). All methods may be called concurrently: one mutex, held for about a
// microsecond. Cost: O(NumParts^2) a sample, no allocation.
package learn
