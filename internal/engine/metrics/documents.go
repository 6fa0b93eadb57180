package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// errEmpty is an engine that has nothing to say yet, which is not the same as an idle one.
var errEmpty = errors.New("metrics: the document has no ranks")

// sglangLoad is one rank in SGLang's load documents.
type sglangLoad struct {
	Rank            int      `json:"dp_rank"`
	Running         *float64 `json:"num_running_reqs"`
	Waiting         *float64 `json:"num_waiting_reqs"`
	WaitingUncached *float64 `json:"num_waiting_uncached_tokens"`
	UsedTokens      *float64 `json:"num_used_tokens"`
	TotalTokens     *float64 `json:"max_total_num_tokens"`
	MaxRunning      *float64 `json:"max_running_requests"`
	All             *float64 `json:"num_reqs"`   // /get_load: running and waiting
	Tokens          *float64 `json:"num_tokens"` // /get_load: used, and those of the queue
}

// ParseSGLangLoads reads GET /v1/loads, and the list that the older /get_load gives. No rank at all is an error: SGLang
// says so while it cannot tell.
func ParseSGLangLoads(body []byte) (Reading, error) {
	var doc struct {
		Loads []sglangLoad `json:"loads"`
	}
	source := "/v1/loads"
	if strings.HasPrefix(strings.TrimSpace(string(body[:min(len(body), 64)])), "[") {
		source = "/get_load"
		if err := json.Unmarshal(body, &doc.Loads); err != nil {
			return Reading{}, fmt.Errorf("metrics: %s: %w", source, err)
		}
	} else if err := json.Unmarshal(body, &doc); err != nil {
		return Reading{}, fmt.Errorf("metrics: %s: %w", source, err)
	}
	if len(doc.Loads) == 0 {
		return Reading{}, errEmpty
	}
	r := Reading{Facts: Facts{Source: source, Engine: SGLang}}
	for _, l := range doc.Loads {
		r.change(l.Rank, func(s *Sample) {
			r.told(&s.Running, l.Running)
			r.told(&s.Waiting, l.Waiting)
			if l.All != nil && l.Waiting != nil && s.Running == nil {
				r.count(&s.Running, max(*l.All-*l.Waiting, 0))
			}
			r.told(&s.WaitingPrefillTokens, l.WaitingUncached)
			r.told(&s.UsedTokens, l.UsedTokens)
			r.told(&s.TotalTokens, l.TotalTokens)
		})
		if l.MaxRunning != nil && *l.MaxRunning > 0 && *l.MaxRunning <= maxCount {
			setFact(&r.Facts.MaxRunning, int(*l.MaxRunning))
		}
	}
	return r, nil
}

func (r *Reading) told(to **int, v *float64) {
	if v != nil {
		r.count(to, *v)
	}
}

// ParseSGLangServerInfo reads GET /server_info (older: /get_server_info): what the engine is and where it publishes.
func ParseSGLangServerInfo(body []byte) (Facts, error) {
	var doc struct {
		ServedModelName string   `json:"served_model_name"`
		ModelPath       string   `json:"model_path"`
		PageSize        *float64 `json:"page_size"`
		DPSize          *float64 `json:"dp_size"`
		MaxRunning      *float64 `json:"max_running_requests"`
		Events          *struct {
			Host      string   `json:"endpoint_host"`
			Port      *float64 `json:"endpoint_port_base"`
			Topic     string   `json:"topic"`
			BlockSize *float64 `json:"block_size"`
			DPSize    *float64 `json:"dp_size"`
			Replay    *float64 `json:"replay_endpoint_port_base"`
			Load      *float64 `json:"load_endpoint_port_base"`
			LoadTopic string   `json:"load_topic"`
		} `json:"kv_events"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return Facts{}, fmt.Errorf("metrics: /server_info: %w", err)
	}
	f := Facts{Source: "/server_info"}
	f.AddModel(doc.ServedModelName)
	f.AddModel(doc.ModelPath)
	if doc.Events != nil { // what is hashed is a page of the events, which may not be the pool's
		setFact(&f.BlockSize, whole(doc.Events.BlockSize))
		setFact(&f.Ranks, whole(doc.Events.DPSize))
		host := strings.TrimSuffix(strings.TrimPrefix(doc.Events.Host, "["), "]")
		at := func(port *float64, topic string) (string, string) {
			p := whole(port)
			if p < 1 || p >= 1<<16 || len(host) > maxName || len(topic) > maxName {
				return "", ""
			}
			return "tcp://" + net.JoinHostPort(host, strconv.Itoa(p)), topic
		}
		f.Events, f.Topic = at(doc.Events.Port, doc.Events.Topic)
		f.Replay, _ = at(doc.Events.Replay, "")
		f.LoadSocket, f.LoadTopic = at(doc.Events.Load, doc.Events.LoadTopic)
	}
	setFact(&f.BlockSize, whole(doc.PageSize))
	setFact(&f.Ranks, whole(doc.DPSize))
	setFact(&f.MaxRunning, whole(doc.MaxRunning))
	if f.BlockSize > 0 || len(f.Models) > 0 {
		f.Engine = SGLang
	}
	return f, nil
}

// ParseVLLMServerInfo reads GET /server_info?config_format=json, which vLLM serves in development mode only.
func ParseVLLMServerInfo(body []byte) (Facts, error) {
	var doc struct {
		Config *struct {
			Scheduler struct {
				MaxNumSeqs *float64 `json:"max_num_seqs"`
			} `json:"scheduler_config"`
			Parallel struct {
				DPSize *float64 `json:"data_parallel_size"`
			} `json:"parallel_config"`
			Cache struct {
				BlockSize *float64 `json:"block_size"`
			} `json:"cache_config"`
		} `json:"vllm_config"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return Facts{}, fmt.Errorf("metrics: /server_info: %w", err)
	}
	f := Facts{Source: "/server_info"}
	if c := doc.Config; c != nil {
		f.Engine = VLLM
		f.MaxRunning, f.Ranks, f.BlockSize = whole(c.Scheduler.MaxNumSeqs), whole(c.Parallel.DPSize), whole(c.Cache.BlockSize)
	}
	return f, nil
}

