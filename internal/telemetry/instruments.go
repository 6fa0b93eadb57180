package telemetry

// Kind is the sort of an instrument.
type Kind uint8

// The kinds.
const (
	Counter   Kind = iota // only grows
	Histogram             // distribution with explicit bounds
	Gauge                 // read when somebody collects
)

// String gives the lower-case name.
func (k Kind) String() string {
	switch k {
	case Counter:
		return "counter"
	case Histogram:
		return "histogram"
	case Gauge:
		return "gauge"
	default:
		return "unknown"
	}
}

// Instrument describes one metric.
type Instrument struct {
	Name       string // OpenTelemetry name; Prometheus shows it with "_" for "." and a suffix for unit and kind
	Kind       Kind
	Unit       string   // UCUM
	Meaning    string   // for people
	Attributes []string // attribute keys, in the order of observer.go
	Bounds     []float64
}

// Names of the instruments.
const (
	mDecisions        = "kvoracle.decisions"
	mDecisionDuration = "kvoracle.decision.duration"
	mPromptTokens     = "kvoracle.prompt.tokens"
	mMatchedTokens    = "kvoracle.matched.tokens"
	mMatchedShare     = "kvoracle.matched.share"
	mRefused          = "kvoracle.requests.refused"
	mPanics           = "kvoracle.panics"
	mClosed           = "kvoracle.connections.closed"
	mEnded            = "kvoracle.http.connections"
	mReloads          = "kvoracle.reloads"
	mSaves            = "kvoracle.index.saves"
	mSaveDuration     = "kvoracle.index.save.duration"
	mSaveBytes        = "kvoracle.index.save.bytes"
	mLoads            = "kvoracle.index.loads"

	mPicked     = "kvoracle.extproc.requests"
	mPrompted   = "kvoracle.extproc.prompts"
	mUnobserved = "kvoracle.extproc.unobserved"
	mLogged     = "kvoracle.accesslog.entries"
	mTokenized  = "kvoracle.tokenize.requests"

	mQueued     = "kvoracle.queue.depth"
	mQueueWaits = "kvoracle.queue.wait"
	mQueueShed  = "kvoracle.queue.shed"

	mShadow     = "kvoracle.shadow.decisions"
	mShadowCost = "kvoracle.shadow.cost"

	mTargetsPredicted = "kvoracle.targets.predicted"
	mTargetsMeasured  = "kvoracle.targets.measured"

	mBlockChanges    = "kvoracle.blocks.changes"
	mBlockOperations = "kvoracle.blocks.operations"
	mBlockRefusals   = "kvoracle.blocks.refusals"
	mBlockBatches    = "kvoracle.blocks.batches"
	mBlockDigests    = "kvoracle.blocks.digests"
	mSnapshots       = "kvoracle.blocks.snapshots"
	mResyncs         = "kvoracle.blocks.resyncs"
	mSamples         = "kvoracle.load.samples"

	mProgress        = "kvoracle.progress.events"
	mFirstToken      = "kvoracle.first_token.duration"
	mFirstTokenError = "kvoracle.first_token.error"
	mCachedTokens    = "kvoracle.cached.tokens"
	mCachedError     = "kvoracle.cached.error"
	mWorkerCached    = "kvoracle.worker.cached.tokens"
	mReleased        = "kvoracle.bookings.released"
	mWorkerEvents    = "kvoracle.worker.events"

	mWorkers        = "kvoracle.workers"
	mTargets        = "kvoracle.targets"
	mModelTargets   = "kvoracle.model.targets"
	mLedgers        = "kvoracle.index.ledgers"
	mHolderBlocks   = "kvoracle.index.blocks"
	mDistinctBlocks = "kvoracle.index.distinct_blocks"
	mOrphans        = "kvoracle.index.orphans"
	mReclaimable    = "kvoracle.index.reclaimable"
	mUnmatched      = "kvoracle.targets.unmatched"
	mEngineHashes   = "kvoracle.engine_hashes"
	mEvicted        = "kvoracle.index.evicted"
	mRefound        = "kvoracle.index.refound"
	mApproximate    = "kvoracle.approximate.blocks"
	mText           = "kvoracle.text.blocks"
	mGuesses        = "kvoracle.guesses"
	mForgone        = "kvoracle.guesses.forgone"
	mBookings       = "kvoracle.bookings"
	mGateways       = "kvoracle.gateways"
	mLearned        = "kvoracle.learn.prefills"
	mUnlearned      = "kvoracle.learn.refused"
	mPresumed       = "kvoracle.prefills.presumed"
	mOutlived       = "kvoracle.bookings.presumed"

	mReplicas      = "kvoracle.replication.replicas"
	mLogThere      = "kvoracle.replication.connected"
	mLogBehind     = "kvoracle.replication.behind"
	mLogEntries    = "kvoracle.replication.entries"
	mLogBytes      = "kvoracle.replication.bytes"
	mReplicaTarget = "kvoracle.replication.targets"
	mDifferences   = "kvoracle.replication.differences"
	mAnnouncements = "kvoracle.replication.announcements"
	mCopies        = "kvoracle.replication.snapshots"
	mNotices       = "kvoracle.replication.notices"
)

