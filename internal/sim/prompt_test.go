package sim

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ids are a request's hashes as the file's order of appearance names them.
func ids(tr *Trace) (out [][]uint32) {
	for _, r := range tr.Requests {
		out = append(out, r.hashes)
	}
	return out
}

// Prompts that agree in tokens agree in blocks, whichever way they are given.
func TestPromptsAsTokensAndText(t *testing.T) {
	tokens := readLines(t, ReadOptions{BlockSize: 2},
		`{"timestamp":0,"token_ids":[1,2,3,4,5],"output_length":3}`,
		`{"timestamp":1,"token_ids":[1,2,3,9],"output_length":3}`,
		`{"timestamp":2,"token_ids":[3,4],"output_length":3,"input_length":2}`,
		`{"timestamp":3,"token_ids":[1,2,3,4,5],"max_tokens":7}`)
	// Blocks 12, 34, 5; then 12 and another; 34 at the start is not 34 after 12.
	if d := cmp.Diff([][]uint32{{0, 1, 2}, {0, 3}, {4}, {0, 1, 2}}, ids(tokens)); d != "" {
		t.Errorf("tokens:\n%s", d)
	}
	if r := tokens.Requests[3]; r.Input != 5 || r.Output != 7 {
		t.Errorf("%d in, %d out", r.Input, r.Output)
	}

	text := readLines(t, ReadOptions{BlockSize: 2},
		`{"timestamp":0,"prompt":"the same head; one tail","output_length":1}`,
		`{"timestamp":1,"prompt":"the same head; another","output_length":1}`,
		`{"timestamp":2,"prompt":"the same","output_length":1}`)
	if d := cmp.Diff([][]uint32{{0, 1, 2}, {0, 3, 4}, {0}}, ids(text)); d != "" {
		t.Errorf("text:\n%s", d) // 8 bytes a block: "the same", " head; o" and " head; a" differ
	}
	if r := text.Requests[0]; r.Input != 6 {
		t.Errorf("23 bytes are %d tokens", r.Input)
	}

	chat := readLines(t, ReadOptions{},
		`{"timestamp":0,"output_length":1,"messages":[{"role":"system","content":"`+strings.Repeat("x", 600)+`"},{"role":"user","content":"a"}]}`,
		`{"timestamp":1,"output_length":1,"messages":[{"role":"system","content":"`+strings.Repeat("x", 600)+`"},{"role":"user","content":[{"type":"text"}]}]}`)
	if chat.BlockSize != 64 {
		t.Errorf("blocks of %d", chat.BlockSize)
	}
	if d := cmp.Diff([][]uint32{{0, 1, 2}, {0, 1, 3}}, ids(chat)); d != "" {
		t.Errorf("chat:\n%s", d)
	}
}

func TestBlockSizeOfTheFile(t *testing.T) {
	tr := readLines(t, ReadOptions{}, `{"timestamp":0,"input_length":40,"output_length":1,"hash_ids":[7,8,9],"block_size":16}`)
	if tr.BlockSize != 16 {
		t.Errorf("blocks of %d, the file says 16", tr.BlockSize)
	}
	for line, want := range map[string]string{
		`{"timestamp":0,"input_length":40,"output_length":1,"hash_ids":[7,8,9],"block_size":-1}`: "block_size",
		`{"timestamp":0,"input_length":2,"output_length":1,"hash_ids":[7],"token_ids":[1,2]}`:    "want one of",
		`{"timestamp":0,"input_length":3,"output_length":1,"token_ids":[1,2]}`:                   "input_length: got 3, want 2",
		`{"timestamp":0,"output_length":1,"token_ids":[-1]}`:                                     "token_ids",
		`{"timestamp":0,"output_length":1,"prompt":""}`:                                          "input_length: missing",
		`{"timestamp":0,"output_length":1,"prompt":5}`:                                           "prompt",
		`{"timestamp":0,"prompt":"text"}`:                                                        "output_length: missing",
	} {
		if _, err := ReadTrace(strings.NewReader(line), ReadOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	two := `{"timestamp":0,"input_length":16,"output_length":1,"hash_ids":[7],"block_size":16}` + "\n" +
		`{"timestamp":0,"input_length":32,"output_length":1,"hash_ids":[7],"block_size":32}`
	if _, err := ReadTrace(strings.NewReader(two), ReadOptions{}); err == nil || !strings.Contains(err.Error(), "line 2: block_size") {
		t.Errorf("two sizes: %v", err)
	}
}
