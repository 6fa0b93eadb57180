package smg

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
	"github.com/kvoracle/kvoracle/internal/engine/metrics"
)

// parseModel reads GetModelInfoResponse: the name it is served by, and the path it was loaded from.
func parseModel(engine kvevents.Engine, body []byte) (metrics.Facts, error) {
	f := metrics.Facts{Source: "GetModelInfo", Engine: engine}
	var path, served string
	err := each(body, func(x field) {
		switch {
		case x.number == 1:
			path = string(x.bytes)
		case x.number == 6 && engine != metrics.TRTLLM: // there it is a number, of something else
			served = string(x.bytes)
		}
	})
	if err != nil {
		return metrics.Facts{}, fmt.Errorf("smg: GetModelInfo: %w", err)
	}
	for _, name := range []string{served, path} {
		f.AddModel(name)
	}
	return f, nil
}

// parseServer reads GetServerInfoResponse.
func parseServer(engine kvevents.Engine, body []byte) (metrics.Facts, error) {
	f := metrics.Facts{Source: "GetServerInfo", Engine: engine}
	var err error
	switch engine {
	case metrics.VLLM:
		err = each(body, func(x field) {
			switch x.number {
			case 9:
				metrics.TakeFact(&f.Ranks, x.count())
			case 12:
				metrics.TakeFact(&f.BlockSize, x.count())
			case 20:
				metrics.TakeFact(&f.MaxRunning, x.count())
			}
		})
	case metrics.SGLang:
		err = parseSGLang(&f, body)
	case metrics.TRTLLM, metrics.Unknown, kvevents.EngineMooncake: // it says nothing that counts here
		err = each(body, func(field) {})
	}
	if err != nil {
		return metrics.Facts{}, fmt.Errorf("smg: GetServerInfo: %w", err)
	}
	return f, nil
}

// parseSGLang reads its server's arguments, which are a google.protobuf.Struct, and when it began.
func parseSGLang(f *metrics.Facts, body []byte) error {
	ranks, attention := 0, 0
	var failed error
	err := each(body, func(x field) {
		switch {
		case failed != nil:
		case x.number == 1 && x.kind == protowire.BytesType:
			err := each(x.bytes, func(entry field) {
				name, v, err := pair(entry.bytes)
				if err != nil {
					failed = err
				}
				switch name {
				case "page_size":
					metrics.TakeFact(&f.BlockSize, v)
				case "max_running_requests":
					metrics.TakeFact(&f.MaxRunning, v)
				case "dp_size":
					metrics.TakeFact(&ranks, v)
				case "attn_dp_size":
					metrics.TakeFact(&attention, v)
				}
			})
			if err != nil {
				failed = err
			}
		case x.number == 9 && x.kind == protowire.BytesType:
			var seconds, nanos float64
			failed = each(x.bytes, func(t field) {
				switch t.number {
				case 1:
					seconds = float64(int64(t.value))
				case 2:
					nanos = t.count()
				}
			})
			if seconds > 0 && seconds < 1e11 {
				f.Started = seconds + nanos/1e9
			}
		}
	})
	if err == nil {
		err = failed
	}
	// One of the two is 1: a replica has no ranks of its own.
	if n := max(ranks, 1) * max(attention, 1); ranks > 0 && n <= metrics.MaxRank {
		f.Ranks = n
	}
	f.MaxRunning /= max(attention, 1) // it divides them among these ranks
	return err
}

// pair reads an entry of a Struct: its key, and its value if that is a number; else NaN.
func pair(entry []byte) (key string, v float64, err error) {
	v = math.NaN()
	var failed error
	err = each(entry, func(f field) {
		switch {
		case f.number == 1:
			key = string(f.bytes)
		case f.number == 2 && f.kind == protowire.BytesType:
			failed = each(f.bytes, func(x field) {
				if x.number == 2 && x.kind == protowire.Fixed64Type {
					v = x.ratio()
				}
			})
		}
	})
	if err == nil {
		err = failed
	}
	return key, v, err
}