// ParseModels reads GET /v1/models. Adapters, which name a parent, are no base models.
func ParseModels(body []byte) (Facts, error) {
	var doc struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
			Owner  string  `json:"owned_by"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return Facts{}, fmt.Errorf("metrics: /v1/models: %w", err)
	}
	f := Facts{Source: "/v1/models"}
	for _, m := range doc.Data {
		if m.Parent != nil && *m.Parent != "" {
			continue
		}
		f.AddModel(m.ID)
		switch strings.ToLower(m.Owner) {
		case "vllm":
			f.Engine = VLLM
		case "sglang":
			f.Engine = SGLang
		case "tensorrt_llm":
			f.Engine = TRTLLM
		}
	}
	return f, nil
}

// ParseTRTLLMStats reads GET /metrics of trtllm-serve: a list of iterations since the last read, by which they are gone.
// Of each rank the newest counts. An empty list is an engine that did nothing, not one without load: ok is false.
func ParseTRTLLMStats(body []byte) (r Reading, ok bool, err error) {
	var doc []struct {
		Active   *float64 `json:"numActiveRequests"`
		Queued   *float64 `json:"numQueuedRequests"`
		Rank     int      `json:"attentionDpRank"`
		MaxBatch *float64 `json:"maxNumActiveRequests"`
		Cache    *struct {
			Max       *float64 `json:"maxNumBlocks"`
			Used      *float64 `json:"usedNumBlocks"`
			PerBlocks *float64 `json:"tokensPerBlock"`
		} `json:"kvCacheStats"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return Reading{}, false, fmt.Errorf("metrics: iteration statistics: %w", err)
	}
	r.Facts = Facts{Source: "/metrics", Engine: TRTLLM}
	for i := len(doc) - 1; i >= 0; i-- { // newest first: what is set stays
		it := doc[i]
		setFact(&r.Facts.MaxRunning, whole(it.MaxBatch))
		if it.Cache != nil {
			setFact(&r.Facts.BlockSize, whole(it.Cache.PerBlocks))
		}
		if _, newer := r.Ranks[it.Rank]; newer {
			continue
		}
		r.change(it.Rank, func(s *Sample) {
			r.told(&s.Running, it.Active)
			r.told(&s.Waiting, it.Queued)
			if it.Cache != nil {
				r.told(&s.UsedBlocks, it.Cache.Used)
				r.told(&s.TotalBlocks, it.Cache.Max)
			}
		})
	}
	return r, len(doc) > 0, nil
}

// AddModel adds a name under which the base model is served; an empty or oversized one is not taken.
func (f *Facts) AddModel(name string) {
	r := Reading{Facts: *f}
	r.setModel(name)
	f.Models = r.Facts.Models
}

// whole is a JSON number as a count; 0 for anything else.
func whole(v *float64) int {
	if v == nil || !(*v >= 0 && *v <= maxCount) {
		return 0
	}
	return int(*v)
}
