package metrics

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvoracle/kvoracle/internal/engine/kvevents"
)

// Source is one engine's documents.
type Source struct {
	Fetcher
	// Metrics is the address of its Prometheus text; empty: none.
	Metrics string
	// API is where its other documents are ("http://host:8000"); empty: nowhere.
	API string
	// Engine is the family, Unknown to find out.
	Engine kvevents.Engine
	// Timeout bounds each call; 0: 2 s.
	Timeout time.Duration
}

// Discover reads everything the engine says of itself and merges it with what the operator said. Documents that are not
// served are passed over. The error is a *ContradictionError, or says why nothing could be reached.
func (s *Source) Discover(ctx context.Context, flags Facts) (Facts, error) {
	all := flags
	var failed error
	reached := false
	add := func(f Facts, err error) error {
		switch {
		case errors.Is(err, ErrAbsent):
			reached = true
			return nil
		case err != nil:
			failed = errors.Join(failed, err)
			return nil
		}
		reached = true
		all, err = Merge(all, f)
		return err
	}
	if s.Metrics != "" {
		r, err := s.scrape(ctx)
		if err := add(r.Facts, err); err != nil {
			return Facts{}, err
		}
	}
	if s.API != "" {
		if err := add(document(ctx, s, "/v1/models", ParseModels)); err != nil {
			return Facts{}, err
		}
		for _, d := range s.infos(all.Engine) {
			if err := add(document(ctx, s, d.path, d.parse)); err != nil {
				return Facts{}, err
			}
		}
	}
	if !reached && failed != nil {
		return Facts{}, failed
	}
	return all, nil
}

type info struct {
	path  string
	parse func([]byte) (Facts, error)
}

// infos are the documents about the engine as such, by family.
func (s *Source) infos(engine kvevents.Engine) []info {
	switch engine {
	case VLLM:
		return []info{{"/server_info?config_format=json", ParseVLLMServerInfo}}
	case SGLang:
		return []info{{"/server_info", ParseSGLangServerInfo}, {"/get_server_info", ParseSGLangServerInfo}}
	case Unknown, TRTLLM, kvevents.EngineMooncake:
	}
	return nil
}

// Load reads how busy the engine is, by the best document it serves: SGLang's load document, which alone tells the tokens
// that wait, else the metrics.
func (s *Source) Load(ctx context.Context, engine kvevents.Engine) (Reading, error) {
	if engine == SGLang && s.API != "" {
		for _, path := range []string{"/v1/loads?include=core", "/get_load"} {
			r, err := document(ctx, s, path, ParseSGLangLoads)
			if err == nil || !errors.Is(err, ErrAbsent) {
				return r, err
			}
		}
	}
	if s.Metrics == "" {
		return Reading{}, fmt.Errorf("metrics: %w", ErrAbsent)
	}
	return s.scrape(ctx)
}

// scrape reads the metrics address: Prometheus text, or TensorRT-LLM's JSON at the same path.
func (s *Source) scrape(ctx context.Context) (Reading, error) {
	body, orca, err := s.get(ctx, s.Metrics)
	if err != nil {
		return Reading{}, err
	}
	if len(body) > 0 && body[0] == '[' {
		r, _, err := ParseTRTLLMStats(body)
		return r, err
	}
	r, err := ParseText(body)
	if err != nil || orca == "" {
		return r, err
	}
	values, err := ParseORCA(orca)
	if err != nil {
		return r, nil //nolint:nilerr // an extra that cannot be read costs nothing
	}
	return r.fill(ORCASample(values)), nil
}

// fill adds what r did not say.
func (r Reading) fill(more Reading) Reading {
	for rank, m := range more.Ranks {
		r.change(rank, func(s *Sample) {
			fillIn(&s.Running, m.Running)
			fillIn(&s.Waiting, m.Waiting)
			fillIn(&s.TotalTokens, m.TotalTokens)
			fillIn(&s.Usage, m.Usage)
		})
	}
	return r
}

func fillIn[T any](to **T, v *T) {
	if *to == nil {
		*to = v
	}
}

func document[T any](ctx context.Context, s *Source, path string, parse func([]byte) (T, error)) (T, error) {
	body, _, err := s.get(ctx, s.API+path)
	if err != nil {
		var none T
		return none, err
	}
	return parse(body)
}

func (s *Source) get(ctx context.Context, address string) (body []byte, orca string, err error) {
	timeout := s.Timeout
	if timeout <= 0 {
		timeout = 2 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.Get(ctx, address)
}
