package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ORCAHeader is the response header of ORCA's HTTP form, ORCAFormatHeader the request header that asks for it.
const (
	ORCAHeader       = "Endpoint-Load-Metrics"
	ORCAFormatHeader = "Endpoint-Load-Metrics-Format"
)

const (
	maxORCAHeader = 16 << 10
	maxORCANames  = 256
)

// ParseORCA reads the response header of ORCA's HTTP form: "TEXT name=value, ..." or "JSON {...}". Utilizations and named
// metrics become one map, the names without the prefix of the map they came from. A value that is no number is an error
// that names it.
func ParseORCA(header string) (map[string]float64, error) {
	if len(header) > maxORCAHeader {
		return nil, fmt.Errorf("metrics: ORCA header of %d bytes, want at most %d", len(header), maxORCAHeader)
	}
	format, rest, _ := strings.Cut(strings.TrimSpace(header), " ")
	switch strings.ToUpper(format) {
	case "TEXT":
		return parseORCAText(rest)
	case "JSON":
		return parseORCAJSON(rest)
	}
	return nil, errors.New("metrics: ORCA header: want TEXT or JSON first")
}

func parseORCAText(text string) (map[string]float64, error) {
	out := make(map[string]float64)
	for pair := range strings.SplitSeq(text, ",") {
		pair = strings.TrimSpace(pair)
		if pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			name, value, ok = strings.Cut(pair, ":")
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("metrics: ORCA header: %q is not name=number", clip(pair))
		}
		name = strings.TrimSpace(name)
		for _, prefix := range []string{"named_metrics.", "utilization."} {
			name = strings.TrimPrefix(name, prefix)
		}
		if len(out) >= maxORCANames {
			return nil, fmt.Errorf("metrics: ORCA header: more than %d names", maxORCANames)
		}
		out[name] = v
	}
	return out, nil
}

func parseORCAJSON(text string) (map[string]float64, error) {
	var doc struct {
		Application      *float64           `json:"application_utilization"`
		ApplicationCamel *float64           `json:"applicationUtilization"`
		Utilization      map[string]float64 `json:"utilization"`
		Named            map[string]float64 `json:"named_metrics"`
		NamedCamel       map[string]float64 `json:"namedMetrics"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		return nil, fmt.Errorf("metrics: ORCA header: %w", err)
	}
	out := make(map[string]float64)
	for _, m := range []map[string]float64{doc.Utilization, doc.Named, doc.NamedCamel} {
		maps.Copy(out, m)
	}
	for _, v := range []*float64{doc.Application, doc.ApplicationCamel} {
		if v != nil {
			out["application_utilization"] = *v
		}
	}
	if len(out) > maxORCANames {
		return nil, fmt.Errorf("metrics: ORCA header: more than %d names", maxORCANames)
	}
	return out, nil
}

// ORCASample turns the values of an ORCA report, by whatever way it came, into a sample: the names that vLLM, Triton and
// TensorRT-LLM use, with or without an engine's prefix. Other names are left alone. ORCA knows no ranks: it is rank 0's.
func ORCASample(values map[string]float64) Reading {
	r := Reading{Facts: Facts{Source: "ORCA"}}
	for _, name := range slices.Sorted(maps.Keys(values)) { // sorted, so that of two names for one thing the same one wins
		v := values[name]
		short := strings.ToLower(name)
		if i := strings.LastIndexAny(short, ":."); i >= 0 {
			short = short[i+1:]
		}
		r.change(0, func(s *Sample) {
			switch short {
			case "num_requests_running", "num_running_reqs":
				r.count(&s.Running, v)
			case "num_requests_waiting", "num_queue_reqs":
				r.count(&s.Waiting, v)
			case "kv_cache_usage_perc", "gpu_cache_usage_perc", "kv_cache_utilization", "token_usage":
				r.ratio(&s.Usage, v)
			case "max_token_capacity":
				r.count(&s.TotalTokens, v)
			}
		})
	}
	return r
}

// clip shortens what is quoted in an error: it came from outside.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
