package prompt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/kvoracle/kvoracle/internal/block"
)

var errTwin = errors.New("refused")

// twinOf is Parse by encoding/json, with trees and copies.
func twinOf(kind Kind, body []byte, lim Limits) (*Request, error) {
	if !json.Valid(body) {
		return nil, fmt.Errorf("%w: syntax", errTwin)
	}
	var top map[string]json.RawMessage
	if json.Unmarshal(body, &top) != nil || top == nil {
		return nil, errTwin
	}
	r := &Request{IsStream: string(top["stream"]) == "true"}
	for name, to := range map[string]*string{"model": &r.Model, "cache_salt": &r.CacheSalt} {
		if raw, ok := top[name]; ok && json.Unmarshal(raw, to) != nil {
			return nil, errTwin
		}
		// What encoding/json has replaced was not UTF-8; a replacement that was written is left to other tests.
		if len(*to) > lim.Name || !utf8.Valid(top[name]) || bytes.ContainsRune([]byte(*to), utf8.RuneError) {
			return nil, errTwin
		}
	}
	parts := map[Kind][]string{
		Chat: {"tools", "messages"}, Messages: {"tools", "system", "messages"}, Responses: {"tools", "instructions", "input"},
		Completions: {"prompt"}, Embeddings: {"input"}, Generate: {"token_ids"},
	}[kind]
	var f Features
	if raw := top["features"]; kind == Generate && raw != nil && string(raw) != "null" {
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil {
			return nil, errTwin
		}
		for name, to := range map[string]any{"mm_hashes": &f.Hashes, "mm_placeholders": &f.Places} {
			if member, ok := members[name]; ok && json.Unmarshal(member, to) != nil {
				return nil, errTwin
			}
		}
	}
	var text []byte
	for i, name := range parts {
		raw := top[name]
		isLast := i == len(parts)-1
		if raw == nil || string(raw) == "null" {
			if isLast {
				return nil, errTwin
			}
			continue
		}
		if !isLast {
			text = append(text, withoutAttachments(raw)...)
			continue
		}
		if kind == Completions || kind == Embeddings || kind == Generate {
			ids, one, err := onePrompt(raw, lim)
			if err != nil {
				return nil, err
			}
			if kind == Generate && (ids == nil || nests(raw)) {
				return nil, errTwin
			}
			if ids != nil {
				r.Tokens = ids
				r.Items, err = f.Items(len(ids))
				return r, err
			}
			raw = one
		}
		switch raw[0] {
		case '"':
			text = append(text, raw[1:len(raw)-1]...)
		case '[':
			raw = withoutAttachments(raw)
			text = append(text, raw[:len(raw)-1]...)
		default:
			return nil, errTwin
		}
	}
	r.Text = [][]byte{text}
	return r, nil
}

func onePrompt(raw json.RawMessage, lim Limits) (ids []uint32, text json.RawMessage, err error) {
	if raw[0] == '"' {
		return nil, raw, nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		return nil, nil, errTwin
	}
	switch c := list[0][0]; {
	case c == '"':
		return nil, list[0], nil
	case c == '[':
		if json.Unmarshal(list[0], &list) != nil {
			return nil, nil, errTwin
		}
	case c != '-' && (c < '0' || c > '9'):
		return nil, nil, errTwin
	}
	for _, x := range list {
		n, err := strconv.ParseUint(string(x), 10, 32)
		if err != nil || len(ids) >= lim.Tokens {
			return nil, nil, errTwin
		}
		ids = append(ids, uint32(n))
	}
	if len(ids) == 0 {
		return nil, nil, errTwin
	}
	return ids, nil, nil
}

// nests says that a list begins with one.
func nests(raw json.RawMessage) bool {
	var list []json.RawMessage
	return json.Unmarshal(raw, &list) == nil && len(list) > 0 && list[0][0] == '['
}

// withoutAttachments replaces the long strings that begin with data: in a value that is not one string.
func withoutAttachments(raw []byte) []byte {
	if raw[0] == '"' {
		return raw
	}
	var out []byte
	for i := 0; i < len(raw); i++ {
		if raw[i] != '"' {
			out = append(out, raw[i])
			continue
		}
		end := i + 1
		for ; raw[end] != '"'; end++ {
			if raw[end] == '\\' {
				end++
			}
		}
		v := raw[i : end+1]
		if len(v) > dataLeast && bytes.HasPrefix(v, []byte(dataPrefix)) {
			out = strconv.AppendUint(out, block.Sum(v), 16)
		} else {
			out = append(out, v...)
		}
		i = end
	}
	return out
}
