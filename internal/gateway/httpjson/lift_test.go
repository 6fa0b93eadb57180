package httpjson

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// asQuestion is what the door makes of a text.
func asQuestion(text string) (*kvoraclev1.RouteRequest, error) {
	c := &call{body: []byte(text)}
	if err := c.question(); err != nil {
		return nil, err
	}
	m := &kvoraclev1.RouteRequest{}
	return m, proto.Unmarshal(c.message, m)
}

// asProtojson is what protojson makes of it.
func asProtojson(text string) (*kvoraclev1.RouteRequest, error) {
	m := &kvoraclev1.RouteRequest{}
	return m, protojson.Unmarshal([]byte(text), m)
}

// texts are requests in every form that JSON allows, and some that it does not.
func texts() []string {
	return []string{
		`{}`, `{"model":"m"}`, `null`, `[]`, `"x"`, `{`, `}`, `{"tokens"`, `{"tokens":`, `{"tokens":{`, `{"tokens":{"token_ids":[`,
		`{"model":"m","tokens":{"token_ids":[1,2,3]}}`,
		` { "tokens" : { "tokenIds" : [ 1 , 4294967295 ] } , "explain" : true } `,
		`{"tokens":{"token_ids":[]}}`, `{"tokens":{}}`, `{"tokens":null}`, `{"tokens":{"token_ids":null}}`, `{"tokens":[1]}`,
		`{"tokens":{"token_ids":[1,]}}`, `{"tokens":{"token_ids":[,1]}}`, `{"tokens":{"token_ids":[1 2]}}`, `{"tokens":{"token_ids":[01]}}`,
		`{"tokens":{"token_ids":[4294967296]}}`, `{"tokens":{"token_ids":[-1]}}`, `{"tokens":{"token_ids":[1.0,2e1]}}`,
		`{"tokens":{"token_ids":["7"]}}`, `{"tokens":{"token_ids":[1],"token_ids":[2]}}`, `{"tokens":{"token_ids":[1],"tokenIds":[2]}}`,
		`{"tokens":{"token_ids":[1]},"tokens":{"token_ids":[2]}}`, `{"tokens":{"token_ids":[1]},"text":"x"}`,
		`{"tokens":{"token_ids":[1],"other":2}}`, `{"tokens":{"token_ids":[1]},"other":[{"tokens":{"token_ids":[2]}}]}`,
		`{"tokens":{"token_ids":[1]}} trailing`, `{"tokens":{"token_ids":[1]}`, `{"model":"tokens\":{","tokens":{"token_ids":[1]}}`,
		`{"model":"\\","tokens":{"token_ids":[1]}}`, `{"t\u006fkens":{"token_ids":[1]}}`, `{"tokens":{"token_\u0069ds":[1]}}`,
		`{"required_labels":{"tokens":"x"},"tokens":{"token_ids":[1]}}`,
		`{"block_hashes":{"hash_scheme":"xxh3-64/1337","block_size":16,"local_hashes":[1,"18446744073709551615"],"token_count":33}}`,
		`{"blockHashes":{"localHashes":["1"],"blockSize":16}}`, `{"block_hashes":{"local_hashes":["18446744073709551616"]}}`,
		`{"block_hashes":{"local_hashes":[99999999999999999999,"9999999999999999999"]}}`, `{"tokens":{"token_ids":[99999999999999999999999]}}`,
		`{"block_hashes":{"local_hashes":[18446744073709551615,18446744073709551609]}}`, `{"block_hashes":{"local_hashes":[28446744073709551615]}}`,
		`{"tokens":{"token_ids":[42949672950]}}`, `{"block_hashes":{"local_hashes":["1]}}`, `{"block_hashes":{"local_hashes":["01"]}}`, `{"block_hashes":{"token_ids":[1]}}`,
		`{"tokens":{"token_ids":[1]},"block_hashes":{"local_hashes":[1]}}`, `{"model":"` + "\xff" + `","tokens":{"token_ids":[1]}}`,
		`{,"tokens":{"token_ids":[1]}}`, `{"model":"m",,"tokens":{"token_ids":[1]}}`, `{"a":1 "tokens":{"token_ids":[1]}}`,
	}
}

