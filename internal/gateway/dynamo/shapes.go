package dynamo

import (
	"encoding/json"
	"errors"
	"fmt"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// anything is a field that is known and not served: it may be absent, null or empty.
type anything json.RawMessage

// UnmarshalJSON implements json.Unmarshaler.
func (a *anything) UnmarshalJSON(b []byte) error {
	*a = append((*a)[:0], b...)
	return nil
}

func (a anything) isSet() bool {
	switch string(a) {
	case "", "null", "{}", "[]", "false":
		return false
	}
	return true
}

// place is where a call belongs.
type place struct {
	Model string `json:"model_name"`
	Group string `json:"routing_group"`
}

const byDefault = "default"

// model is the model as the oracle knows it.
func (p *place) model() string {
	if p.Model == "" {
		p.Model = byDefault
	}
	if p.Group == "" {
		p.Group = byDefault
	}
	if p.Group == byDefault {
		return p.Model
	}
	return p.Model + "@" + p.Group
}

// workerRequest is the body of POST /workers.
type workerRequest struct {
	place

	ID        uint64            `json:"worker_id"`
	Endpoint  string            `json:"endpoint"`
	BlockSize uint32            `json:"block_size"`
	Start     uint32            `json:"data_parallel_start_rank"`
	Size      uint32            `json:"data_parallel_size"`
	Blocks    uint64            `json:"total_kv_blocks"`
	Batch     *uint64           `json:"max_num_batched_tokens"`
	Events    string            `json:"kv_events_endpoint"`
	RankEvent map[string]string `json:"kv_events_endpoints"`

	Taints   anything `json:"taints"`
	Topology anything `json:"topology_domains"`
	Eagle    anything `json:"is_eagle"`
}

func (r *workerRequest) check() error {
	switch {
	case r.ID >= firstHashed:
		return fmt.Errorf("worker_id must be below %d", uint64(firstHashed))
	case r.Endpoint == "":
		return errors.New("endpoint is required")
	case r.BlockSize == 0:
		return errors.New("block_size must be greater than 0")
	case r.Start != 0:
		return errors.New("data_parallel_start_rank other than 0 is not served: ranks count from 0")
	}
	return refuse(map[string]anything{"taints": r.Taints, "topology_domains": r.Topology, "is_eagle": r.Eagle})
}

// workerPatch is the body of PATCH /workers/{worker_id}: what it names is changed.
type workerPatch struct {
	Endpoint  *string           `json:"endpoint"`
	BlockSize *uint32           `json:"block_size"`
	Start     *uint32           `json:"data_parallel_start_rank"`
	Size      *uint32           `json:"data_parallel_size"`
	Blocks    *uint64           `json:"total_kv_blocks"`
	Batch     *uint64           `json:"max_num_batched_tokens"`
	Events    *string           `json:"kv_events_endpoint"`
	RankEvent map[string]string `json:"kv_events_endpoints"`

	Taints   anything `json:"taints"`
	Topology anything `json:"topology_domains"`
	Eagle    anything `json:"is_eagle"`
}

// on is the request that would register a worker as it is after the patch.
func (p *workerPatch) on(s *kvoraclev1.WorkerSpec) *workerRequest {
	old := record(&kvoraclev1.Worker{Spec: s})
	r := &workerRequest{
		place: old.place, Endpoint: old.Endpoint, BlockSize: old.BlockSize, Size: old.Size, Batch: old.Batch, RankEvent: old.Events,
		Taints: p.Taints, Topology: p.Topology, Eagle: p.Eagle,
	}
	if old.Blocks != nil {
		r.Blocks = *old.Blocks
	}
	change(&r.Endpoint, p.Endpoint)
	change(&r.BlockSize, p.BlockSize)
	change(&r.Start, p.Start)
	change(&r.Size, p.Size)
	change(&r.Blocks, p.Blocks)
	if p.Batch != nil {
		r.Batch = p.Batch
	}
	if p.RankEvent != nil {
		r.RankEvent = p.RankEvent
	}
	change(&r.Events, p.Events)
	return r
}

func change[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// refuse names a field that is set and not served.
func refuse(fields map[string]anything) error {
	for name, v := range fields {
		if v.isSet() {
			return errors.New(name + " is not served")
		}
	}
	return nil
}

// rank is a worker with a data-parallel rank.
type rank struct {
	ID   uint64  `json:"worker_id"`
	Rank *uint32 `json:"dp_rank"`
}

// selectRequest is the body of POST /select and /select_and_reserve.
type selectRequest struct {
	place

	SelectionID string    `json:"selection_id"`
	Tokens      []uint32  `json:"token_ids"`
	Hashes      []int64   `json:"block_hashes"`
	Sequence    []int64   `json:"sequence_hashes"`
	Length      *uint32   `json:"isl_tokens"`
	Lora        string    `json:"lora_name"`
	Salt        string    `json:"cache_salt"`
	Output      uint32    `json:"expected_output_tokens"`
	Session     string    `json:"session_id"`
	Context     *session  `json:"session_context"`
	Pinned      *rank     `json:"pinned_worker"`
	Allowed     *[]uint64 `json:"allowed_worker_ids"`
	Strict      uint32    `json:"strict_priority"`

	Multimodal  anything `json:"mm_routing_info"`
	BlockMM     anything `json:"block_mm_infos"`
	Eagle       anything `json:"is_eagle"`
	Override    anything `json:"router_config_override"`
	Affinity    anything `json:"affinity_target"`
	Constraints anything `json:"routing_constraints"`
}

type session struct {
	ID string `json:"session_id"`
}

func (r *selectRequest) check() error {
	if err := refuse(map[string]anything{
		"mm_routing_info": r.Multimodal, "block_mm_infos": r.BlockMM, "is_eagle": r.Eagle, "router_config_override": r.Override,
		"affinity_target": r.Affinity, "routing_constraints": r.Constraints,
	}); err != nil {
		return err
	}
	if len(r.SelectionID) > 128 {
		return fmt.Errorf("selection_id has %d bytes, want at most 128", len(r.SelectionID))
	}
	if r.Tokens != nil {
		return nil
	}
	switch {
	case r.Hashes == nil:
		return errors.New("block_hashes is required without token_ids")
	case r.Sequence == nil:
		return errors.New("sequence_hashes is required without token_ids")
	case r.Length == nil:
		return errors.New("isl_tokens is required without token_ids")
	case len(r.Sequence) != len(r.Hashes):
		return fmt.Errorf("block_hashes length %d must match sequence_hashes length %d", len(r.Hashes), len(r.Sequence))
	case r.Lora != "" || r.Salt != "":
		return errors.New("lora_name and cache_salt are mixed into block_hashes by Dynamo and not here: send token_ids")
	}
	return nil
}

// reserveRequest is the body of POST /reservations.
type reserveRequest struct {
	selectRequest

	ID   *uint64 `json:"worker_id"`
	Rank uint32  `json:"dp_rank"`
}

// overlap is a MooncakeOverlapSummary: matched tokens, each tier with those before it.
type overlap struct {
	Longest uint64            `json:"longest_matched"`
	GPU     uint64            `json:"gpu"`
	Ranks   map[string]uint64 `json:"dp"`
	CPU     uint64            `json:"cpu"`
	Disk    uint64            `json:"disk"`
}

// selected is the answer of /select and /select_and_reserve.
type selected struct {
	SelectionID string  `json:"selection_id,omitempty"`
	Sequence    []int64 `json:"sequence_hashes,omitempty"`
	Length      uint64  `json:"isl_tokens,omitempty"`
	Track       bool    `json:"track_prefill_tokens,omitempty"`
	place

	ID        uint64  `json:"worker_id"`
	Rank      uint32  `json:"dp_rank"`
	Endpoint  string  `json:"endpoint"`
	BlockSize uint32  `json:"block_size,omitempty"`
	Overlap   overlap `json:"overlap"`
	Prefill   uint64  `json:"effective_prefill_tokens"`
}

// reserved is the answer of POST /reservations.
type reserved struct {
	SelectionID string `json:"selection_id"`
	place

	ID       uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
	Endpoint string `json:"endpoint"`
}

// worker is a record of the catalog.
type worker struct {
	ID uint64 `json:"worker_id"`
	place

	Lifecycle string            `json:"lifecycle"`
	Endpoint  string            `json:"endpoint"`
	BlockSize uint32            `json:"block_size"`
	Start     uint32            `json:"data_parallel_start_rank"`
	Size      uint32            `json:"data_parallel_size"`
	Batch     *uint64           `json:"max_num_batched_tokens"`
	Blocks    *uint64           `json:"total_kv_blocks"`
	Events    map[string]string `json:"kv_events_endpoints,omitempty"`
	Reasons   []string          `json:"not_schedulable_reasons,omitempty"`

	unserved
}

// unserved are fields of a record that are never set here.
type unserved struct {
	Event    *string           `json:"kv_events_endpoint"`
	Replay   *string           `json:"replay_endpoint"`
	Stable   *string           `json:"stable_routing_id"`
	Eagle    *bool             `json:"is_eagle"`
	Taints   [0]string         `json:"taints"`
	Topology map[string]string `json:"topology_domains"`
	Domain   *string           `json:"kv_transfer_domain"`
	Enforce  *string           `json:"kv_transfer_enforcement"`
	Weight   *float64          `json:"kv_transfer_preferred_weight"`
}

// modelLoad is one entry of GET /loads.
type modelLoad struct {
	place

	Loads   []rankLoad `json:"loads"`
	Pending int        `json:"pending_count"`
	Queued  int        `json:"pending_isl_tokens"`
}

type rankLoad struct {
	ID      uint64 `json:"worker_id"`
	Rank    uint32 `json:"dp_rank"`
	Prefill uint64 `json:"potential_prefill_tokens"`
	Active  uint32 `json:"active_requests"`
}

// overlapScores is the answer of POST /overlap_scores.
type overlapScores struct {
	BlockSize uint64         `json:"block_size"`
	Blocks    uint64         `json:"num_blocks"`
	Workers   []overlapScore `json:"workers"`
	Shared    sharedScore    `json:"shared_cache"`
}

type overlapScore struct {
	ID       uint64  `json:"worker_id"`
	Rank     uint32  `json:"dp_rank"`
	Device   uint64  `json:"device_blocks"`
	Host     uint64  `json:"host_pinned_blocks"`
	Disk     uint64  `json:"disk_blocks"`
	HostMore uint64  `json:"host_pinned_extension_blocks"`
	DiskMore uint64  `json:"disk_extension_blocks"`
	Beyond   *uint32 `json:"shared_beyond_device_blocks"` // never set here: what is shared counts as disk
}

// sharedScore is of a cache that workers share, as Dynamo knows it; there is none.
type sharedScore struct {
	Enabled bool        `json:"enabled"`
	Total   uint32      `json:"total_hit_blocks"`
	Ranges  [][2]uint64 `json:"ranges"`
	Error   *string     `json:"error"`
}

type ready struct {
	Ready   bool     `json:"ready"`
	Workers int      `json:"schedulable_workers"`
	Catalog []worker `json:"workers"`
}
