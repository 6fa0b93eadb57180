package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// MaxAnswer is the most that is read of a file or of an answer, in bytes.
const MaxAnswer = 64 << 20

// File is a list of workers in a YAML or JSON file, which is read again at each look:
//
//	workers:
//	- {worker_id: gpu-1, address: "10.0.0.5:8000", model: llama-3-8b, block_size: 16}
//	- {worker_id: gpu-2, address: "10.0.0.6:8000", model: llama-3-8b, block_size: 16, out: true}
//
// The keys are those of WorkerSpec, and "out" for one that nothing shall be sent to. A key that is none of them is an error, as
// is a file that is not there: a list that is half written changes nothing.
type File struct{ Path string }

// Look implements Source.
func (f *File) Look(context.Context) ([]Endpoint, error) {
	in, err := os.Open(f.Path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, MaxAnswer+1))
	if err != nil {
		return nil, err
	}
	out, err := parseFile(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	return out, nil
}

// fileEvery is how soon a change of the file is seen.
const fileEvery = time.Second

// Wait implements Source.
func (f *File) Wait(ctx context.Context, most time.Duration) { pause(ctx, min(most, fileEvery)) }

func parseFile(text []byte) ([]Endpoint, error) {
	if len(text) > MaxAnswer {
		return nil, fmt.Errorf("want at most %d bytes", MaxAnswer)
	}
	var list struct {
		Workers []map[string]any `yaml:"workers"`
	}
	if err := yaml.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	if list.Workers == nil {
		return nil, errors.New(`want "workers:" with a list; an empty one is []`)
	}
	if len(list.Workers) > MaxEndpoints {
		return nil, fmt.Errorf("got %d workers, want at most %d", len(list.Workers), MaxEndpoints)
	}
	out := make([]Endpoint, 0, len(list.Workers))
	seen := make(map[string]bool)
	for i, w := range list.Workers {
		isOut, ok := w["out"].(bool)
		if v, has := w["out"]; has && !ok {
			return nil, fmt.Errorf("workers[%d].out: got %v, want true or false", i, v)
		}
		delete(w, "out")
		asJSON, err := json.Marshal(w)
		if err != nil {
			return nil, fmt.Errorf("workers[%d]: %w", i, err)
		}
		spec := &kvoraclev1.WorkerSpec{}
		if err := protojson.Unmarshal(asJSON, spec); err != nil {
			return nil, fmt.Errorf("workers[%d]: %w", i, err)
		}
		if spec.GetWorkerId() == "" || seen[spec.GetWorkerId()] {
			return nil, fmt.Errorf("workers[%d].worker_id: got %q, want a name of its own", i, spec.GetWorkerId())
		}
		seen[spec.GetWorkerId()] = true
		out = append(out, Endpoint{Spec: spec, Out: isOut})
	}
	return out, nil
}
