package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvoracle/kvoracle/internal/block"
	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

var t0 = time.Unix(1_800_000_000, 0)

// seedFlag repeats a random test with the seed that a failure has printed.
var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0: another one each time")

func seeded(t *testing.T) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 5))
}

const size = 4

// prompt is a chain's tokens: content c of each block says what is in it.
func prompt(contents []uint32) []uint32 {
	var ids []uint32
	for _, c := range contents {
		for i := range uint32(size) {
			ids = append(ids, c*size+i)
		}
	}
	return ids
}

func chain(contents []uint32) []block.ID {
	ks := block.Identity{Model: "m", BlockSize: size}.Keyspace()
	return block.AppendTokenChain(nil, ks, prompt(contents), size)
}

// contents is a random prompt, of which beginnings are shared by many.
func contents(r *rand.Rand, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(r.IntN(2 + i/3))
	}
	return out
}

// town is an oracle with some workers that have reported.
type town struct {
	o    *oracle.Oracle
	said []*oracle.BlockSession
	told []oracle.Hello // of each; NextSequence is that of the next batch
}

func newTown(t *testing.T, r *rand.Rand, cfg oracle.Config) *town {
	t.Helper()
	v := &town{o: oracle.New(cfg, nil)}
	for i := range 1 + r.IntN(5) {
		spec := fleet.Spec{
			Worker: fmt.Sprintf("w%d", i), Address: fmt.Sprintf("10.0.0.%d:80", i), Model: "m", BlockSize: size, DPSize: 1 + r.IntN(3),
			Roles: fleet.Roles(r.IntN(4)), Capacity: [fleet.NumTiers]uint64{1000, uint64(i)}, MaxRunning: r.IntN(100), MaxRequests: r.IntN(2) * 1000,
			Class: []string{"", "h100"}[r.IntN(2)],
		}
		if r.IntN(2) == 0 {
			spec.Labels = map[string]string{"zone": "a", "rack": fmt.Sprint(i)}
		}
		if r.IntN(5) == 0 {
			if _, err := v.o.Register(spec, t0); err != nil {
				t.Fatal(err)
			}
			continue
		}
		counted := r.IntN(2) == 0
		for rank := range spec.DPSize {
			v.open(t, oracle.Hello{Spec: spec, Rank: rank, Incarnation: uint64(i + 1), NextSequence: 1, Counted: counted})
		}
		if r.IntN(4) == 0 {
			if _, err := v.o.Drain(spec.Worker, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	return v
}

func (v *town) open(t *testing.T, h oracle.Hello) {
	t.Helper()
	s, a, err := v.o.OpenBlocks(&h, t0)
	if err != nil || a.ResumeFrom != h.NextSequence || a.SnapshotRequired {
		t.Fatalf("%+v, %v", a, err)
	}
	v.said, v.told = append(v.said, s), append(v.told, h)
}

// goOn is a town in which the same reporters go on with another oracle.
func (v *town) goOn(t *testing.T, o *oracle.Oracle) *town {
	t.Helper()
	next := &town{o: o}
	for _, h := range v.told {
		next.open(t, h)
	}
	return next
}

// report lets a random rank report something random, in all towns alike.
func report(t *testing.T, r *rand.Rand, towns ...*town) {
	t.Helper()
	n := len(towns[0].said)
	if n == 0 {
		return
	}
	rank := r.IntN(n)
	ids := chain(contents(r, 1+r.IntN(30)))
	tier := fleet.Tier(max(0, r.IntN(fleet.NumTiers+2)-2))
	op := oracle.Op{Kind: oracle.OpStore, IsRoot: true, IDs: ids, Tier: tier}
	if from := r.IntN(len(ids)); from > 0 && r.IntN(3) == 0 {
		op.IsRoot, op.Parent, op.IDs = false, ids[from-1], ids[from:]
	}
	if r.IntN(4) == 0 {
		op = oracle.Op{Kind: oracle.OpRemove, IDs: ids[r.IntN(len(ids)):], Tier: tier}
	}
	isDoubtful := r.IntN(10) == 0
	for _, v := range towns {
		s, h := v.said[rank], &v.told[rank]
		s.Doubt(isDoubtful)
		ack, err := s.Batch(h.NextSequence, 1, []oracle.Op{op}, t0)
		if err != nil || ack.Applied != h.NextSequence {
			t.Fatalf("%+v, %v", ack, err)
		}
		h.NextSequence++
	}
}

// encode is the file that an oracle makes.
func encode(t testing.TB, o *oracle.Oracle, secret string) []byte {
	t.Helper()
	var b bytes.Buffer
	e, err := newEncoder(&b, fingerprint(secret), t0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(o.Save(e), e.end()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// restore puts a file into an oracle.
func restore(data []byte, o *oracle.Oracle, now time.Time) (Totals, error) {
	var r *oracle.Restoring
	got, err := decode(bytes.NewReader(data), fingerprint(""), func(h header) target {
		r = o.Restore(h.written, now)
		return r
	})
	if err != nil {
		if r != nil {
			r.Abort()
		}
		return got, err
	}
	r.Commit()
	return got, nil
}

// verified is what an oracle shows of every rank.
func verified(t *testing.T, o *oracle.Oracle) map[string]oracle.View {
	t.Helper()
	out := make(map[string]oracle.View)
	for _, w := range o.Workers("", t0) {
		for rank := range w.Ranks {
			v, err := o.Verify(w.Worker.Worker, rank, t0)
			if err != nil {
				t.Fatal(err)
			}
			for i := range v.IDs {
				slices.Sort(v.IDs[i])
				v.IDs[i] = slices.Clip(v.IDs[i])
			}
			v.Confidence = 0 // what is restored is STALE
			out[fmt.Sprint(w.Worker.Worker, "/", rank)] = v
		}
	}
	return out
}

// TestARestoredOracleKnowsWhatWasSaved compares, for random fleets with random reports, the workers, what each rank holds,
// how its digests go on, and what prompts match.
func TestARestoredOracleKnowsWhatWasSaved(t *testing.T) {
	r := seeded(t)
	blocks := 0
	for range 20 {
		v := newTown(t, r, oracle.Config{})
		for range r.IntN(80) {
			report(t, r, v)
		}
		data := encode(t, v.o, "")
		next := oracle.New(oracle.Config{}, nil)
		got, err := restore(data, next, t0)
		if err != nil {
			t.Fatal(err)
		}
		blocks += got.Blocks
		if d := cmp.Diff(verified(t, v.o), verified(t, next)); d != "" {
			t.Fatalf("ranks (-saved +restored):\n%s", d)
		}
		for _, was := range v.o.Workers("", t0) {
			is, err := next.Worker(was.Worker.Worker, t0)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(was.Spec, is.Spec); d != "" || was.Incarnation != is.Incarnation || was.IsDraining != is.IsDraining || was.IsLost != is.IsLost {
				t.Fatalf("worker (-saved +restored):\n%s\n%+v, %+v", d, was.Worker, is.Worker)
			}
		}
		continued := v.goOn(t, next)
		for range r.IntN(40) {
			report(t, r, v, continued)
		}
		if d := cmp.Diff(verified(t, v.o), verified(t, next)); d != "" {
			t.Fatalf("ranks after further reports (-saved +restored):\n%s", d)
		}
		for range 20 {
			tokens := prompt(contents(r, 1+r.IntN(30)))
			ask := func(o *oracle.Oracle) map[string]int {
				a, err := o.Route(context.Background(), &oracle.RouteRequest{
					Model: "m", Prompt: oracle.Prompt{Tokens: tokens, Length: len(tokens)}, DryRun: true, Explain: true,
				}, t0)
				if err != nil {
					return nil // all are draining
				}
				out := make(map[string]int)
				for _, c := range a.Rows {
					out[fmt.Sprint(c.Target.Worker, c.Target.Rank)] = c.Matched.Total()
				}
				return out
			}
			if d := cmp.Diff(ask(v.o), ask(next)); d != "" {
				t.Fatalf("matches (-saved +restored):\n%s", d)
			}
		}
	}
	if blocks < 200 {
		t.Errorf("only %d blocks were saved", blocks)
	}
}

// TestAFileSaysTheGroup, and one of a version that did not is read as before.
func TestAFileSaysTheGroup(t *testing.T) {
	o := oracle.New(oracle.Config{}, nil)
	h := oracle.Hello{
		Spec:        fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1},
		Incarnation: 5, NextSequence: 1, PrefixGroup: math.MaxUint32,
	}
	v := &town{o: o}
	v.open(t, h)
	written := encode(t, o, "")
	former := frames(bytes.Clone(written))
	for i, p := range former {
		if kind(p[0]) != kindRank {
			continue
		}
		// Rank, incarnation and batch take a byte each; then the flags, and the group's five bytes.
		if p[4]&flagGroup == 0 {
			t.Fatalf("the flags are %x", p[4])
		}
		p[4] &^= flagGroup
		former[i] = slices.Concat(p[:5], p[10:])
	}
	for name, data := range map[string][]byte{"this": written, "former": joined(former)} {
		next := oracle.New(oracle.Config{}, nil)
		if _, err := restore(data, next, t0); err != nil {
			t.Fatalf("a file of %s version: %v", name, err)
		}
		for _, group := range []uint32{1, math.MaxUint32} {
			h.PrefixGroup = group
			// The former one's group is what the first hello says.
			isRight := (group == math.MaxUint32) == (name == "this")
			if _, _, err := next.OpenBlocks(&h, t0); (err == nil) != isRight {
				t.Errorf("a file of %s version, a hello with group %d: %v", name, group, err)
			}
		}
	}
}

// frames cuts a file into the payloads of its frames.
func frames(data []byte) (out [][]byte) {
	p := data[len(magic):]
	for len(p) >= frameHead {
		n := binary.LittleEndian.Uint32(p)
		out = append(out, p[frameHead:frameHead+n])
		p = p[frameHead+n:]
	}
	return out
}

// joined is the file of payloads, with checksums that are right.
func joined(payloads [][]byte) []byte {
	out, sum := []byte(magic), uint32(0)
	for _, p := range payloads {
		sum = crc32.Update(sum, castagnoli(), p)
		out = binary.LittleEndian.AppendUint32(out, uint32(len(p)))
		out = binary.LittleEndian.AppendUint32(out, sum)
		out = append(out, p...)
	}
	return out
}

// sample is a small file with everything in it.
func sample(t testing.TB) []byte {
	t.Helper()
	o := oracle.New(oracle.Config{}, nil)
	for i, counted := range []bool{false, true} {
		s, _, err := o.OpenBlocks(&oracle.Hello{
			Spec:        fleet.Spec{Worker: fmt.Sprint("w", i), Model: "m", BlockSize: size, DPSize: 2, Labels: map[string]string{"a": "b"}},
			Incarnation: 5, NextSequence: 1, Counted: counted, Rank: i,
		}, t0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Batch(1, 1, []oracle.Op{
			{Kind: oracle.OpStore, IsRoot: true, IDs: chain([]uint32{1, 2, 3})},
			{Kind: oracle.OpStore, IsRoot: true, IDs: chain([]uint32{1, 2}), Tier: fleet.Host},
			{Kind: oracle.OpStore, Parent: 77, IDs: []block.ID{78, 79}},
		}, t0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.Register(fleet.Spec{Worker: "silent", Model: "m", BlockSize: size, DPSize: 1, Labels: map[string]string{"only": "here"}}, t0); err != nil {
		t.Fatal(err)
	}
	a, err := o.Route(context.Background(), &oracle.RouteRequest{
		Model: "m", Prompt: oracle.Prompt{Tokens: prompt([]uint32{1, 2, 3}), Length: 3 * size}, Labels: map[string]string{"only": "here"},
	}, t0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []oracle.Step{oracle.FirstToken, oracle.Finished} {
		if _, err := o.Progress(&oracle.Event{Decision: a.Decision, Step: s, OutputTokens: 1, Cached: -1}, t0); err != nil {
			t.Fatal(err)
		}
	}
	data := encode(t, o, "")
	if !slices.ContainsFunc(frames(data), func(p []byte) bool { return kind(p[0]) == kindGuess }) {
		t.Fatal("nothing is guessed")
	}
	return data
}

// nothing wants an oracle to which nothing has happened.
func nothing(t *testing.T, o *oracle.Oracle, what string) {
	t.Helper()
	for o.Stats(t0).Index.Reclaimable > 0 {
		o.Tick(t0)
	}
	if s := o.Stats(t0); s.Index.Entries != 0 || len(o.Workers("", t0)) != 0 {
		t.Errorf("%s: %d workers and %d entries are left", what, len(o.Workers("", t0)), s.Index.Entries)
	}
}

// TestNoDamagedFileIsLoaded cuts a file at every length, changes every byte, leaves frames out, doubles them and changes their
// order: each is refused, and nothing of it is left.
func TestNoDamagedFileIsLoaded(t *testing.T) {
	good := sample(t)
	o := oracle.New(oracle.Config{}, nil)
	refuse := func(data []byte, what string) {
		t.Helper()
		if _, err := restore(data, o, t0); err == nil {
			t.Errorf("%s was taken", what)
		}
		nothing(t, o, what)
	}
	for n := range good {
		bad := slices.Clone(good)
		bad[n] ^= 1 << (n % 8)
		for what, data := range map[string][]byte{"cut at": good[:n], "changed at": bad} {
			if _, err := decode(bytes.NewReader(data), fingerprint(""), func(header) target { return ignore{} }); err == nil {
				t.Errorf("a file %s %d was taken", what, n)
			}
			if n%67 == 0 {
				refuse(data, fmt.Sprintf("a file %s %d", what, n))
			}
		}
	}
	refuse(append(slices.Clone(good), 0), "a file with a byte more")
	refuse(append(slices.Clone(good), good...), "a file twice")
	all := frames(good)
	if !bytes.Equal(joined(all), good) {
		t.Fatal("the frames do not make the file")
	}
	for i := range all {
		// The checksums are right in these.
		refuse(joined(slices.Delete(slices.Clone(all), i, i+1)), fmt.Sprintf("a file without frame %d", i))
		if kind(all[i][0]) != kindWorker {
			// A worker that is told twice with nothing between is only told twice, but for the count.
			refuse(joined(slices.Insert(slices.Clone(all), i, all[i])), fmt.Sprintf("a file with frame %d twice", i))
		}
		if i > 0 {
			bad := slices.Clone(all)
			bad[i], bad[i-1] = bad[i-1], bad[i]
			refuse(joined(bad), fmt.Sprintf("a file with frames %d and %d swapped", i-1, i))
		}
		for k := 0; k < len(all[i]); k += 5 {
			bad := slices.Clone(all)
			bad[i] = slices.Clone(all[i][:k])
			if k == 0 {
				bad[i] = []byte{99}
			}
			refuse(joined(bad), fmt.Sprintf("a file with frame %d cut at %d", i, k))
		}
	}
	if _, err := restore(good, o, t0); err != nil {
		t.Fatal(err)
	}
}

func TestForeignFilesAreRefusedByName(t *testing.T) {
	o := oracle.New(oracle.Config{}, nil)
	all := frames(sample(t))
	newer := slices.Clone(all)
	newer[0] = slices.Clone(all[0])
	newer[0][1] = version + 1
	for want, data := range map[string][]byte{
		"another deployment": encode(t, o, "secret"),
		"version":            joined(newer),
		"begin":              []byte("#!/bin/sh\nexit 0\n"),
	} {
		if _, err := restore(data, o, t0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want one that names %q", err, want)
		}
	}
}

func openDir(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func newestFile(t *testing.T, path string) (name string, all []string) {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) {
			all = append(all, e.Name())
		}
	}
	if len(all) == 0 {
		return "", nil
	}
	return filepath.Join(path, all[len(all)-1]), all
}

func TestTheNewestGoodFileIsLoaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "not", "there", "yet")
	d := openDir(t, path)
	o := oracle.New(oracle.Config{}, nil)
	if l, err := d.Load(t.Context(), o, t0); err != nil || l.Path != "" || len(l.Refused) != 0 {
		t.Errorf("an empty folder: %+v, %v", l, err)
	}
	s, _, err := o.OpenBlocks(&oracle.Hello{Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 1, NextSequence: 1}, t0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(5) {
		if _, err := s.Batch(i+1, 1, []oracle.Op{{Kind: oracle.OpStore, IsRoot: true, IDs: chain([]uint32{1, 2, 3, 4, 5})[:i+1]}}, t0); err != nil {
			t.Fatal(err)
		}
		w, err := d.Write(t.Context(), o, t0.Add(-time.Duration(i)*time.Hour)) // the clock goes back: the order stays
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(w.Path); err != nil || st.Size() != w.Bytes || w.Blocks != int(i+1) {
			t.Errorf("written: %+v; %v, %v", w, st, err)
		}
	}
	name, all := newestFile(t, path)
	if len(all) != keep {
		t.Errorf("%v are there, want %d", all, keep)
	}
	held := func(d *Dir) (Loaded, int) {
		next := oracle.New(oracle.Config{}, nil)
		l, err := d.Load(t.Context(), next, t0)
		if err != nil {
			t.Fatal(err)
		}
		return l, next.Stats(t0).Index.HolderBlocks
	}
	if l, n := held(d); n != 5 || l.Shown != 5 || l.Path != name || len(l.Refused) != 0 {
		t.Errorf("loaded %d blocks: %+v", n, l)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	// What a crash leaves behind while it writes, and what is in the folder for other reasons, is no file of ours.
	for _, other := range []string{tempName, "index-.kvsnap", "index-zz.kvsnap", "index-00000000000000ff.kvsnap.bak", "index-ff.kvsnap", "README"} {
		if err := os.WriteFile(filepath.Join(path, other), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d = openDir(t, path)
	if l, n := held(d); n != 5 || len(l.Refused) != 0 {
		t.Errorf("loaded %d blocks: %+v", n, l)
	}

	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data[:len(data)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if l, n := held(d); n != 4 || len(l.Refused) != 1 || !strings.Contains(l.Refused[0].Error(), name) {
		t.Errorf("with the newest file damaged, loaded %d blocks: %+v", n, l)
	}
	// A new file goes above a damaged one.
	if _, err := d.Write(t.Context(), o, t0); err != nil {
		t.Fatal(err)
	}
	if l, n := held(d); n != 5 || len(l.Refused) != 0 {
		t.Errorf("written again, loaded %d blocks: %+v", n, l)
	}
}

func TestAFolderHasOneOwner(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	if other, err := Open(path, ""); err == nil {
		t.Errorf("taken twice: %v", other.Close())
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(path, lockName), ""); err == nil {
		t.Error("a file was taken for a folder")
	}
	openDir(t, path)
}

// TestAWriteThatFailsLeavesTheFormerFile: the context is over, as at an end that takes too long.
func TestAWriteThatFailsLeavesTheFormerFile(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	o := oracle.New(oracle.Config{}, nil)
	if _, err := d.Write(t.Context(), o, t0); err != nil {
		t.Fatal(err)
	}
	name, _ := newestFile(t, path)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no time")
	cancel(why)
	if _, err := d.Write(ctx, o, t0); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if again, all := newestFile(t, path); again != name || len(all) != 1 {
		t.Errorf("%v are there", all)
	}
	if _, err := os.Stat(filepath.Join(path, tempName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unfinished file: %v", err)
	}
}

// TestLargeContentsGoOverManyFrames and come back whole.
func TestLargeContentsGoOverManyFrames(t *testing.T) {
	o := oracle.New(oracle.Config{}, nil)
	s, _, err := o.OpenBlocks(&oracle.Hello{Spec: fleet.Spec{Worker: "w", Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 1, NextSequence: 1}, t0)
	if err != nil {
		t.Fatal(err)
	}
	const n = 200_000
	ids := make([]block.ID, n)
	for i := range ids {
		ids[i] = block.ID(i*7919 + 1)
	}
	if _, err := s.Batch(1, 1, []oracle.Op{{Kind: oracle.OpStore, IsRoot: true, IDs: ids}}, t0); err != nil {
		t.Fatal(err)
	}
	data := encode(t, o, "")
	if perBlock := float64(len(data)) / n; perBlock > 8.2 {
		t.Errorf("%.2f bytes a block", perBlock)
	}
	next := oracle.New(oracle.Config{}, nil)
	if got, err := restore(data, next, t0); err != nil || got.Blocks != n || next.Stats(t0).Index.HolderBlocks != n {
		t.Errorf("got %+v, %v", got, err)
	}
	if len(frames(data)) < 4 {
		t.Errorf("only %d frames", len(frames(data)))
	}
}

// FuzzDecode: no bytes make the decoder do anything but refuse them or build what they say.
func FuzzDecode(f *testing.F) {
	good := sample(f)
	f.Add(good, false)
	for _, p := range frames(good) {
		f.Add(p, true)
	}
	all := frames(good)
	f.Fuzz(func(t *testing.T, data []byte, isFrame bool) {
		if isFrame && len(data) > 0 && len(data) <= maxFrame {
			// With checksums that are right, in each place.
			for i := range all {
				bad := slices.Insert(slices.Clone(all), i, data)
				_, _ = restore(joined(bad), oracle.New(oracle.Config{}, nil), t0)
				bad[i], bad[i+1] = data, all[len(all)-1]
				_, _ = decode(bytes.NewReader(joined(bad)), fingerprint(""), func(header) target { return ignore{} })
			}
			return
		}
		_, err := restore(data, oracle.New(oracle.Config{}, nil), t0)
		if err == nil && !bytes.HasPrefix(data, []byte(magic)) {
			t.Error("taken without its beginning")
		}
	})
}

// BenchmarkSave is the copying and writing of 64 ranks, without the disk; an operation is a block.
func BenchmarkSave(b *testing.B) {
	o := oracle.New(oracle.Config{}, nil)
	const ranks, chains, long = 64, 100, 160
	for i := range ranks {
		s, _, err := o.OpenBlocks(&oracle.Hello{
			Spec: fleet.Spec{Worker: fmt.Sprint("w", i), Model: "m", BlockSize: size, DPSize: 1}, Incarnation: 1, NextSequence: 1,
		}, t0)
		if err != nil {
			b.Fatal(err)
		}
		r := rand.New(rand.NewPCG(uint64(i), 1))
		for c := range uint64(chains) {
			ids := make([]block.ID, long)
			for k := range ids {
				ids[k] = block.ID(r.Uint64())
			}
			if _, err := s.Batch(c+1, 1, []oracle.Op{{Kind: oracle.OpStore, IsRoot: true, IDs: ids}}, t0); err != nil {
				b.Fatal(err)
			}
		}
	}
	data := encode(b, o, "")
	b.Run("write", func(b *testing.B) {
		for n := 0; n < b.N; n += ranks * chains * long {
			e, err := newEncoder(io.Discard, 0, t0)
			if err != nil {
				b.Fatal(err)
			}
			if err := o.Save(e); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(data))/(ranks*chains*long), "bytes/block")
	})
	b.Run("read", func(b *testing.B) {
		for n := 0; n < b.N; n += ranks * chains * long {
			if _, err := decode(bytes.NewReader(data), fingerprint(""), func(header) target { return ignore{} }); err != nil {
				b.Fatal(err)
			}
			if _, err := restore(data, oracle.New(oracle.Config{}, nil), t0); err != nil {
				b.Fatal(err)
			}
		}
	})
}
