package telemetry

// The decision span and its attributes. There is no convention for routing, so the names are ours; those of
// generative AI are the draft ones of OpenTelemetry, written out because no Go package has them yet.
const (
	// SpanRoute is the name of the decision span.
	SpanRoute = "kvoracle.route"

	aModel = "gen_ai.request.model" // string

	aDecisionID   = "kvoracle.route.decision_id"   // as in RouteResponse; absent for a dry run
	aRepeated     = "kvoracle.route.repeated"      // bool: an earlier decision given again for its request id
	aPolicy       = "kvoracle.route.policy"        // string
	aReason       = "kvoracle.route.reason"        // string: what decided
	aWorker       = "kvoracle.route.worker"        // string: the chosen worker
	aRank         = "kvoracle.route.dp_rank"       // int: its rank
	aCandidates   = "kvoracle.route.candidates"    // int: eligible targets
	aPromptTokens = "kvoracle.route.prompt_tokens" // int

	aMatchedDevice = "kvoracle.route.matched_tokens.device" // int: leading tokens the chosen target holds, by tier
	aMatchedHost   = "kvoracle.route.matched_tokens.host"
	aMatchedDisk   = "kvoracle.route.matched_tokens.disk"
	aMatchedShared = "kvoracle.route.matched_tokens.shared"
	aUncached      = "kvoracle.route.uncached_tokens" // int: what it has to compute

	aPredictedTTFT = "kvoracle.route.predicted_ttft" // float, seconds
	aCostTotal     = "kvoracle.route.cost.total"     // float, seconds: the sum of the terms below
	aCostQueue     = "kvoracle.route.cost.queue"
	aCostPrefill   = "kvoracle.route.cost.prefill"
	aCostFleet     = "kvoracle.route.cost.fleet"
	aCostEvict     = "kvoracle.route.cost.evict"
	aCostStay      = "kvoracle.route.cost.stay"
	aCostDecode    = "kvoracle.route.cost.decode"
	aCostTransfer  = "kvoracle.route.cost.transfer"
	aCostMemory    = "kvoracle.route.cost.memory"
	aCostBatch     = "kvoracle.route.cost.batch"
	aCostCopy      = "kvoracle.route.cost.copy"

	aShadowPolicy = "kvoracle.route.shadow.policy" // string: the second policy; absent without one, and for a dry run
	aShadowWorker = "kvoracle.route.shadow.worker" // string: what it would have chosen
	aShadowRank   = "kvoracle.route.shadow.dp_rank"
	aShadowAgrees = "kvoracle.route.shadow.agrees" // bool
	aShadowCost   = "kvoracle.route.shadow.cost"   // float, seconds: how much dearer that is; below 0: cheaper
	aShadowTTFT   = "kvoracle.route.shadow.ttft"   // float, seconds: how much later the first token is predicted

	aBlocks = "kvoracle.route.confidence.blocks" // string
	aLoad   = "kvoracle.route.confidence.load"   // string

	aErrorType = "error.type" // string: the reason of a refusal, as in ErrorInfo
)