// Keys of metric attributes.
const (
	kPolicy     = "policy"
	kReason     = "reason"
	kShadow     = "shadow"
	kAgrees     = "agrees"
	kBlocks     = "blocks"
	kLoad       = "load"
	kBooked     = "booked"
	kTier       = "tier"
	kRPC        = "rpc"
	kChange     = "change"
	kOutcome    = "outcome"
	kStep       = "step"
	kDirection  = "direction"
	kSource     = "source"
	kCause      = "cause"
	kEvent      = "event"
	kState      = "state"
	kConfidence = "confidence"
	kModel      = "model"
	kWorker     = "worker"
	kFresh      = "fresh"
	kFile       = "file"
)

// Instruments lists every metric of the service. docs/operations.md is checked against it.
func Instruments() []Instrument {
	// A decision takes tens of microseconds; a first token milliseconds to minutes.
	fast := []float64{10e-6, 20e-6, 30e-6, 50e-6, 75e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 0.25, 1}
	slow := []float64{1e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60, 120}
	share := []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99}
	tokens := []float64{0, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144}

	return []Instrument{
		{mDecisions, Counter, "{decision}", "Decisions, by what decided and how far the picture behind them could be trusted; booked is false for dry runs.", []string{kPolicy, kReason, kBlocks, kLoad, kBooked}, nil},
		{mDecisionDuration, Histogram, "s", "Time of a decision inside the oracle: hashing, matching, choosing and booking, without the RPC.", nil, fast},
		{mPromptTokens, Counter, "{token}", "Prompt tokens of booked decisions.", nil, nil},
		{mMatchedTokens, Counter, "{token}", "Prompt tokens of booked decisions that the chosen target reported to hold, by tier.", []string{kTier}, nil},
		{mMatchedShare, Histogram, "1", "Share of a booked prompt that the chosen target reported to hold.", nil, share},
		{mRefused, Counter, "{request}", "Calls and stream messages answered with an error, by the reason in ErrorInfo, or by the status code where there is none.", []string{kRPC, kReason}, nil},
		{mPanics, Counter, "{panic}", "Handlers that panicked: each is a bug.", []string{kRPC}, nil},
		{mClosed, Counter, "{connection}", "Connections closed because there were too many: full (all together), or idle (the oldest of those that had made no call).", []string{kReason}, nil},
		{mEnded, Counter, "{connection}", "Connections that have come to the HTTP port and gone from those who answer ext_authz there: handed (on to Go's HTTP server, with another request or one of another form), left (closed by the client between requests), silent (no request came in time), broken (a request or its answer did not come through), closing (the server was going).", []string{kOutcome}, nil},
		{mReloads, Counter, "{reload}", "What had changed and was read again: the certificate with its authorities, that for NATS (nats_certificate), the access file, or the settings (config); applied, or refused, when the former stays in force.", []string{kFile, kOutcome}, nil},
		{mSaves, Counter, "{save}", "Times that what is known of the fleet was written to the data folder, or was not: written or failed.", []string{kOutcome}, nil},
		{mSaveDuration, Histogram, "s", "Time of such a save, from the first worker to the file's being safe on the disk.", nil, slow},
		{mSaveBytes, Counter, "By", "Bytes written by such saves.", nil, nil},
		{mLoads, Counter, "{file}", "Files looked at to begin where the process before has ended: loaded, or refused (not whole, damaged, of another version or deployment); nothing when there was none, failed when the folder could not be read.", []string{kOutcome}, nil},

		{mPicked, Counter, "{request}", "HTTP requests that Envoy asked about, by what it was told: decided; in_turn (no prompt to look at); unparsed, unknown_model, late or failed (they went on without a choice); no_endpoint (503), shed (429), too_large (413); overloaded (more was asked than can be answered: it went on without a choice); abandoned (gone before there was an answer).", []string{kOutcome}, nil},
		{mPrompted, Counter, "{prompt}", "Prompts decided for Envoy, by what they were known by: token ids in the body, a tokenizer, or their text.", []string{kSource}, nil},
		{mUnobserved, Counter, "{response}", "Responses that Envoy showed and whose decision is not known here: another replica's, or over already.", nil, nil},
		{mLogged, Counter, "{entry}", "Entries of Envoy's access log, by what they did: ended a booking; alive (it lives on); unknown (of a decision of another replica's, or over already); foreign (nothing was booked for it); and lost, bookings given up since no entry came.", []string{kOutcome}, nil},
		{mTokenized, Counter, "{request}", "Texts whose tokens an engine was asked for: rendered or asked (it has answered by /render or /tokenize), known (remembered); or done without: late, busy, failed, foreign (of a kind that is not asked about).", []string{kOutcome}, nil},

		{mQueued, Gauge, "{question}", "Questions that wait for a place, all workers that could take them being at their limits.", nil, nil},
		{mQueueWaits, Histogram, "s", "How long questions waited for a place, by how that ended: served, timeout, displaced (a more urgent one, or one of a tenant with fewer, took its place in the queue), abandoned (its caller left), draining, failed (nobody can take it any more).", []string{kOutcome}, slow},
		{mQueueShed, Counter, "{question}", "Questions that were ready to wait and were refused: full (as many waited as may), displaced, timeout, draining, failed.", []string{kReason}, nil},

		{mShadow, Counter, "{decision}", "Booked decisions that a shadow policy took part in, by whether it would have chosen the same target; their share is its agreement.", []string{kPolicy, kShadow, kAgrees}, nil},
		{mTargetsPredicted, Counter, "{decision}", "Booked decisions with a time target: reached, or missed (no worker was predicted to be soon enough).", []string{kOutcome}, nil},
		{mTargetsMeasured, Counter, "{request}", "Requests with a target for the first token that have one: reached or missed.", []string{kOutcome}, nil},
		{mShadowCost, Histogram, "s", "Distance between the predicted cost of the shadow policy's choice and of the one taken, where they differ; direction says whether the shadow's is over or under.", []string{kDirection}, slow},

		{mBlockChanges, Counter, "{block}", "Blocks in reports: stored, repeated_store, removed, unknown_removal, orphan (parent not held yet).", []string{kChange}, nil},
		{mBlockOperations, Counter, "{operation}", "Operations in block reports: applied, refused, or other_group (of an attention group that does not count as prefix).", []string{kOutcome}, nil},
		{mBlockRefusals, Counter, "{operation}", "Refused operations in block reports, by the reason named in the ack.", []string{kReason}, nil},
		{mBlockBatches, Counter, "{batch}", "Batches that were not applied: duplicate, gap (numbers missing before it), ignored (a snapshot is awaited).", []string{kOutcome}, nil},
		{mBlockDigests, Counter, "{digest}", "Digests: matched, mismatched (the picture had drifted), skipped (not comparable at that moment).", []string{kOutcome}, nil},
		{mSnapshots, Counter, "{snapshot}", "Snapshots that were taken over.", nil, nil},
		{mResyncs, Counter, "{request}", "Snapshots asked for, by cause.", []string{kReason}, nil},
		{mSamples, Counter, "{sample}", "Load samples: applied, or ignored because a newer one was known.", []string{kOutcome}, nil},

		{mProgress, Counter, "{event}", "Lifecycle events of requests, by step: applied, late, or unknown (no such booking).", []string{kStep, kOutcome}, nil},
		{mFirstToken, Histogram, "s", "Time to first token as measured.", nil, slow},
		{mFirstTokenError, Histogram, "s", "Distance between the predicted and the measured time to first token; direction says whether the prediction was over or under.", []string{kDirection}, slow},
		{mCachedTokens, Counter, "{token}", "Prompt tokens of finished requests that came from the cache: as matched by the oracle, and as counted by the engine.", []string{kSource}, nil},
		{mCachedError, Histogram, "{token}", "Distance between matched and counted tokens of a finished request; direction says whether the match was over or under.", []string{kDirection}, tokens},
		{mWorkerCached, Counter, "{token}", "The same tokens by worker, of those that there are: one whose engine counts far less than was matched frees blocks without telling, or late. Two series a worker.", []string{kWorker, kSource}, nil},
		{mReleased, Counter, "{booking}", "Bookings dropped without word from their gateway: its lease ran out, the gateway came back without it, or the worker went.", []string{kCause}, nil},
		{mWorkerEvents, Counter, "{event}", "Changes in workers' lives: registered, reborn, draining, ready, lost, removed; unmatched when a rank holds blocks that no question begins with.", []string{kEvent}, nil},

		{mWorkers, Gauge, "{worker}", "Workers, by state.", []string{kState}, nil},
		{mTargets, Gauge, "{target}", "Targets (ranks of workers), by how far their block reports can be trusted.", []string{kConfidence}, nil},
		{mModelTargets, Gauge, "{target}", "Targets that serve a model, by whether their block reports are fresh.", []string{kModel, kFresh}, nil},
		{mLedgers, Gauge, "{ledger}", "Targets whose blocks can be matched.", nil, nil},
		{mHolderBlocks, Gauge, "{block}", "Blocks that targets reported to hold, each once per target.", nil, nil},
		{mDistinctBlocks, Gauge, "{block}", "Different blocks in the index.", nil, nil},
		{mOrphans, Gauge, "{block}", "Blocks held back until their parent is reported.", nil, nil},
		{mReclaimable, Gauge, "{block}", "Blocks of targets that are gone, whose memory is not freed yet.", nil, nil},
		{mUnmatched, Gauge, "{target}", "Targets that hold blocks which no question has begun with for thousands of them: callers send other tokens, models, adapters or salts than engines cache.", nil, nil},
		{mEngineHashes, Gauge, "{hash}", "Engine hashes kept for ranks that name their blocks by them.", nil, nil},
		{mEvicted, Counter, "{block}", "Blocks that were given up, or not taken, because the index was full: the deepest, least recently used ones of who has most. Their targets are partial until there is room.", nil, nil},
		{mRefound, Counter, "{block}", "Blocks given up before that came back because an engine had counted them as cached.", nil, nil},
		{mApproximate, Gauge, "{block}", "Blocks guessed of targets that do not report theirs.", nil, nil},
		{mText, Gauge, "{block}", "Blocks of text guessed of all targets, from prompts that came as text.", nil, nil},
		{mReplicas, Gauge, "{replica}", "Other replicas that give signs of life; 0 where this process is the service, or NATS is away.", nil, nil},
		{mLogThere, Gauge, "{log}", "1 while the replicas' log can be written and is read, 0 while it is away and this process serves on by itself; with --data-dir alone the log is this process's own.", nil, nil},
		{mLogBehind, Gauge, "{entry}", "Entries of the replicas' log that are not applied here yet, as of a moment ago.", nil, nil},
		{mLogEntries, Counter, "{entry}", "Entries of the replicas' log: written, unwritten (NATS was away; what they said is announced later), failed on the way; and of those read: applied, own, overtaken (another replica owns the target), repeated, skipped (announced, and known), malformed, refused.", []string{kOutcome}, nil},
		{mLogBytes, Counter, "By", "Bytes of entries written to the replicas' log, and read of others there.", []string{kOutcome}, nil},
		{mReplicaTarget, Gauge, "{target}", "Targets by how their reports come: local, by way of other replicas (followed), and those of the latter that miss something until it is announced (lacking).", []string{kState}, nil},
		{mDifferences, Counter, "{difference}", "What was found missing: gap in a target's entries, hole in the log (its limits were too small), standing (a target differed from its origin's). Each is announced anew.", []string{kReason}, nil},
		{mAnnouncements, Counter, "{announcement}", "Announcements of whole targets: asked for here, asked of this replica (received), written by it.", []string{kOutcome}, nil},
		{mCopies, Counter, "{snapshot}", "Snapshots of the index that replicas keep in NATS: written by this one, failed (not written, or the bucket not found out about); at the start loaded, or refused (not whole, damaged, of another version, deployment or log, or older than the log); and swept, remains of one whose writer has died.", []string{kOutcome}, nil},
		{mNotices, Counter, "{notice}", "Bookings, steps of requests and samples of load among replicas: told, untold (no room or no NATS), heard, missed (messages that did not come), refused (of what is not known here, or known already), held (steps that came before their booking), unheld (it never came).", []string{kOutcome}, nil},
		{mForgone, Counter, "{prompt}", "Prompts routed whose blocks are not expected anywhere, because too many are already.", nil, nil},
		{mGuesses, Gauge, "{prompt}", "Prompts under way whose blocks are expected and not confirmed.", nil, nil},
		{mBookings, Gauge, "{booking}", "Requests booked and not seen to end.", nil, nil},
		{mGateways, Gauge, "{gateway}", "Gateways with bookings.", nil, nil},
		{mLearned, Gauge, "{prefill}", "Prefills that costs were learned from since the start.", nil, nil},
		{mUnlearned, Gauge, "{prefill}", "Prefills with times that cannot be, from which nothing was learned, since the start.", nil, nil},
		{mPresumed, Gauge, "{prefill}", "Prefills taken to be over by the clock, of gateways that tell no first tokens, since the start.", nil, nil},
		{mOutlived, Gauge, "{booking}", "Bookings taken to be over by the clock, of gateways that tell no ends, since the start.", nil, nil},
	}
}