// compare holds the door to protojson.
func compare(t *testing.T, text string) {
	t.Helper()
	want, wantErr := asProtojson(text)
	got, err := asQuestion(text)
	if text == "" { // no body is an empty message
		want, wantErr = &kvoraclev1.RouteRequest{}, nil
	}
	if (err != nil) != (wantErr != nil) {
		t.Fatalf("%q: got error %v, protojson says %v", text, err, wantErr)
	}
	if err != nil {
		return
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Fatalf("%q (-protojson +door):\n%s", text, diff)
	}
}

func TestQuestionIsProtojsons(t *testing.T) {
	for _, text := range texts() {
		compare(t, text)
	}
}

// FuzzLift: a text means what protojson says, unless a string stands for an array.
func FuzzLift(f *testing.F) {
	for _, text := range texts() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p prompt
		err := p.lift([]byte(text))
		if p.form == nothing && err == nil {
			compare(t, text)
			return
		}
		if err != nil || text[p.from] == '"' { // base64 is ours alone
			if _, wantErr := asProtojson(text); wantErr == nil {
				t.Fatalf("%q: protojson reads this, and lift sees base64 (%v)", text, err)
			}
			_, _ = asQuestion(text)
			return
		}
		compare(t, text)
	})
}

// TestLifted: the usual forms do not fall back to protojson.
func TestLifted(t *testing.T) {
	for text, want := range map[string]int{
		`{"model":"m","tokens":{"token_ids":[1,2,3]},"explain":true}`:                                  12,
		`{"tokens":{"tokenIds":[ ]}}`:                                                                  0,
		`{"block_hashes":{"hash_scheme":"s","block_size":16,"local_hashes":["1",2],"token_count":40}}`: 16,
		`{"tokens":{"token_ids":"AQAAAP////8="}}`:                                                      8,
	} {
		var p prompt
		if err := p.lift([]byte(text)); err != nil || p.form == nothing || len(p.packed) != want {
			t.Errorf("%s: form %d, %d bytes, error %v; want %d bytes", text, p.form, len(p.packed), err, want)
		}
	}
}

func TestBase64(t *testing.T) {
	raw := make([]byte, 0, 64)
	var want []uint32
	for i := range uint32(9) {
		v := i*0x0fbeefff + 0xff
		want = append(want, v)
		raw = binary.LittleEndian.AppendUint32(raw, v)
	}
	std, url := base64.StdEncoding.EncodeToString(raw), base64.URLEncoding.EncodeToString(raw)
	if std == url || !strings.Contains(std, "/") {
		t.Fatal("the bytes do not tell the alphabets apart")
	}
	for _, s := range []string{
		std, url, strings.TrimRight(std, "="), strings.TrimRight(url, "="), strings.ReplaceAll(std, "/", `\/`),
	} {
		got, err := asQuestion(`{"tokens":{"token_ids":"` + s + `"}}`)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if diff := cmp.Diff(want, got.GetTokens().GetTokenIds()); diff != "" {
			t.Errorf("%s: %s", s, diff)
		}
	}
	for _, s := range []string{"AQAA", "AQAAAA", "A", "!", "AQAAAP____+=", "AQ\\nAAAA=="} {
		_, err := asQuestion(`{"tokens":{"token_ids":"` + s + `"}}`)
		if s == "AQAAAA" { // four bytes, unpadded
			if err != nil {
				t.Errorf("%s: %v", s, err)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), "tokens.token_ids: want") {
			t.Errorf("%s: got error %v, want one that names the field", s, err)
		}
	}
}

func numbers(n int) []byte {
	b := []byte(`{"model":"demo","tokens":{"token_ids":[`)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(i*7919%150_000), 10)
	}
	return append(b, `]}}`...)
}

func BenchmarkQuestion(b *testing.B) {
	for _, n := range []int{512, 8192} {
		text := numbers(n)
		b.Run("door/"+strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			c := &call{}
			for b.Loop() {
				c.body = append(c.body[:0], text...)
				if err := c.question(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("protojson/"+strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := asProtojson(string(text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
