package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Features are vLLM's words for the images, sounds and films behind placeholder tokens, by modality: what the engine's cache
// calls each by, and where it lies. /render says them, and those who send token ids to /inference/v1/generate.
type Features struct {
	Hashes map[string][]string `json:"mm_hashes"`
	Places map[string][]Range  `json:"mm_placeholders"`
}

// Range is a run of placeholder tokens, from the prompt's start.
type Range struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// Bounds of items, those of the other doors.
const (
	mostItems   = 4096
	mostOverlap = 4 // times the prompt's tokens, of all items together
)

var errFeatures = fmt.Errorf("%w: features: want a name and a place in the prompt for each item", ErrShape)

// Items are those of a prompt of so many tokens. After an error nothing is known of what its placeholders stand for.
func (f *Features) Items(tokens int) ([]block.Item, error) {
	if len(f.Hashes) != len(f.Places) {
		return nil, errFeatures
	}
	var out []block.Item
	covered := 0
	for _, modality := range slices.Sorted(maps.Keys(f.Hashes)) {
		names, places := f.Hashes[modality], f.Places[modality]
		if len(names) != len(places) {
			return nil, errFeatures
		}
		if len(out)+len(names) > mostItems {
			return nil, fmt.Errorf("%w: features: want at most %d items", ErrLimit, mostItems)
		}
		for i, at := range places {
			if names[i] == "" || at.Offset < 0 || at.Length < 1 || at.Offset >= tokens || at.Length > tokens-at.Offset {
				return nil, errFeatures
			}
			covered += at.Length
			out = append(out, block.Item{First: at.Offset, Count: at.Length, Digest: block.Sum([]byte(names[i]))})
		}
	}
	if covered > mostOverlap*tokens {
		return nil, fmt.Errorf("%w: features: want at most %d times the prompt's tokens in all", ErrLimit, mostOverlap)
	}
	return out, nil
}

// features reads what a request with token ids says of its placeholders. The rest of it, tensors among it, is passed over.
func (s *scan) features() error {
	s.media, s.mediaErr = Features{}, nil
	if kind := s.dec.PeekKind(); kind == 'n' {
		return s.step() // null is none
	} else if kind != '{' {
		s.mediaErr = errFeatures
		return s.skip()
	}
	return s.members(func(name string) (err error) {
		switch name {
		case "mm_hashes":
			s.media.Hashes, err = read[string](s)
		case "mm_placeholders":
			s.media.Places, err = read[Range](s)
		default:
			err = s.skip()
		}
		if errors.Is(err, errFeatures) {
			s.mediaErr, err = err, nil
		}
		return err
	})
}

// read reads a small value.
func read[T any](s *scan) (map[string][]T, error) {
	v, err := s.dec.ReadValue()
	if err != nil {
		return nil, ErrSyntax
	}
	var out map[string][]T
	if json.Unmarshal(v, &out) != nil {
		return nil, errFeatures
	}
	return out, nil
}
