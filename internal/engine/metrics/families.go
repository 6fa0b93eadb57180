package metrics

// known lists the metrics that are read. Sources of the names: vllm/v1/metrics/loggers.py; SGLang's metrics collector;
// TensorRT-LLM's metrics collector for trtllm-serve and the tensorrtllm backend's metrics for Triton.
func known() []family {
	const (
		vllmRank   = "engine"
		sglangRank = "dp_rank"
		trtRank    = "attention_dp_rank"
	)
	running := func(s *Sample) **int { return &s.Running }
	waiting := func(s *Sample) **int { return &s.Waiting }
	usedTokens := func(s *Sample) **int { return &s.UsedTokens }
	totalTokens := func(s *Sample) **int { return &s.TotalTokens }
	usedBlocks := func(s *Sample) **int { return &s.UsedBlocks }
	totalBlocks := func(s *Sample) **int { return &s.TotalBlocks }
	return []family{
		{"vllm:num_requests_running", VLLM, gauge(vllmRank, running)},
		{"vllm:num_requests_waiting", VLLM, gauge(vllmRank, waiting)},
		{"vllm:kv_cache_usage_perc", VLLM, usage(vllmRank)},
		{"vllm:gpu_cache_usage_perc", VLLM, usage(vllmRank)}, // until 0.10
		{"vllm:cache_config_info", VLLM, vllmCacheConfig},

		{"sglang:num_running_reqs", SGLang, gauge(sglangRank, running)},
		{"sglang:num_queue_reqs", SGLang, gauge(sglangRank, waiting)},
		{"sglang:kv_used_tokens", SGLang, gauge(sglangRank, usedTokens)},
		{"sglang:num_used_tokens", SGLang, gauge(sglangRank, usedTokens)}, // before kv_used_tokens
		{"sglang:max_total_num_tokens", SGLang, gauge(sglangRank, totalTokens)},
		{"sglang:full_token_usage", SGLang, usage(sglangRank)},
		{"sglang:token_usage", SGLang, usage(sglangRank)}, // with windows the fullest pool, so the second choice
		{"sglang:page_size", SGLang, factGauge(func(f *Facts) *int { return &f.BlockSize })},
		{"sglang:num_pages", SGLang, factGauge(func(f *Facts) *int { return &f.TotalBlocks })},
		{"sglang:cache_config_info", SGLang, sglangCacheConfig}, // until 0.5.10

		{"trtllm_num_requests_running", TRTLLM, gauge(trtRank, running)},
		{"trtllm_num_requests_waiting", TRTLLM, gauge(trtRank, waiting)},
		{"trtllm_kv_cache_used_blocks", TRTLLM, gauge(trtRank, usedBlocks)},
		{"trtllm_kv_cache_max_blocks", TRTLLM, gauge(trtRank, totalBlocks)},
		{"trtllm_kv_cache_utilization", TRTLLM, usage(trtRank)},
		{"trtllm_kv_cache_tokens_per_block", TRTLLM, factGauge(func(f *Facts) *int { return &f.BlockSize })},
		{"trtllm_max_num_active_requests", TRTLLM, factGauge(func(f *Facts) *int { return &f.MaxRunning })},

		{"nv_trt_llm_request_metrics", TRTLLM, tritonRequests},
		{"nv_trt_llm_kv_cache_block_metrics", TRTLLM, tritonBlocks},

		{"process_start_time_seconds", Unknown, func(r *Reading, s series) {
			if s.value > 0 && s.value < maxCount {
				r.Facts.Started = s.value
			}
		}},
	}
}

func gauge(rankLabel string, field func(*Sample) **int) func(*Reading, series) {
	return func(r *Reading, s series) {
		r.setModel(s.labels["model_name"])
		r.change(s.rank(rankLabel), func(to *Sample) { r.count(field(to), s.value) })
	}
}

func usage(rankLabel string) func(*Reading, series) {
	return func(r *Reading, s series) {
		r.change(s.rank(rankLabel), func(to *Sample) { r.ratio(&to.Usage, s.value) })
	}
}

// factGauge reads a gauge that is the same on all ranks.
func factGauge(field func(*Facts) *int) func(*Reading, series) {
	return func(r *Reading, s series) {
		r.setModel(s.labels["model_name"])
		if !(s.value >= 0 && s.value <= maxCount) {
			r.Odd++
			return
		}
		setFact(field(&r.Facts), int(s.value))
	}
}

// vllmCacheConfig reads the engine's settings, which are labels. One block of the pool is a placeholder that never holds
// anything, and the usage gauge leaves it out; so do we.
func vllmCacheConfig(r *Reading, s series) {
	setFact(&r.Facts.BlockSize, number(s.labels["block_size"]))
	if n := number(s.labels["num_gpu_blocks"]); n > 1 {
		setFact(&r.Facts.TotalBlocks, n-1)
	}
}

func sglangCacheConfig(r *Reading, s series) {
	setFact(&r.Facts.BlockSize, number(s.labels["page_size"]))
	setFact(&r.Facts.TotalBlocks, number(s.labels["num_pages"]))
}

func tritonRequests(r *Reading, s series) {
	switch s.labels["request_type"] {
	case "scheduled":
		r.change(0, func(to *Sample) { r.count(&to.Running, s.value) })
	case "waiting":
		r.change(0, func(to *Sample) { r.count(&to.Waiting, s.value) })
	}
}

func tritonBlocks(r *Reading, s series) {
	switch s.labels["kv_cache_block_type"] {
	case "used":
		r.change(0, func(to *Sample) { r.count(&to.UsedBlocks, s.value) })
	case "max":
		r.change(0, func(to *Sample) { r.count(&to.TotalBlocks, s.value) })
	case "fraction":
		r.change(0, func(to *Sample) { r.ratio(&to.Usage, s.value) })
	case "tokens_per":
		factGauge(func(f *Facts) *int { return &f.BlockSize })(r, s)
	}
}
