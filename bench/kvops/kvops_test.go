package kvops

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
)

var records = []Record{
	{Kind: Store, Holder: 2, IsRoot: true, IDs: []block.ID{5, 6}, Locals: []block.Local{5, 7}},
	{Kind: Store, Holder: 2, Parent: 6, IDs: []block.ID{0xfedcba9876543210}, Locals: []block.Local{8}},
	{Kind: Remove, Holder: 1, IDs: []block.ID{6, 5}},
	{Kind: Query, Group: 3, Locals: []block.Local{5, 7, 8}},
}

func written(t testing.TB, holders int, all []Record) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := NewWriter(&buf, holders)
	for i := range all {
		w.Write(&all[i])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func readAll(data []byte) (all []Record, holders int, err error) {
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, 0, err
	}
	for {
		var rec Record
		if err := r.Next(&rec); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return all, r.Holders(), err
		}
		all = append(all, rec)
	}
}

// The reader in Rust relies on these bytes.
func TestBytesAreAsDocumented(t *testing.T) {
	want := "6b766f70732f310a" + "03000000" +
		"01010200" + "02000000" + "0000000000000000" + "0500000000000000" + "0500000000000000" + "0600000000000000" + "0700000000000000" +
		"01000100" + "02000000" + "0600000000000000" + "1032547698badcfe" + "0800000000000000" +
		"02000200" + "01000000" + "0600000000000000" + "0500000000000000" +
		"03030300" + "00000000" + "0500000000000000" + "0700000000000000" + "0800000000000000" +
		"0000000000000000"
	if got := hex.EncodeToString(written(t, 3, records)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestReadsWhatWasWritten(t *testing.T) {
	all, holders, err := readAll(written(t, 3, records))
	if err != nil || holders != 3 {
		t.Fatalf("%d holders, %v", holders, err)
	}
	if d := cmp.Diff(records, all); d != "" {
		t.Error(d)
	}
}

func TestChainIsAsDynamosIs(t *testing.T) {
	// Computed with the C reference implementation: XXH3-64, seed 1337, of 8 bytes of parent and 8 of local hash.
	want := []block.ID{11, 0x91ad9ef362f0ffae, 0x73bedcc063764e6e}
	if d := cmp.Diff(want, Chain(nil, []block.Local{11, 12, 13})); d != "" {
		t.Error(d)
	}
	if got := Chain(nil, nil); got != nil {
		t.Errorf("a chain of nothing is %v", got)
	}
}

func TestRefusesWhatIsNoFile(t *testing.T) {
	good := written(t, 3, records)
	for n := range good {
		if _, _, err := readAll(good[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	const remove, query = 12 + 48 + 32, 12 + 48 + 32 + 24
	for _, c := range []struct {
		data []byte
		want string
	}{
		{change(0, 'x'), "not an operation file"},
		{change(8, 0), "0 holders"},
		{change(11, 1), "16777219 holders"},
		{change(12, 4), "no kind 4"},
		{change(13, 2), "no flag 2"},
		{change(14, 0), "no blocks"},
		{change(16, 3), "holder 3 of 3"},
		{change(20, 1), "with a parent"},
		{change(remove+1, 9), "no flag 9"},
		{change(query+4, 1), "holder 1 of 3"},
		{change(len(good)-1, 1), "end with contents"},
		{append(bytes.Clone(good), 0), "follows the end"},
		{append(append(bytes.Clone(good[:len(good)-8]), good[12:60]...), make([]byte, 8)...), "after a query"},
	} {
		if _, _, err := readAll(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

func TestWriterRefuses(t *testing.T) {
	for name, r := range map[string]Record{
		"no kind":      {IDs: []block.ID{1}},
		"holder":       {Kind: Remove, Holder: 3, IDs: []block.ID{1}},
		"no blocks":    {Kind: Query},
		"many blocks":  {Kind: Remove, IDs: make([]block.ID, MaxBlocks+1)},
		"local hashes": {Kind: Store, IDs: []block.ID{1, 2}, Locals: []block.Local{1}},
	} {
		w := NewWriter(io.Discard, 3)
		w.Write(&r)
		if w.Close() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if NewWriter(io.Discard, 0).Close() == nil {
		t.Error("no holders: no error")
	}
}

// Whatever can be read is written back as the same bytes.
func FuzzReader(f *testing.F) {
	f.Add(written(f, 3, records))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, holders, err := readAll(data)
		if err != nil {
			return
		}
		if again := written(t, holders, all); !bytes.Equal(again, data) {
			t.Errorf("read %x, wrote %x", data, again)
		}
	})
}
