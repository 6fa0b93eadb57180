package telemetry

import "strings"

// Prometheus is the name that a metric has in Prometheus, as its exporter makes it: of a histogram the name of the family,
// whose series end in _bucket, _sum and _count.
func (i *Instrument) Prometheus() string {
	name := strings.ReplaceAll(i.Name, ".", "_")
	switch {
	case i.Unit == "s":
		name += "_seconds"
	case i.Unit == "1" && i.Kind == Gauge:
		name += "_ratio"
	}
	if i.Kind == Counter {
		name += "_total"
	}
	return name
}

// Error is how far predictions were off, since the start.
type Error struct {
	FirstTokens      uint64  // requests whose first token was told
	FirstTokenMean   float64 // seconds, as measured
	FirstTokenOff    float64 // mean distance of the prediction from it, seconds
	Finished         uint64  // requests that told what was in the cache
	Matched, Counted float64 // their prompt tokens: as matched by the oracle, and as counted by engines
	CachedOff        float64 // mean distance of the two, tokens
}

// Error reads it from the metrics. What cannot be read is 0.
func (t *Telemetry) Error() Error {
	families, _ := t.registry.Gather() // what could be collected is there
	var e Error
	for _, f := range families {
		for _, m := range f.GetMetric() {
			h := m.GetHistogram()
			switch f.GetName() {
			case "kvoracle_first_token_duration_seconds":
				e.FirstTokens += h.GetSampleCount()
				e.FirstTokenMean += h.GetSampleSum()
			case "kvoracle_first_token_error_seconds":
				e.FirstTokenOff += h.GetSampleSum()
			case "kvoracle_cached_error":
				e.Finished += h.GetSampleCount()
				e.CachedOff += h.GetSampleSum()
			case "kvoracle_cached_tokens_total":
				for _, l := range m.GetLabel() {
					switch {
					case l.GetName() == kSource && l.GetValue() == "matched":
						e.Matched += m.GetCounter().GetValue()
					case l.GetName() == kSource && l.GetValue() == "counted":
						e.Counted += m.GetCounter().GetValue()
					}
				}
			}
		}
	}
	if e.FirstTokens > 0 {
		e.FirstTokenMean /= float64(e.FirstTokens)
		e.FirstTokenOff /= float64(e.FirstTokens)
	}
	if e.Finished > 0 {
		e.CachedOff /= float64(e.Finished)
	}
	return e
}
