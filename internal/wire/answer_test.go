package wire

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kvoracle/kvoracle/internal/oracle"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// fill puts something into every field that an answer has or will have.
func fill(v reflect.Value, r *rand.Rand) {
	switch v.Kind() { //nolint:exhaustive // kinds that an answer has
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for _, field := range v.Fields() {
			if field.CanSet() {
				fill(field, r)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), r)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(4), 4))
		for i := range v.Len() {
			fill(v.Index(i), r)
		}
	case reflect.Pointer:
		if r.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), r)
		}
	case reflect.String:
		v.SetString(strings.Repeat("é", r.IntN(2)*r.IntN(200)))
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Float64:
		v.SetFloat([]float64{0, math.Copysign(0, -1), r.Float64(), math.Inf(1)}[r.IntN(4)])
	case reflect.Int64, reflect.Int:
		v.SetInt(r.Int64N(1<<40) >> r.IntN(41))
	case reflect.Uint8:
		v.SetUint(uint64(r.IntN(10)))
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64() >> r.IntN(64) & (1<<v.Type().Bits() - 1))
	default:
	}
}

func TestAnswersAreWrittenAsProtobufWritesThem(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		a := &oracle.Answer{}
		fill(reflect.ValueOf(a).Elem(), r)
		want := EncodeAnswer(a, false)
		got := &kvoraclev1.RouteResponse{}
		raw := AppendAnswer([]byte("before"), a)
		if err := proto.Unmarshal(raw[len("before"):], got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
			t.Fatalf("answer (-protobuf +appended):\n%s", d)
		}
		if n := proto.Size(want); n != len(raw)-len("before") {
			t.Fatalf("%d bytes, protobuf-go writes %d", len(raw)-len("before"), n)
		}
		tag := r.Uint64() >> r.IntN(64)
		envelope := &kvoraclev1.RouteStreamResponse{}
		if err := proto.Unmarshal(AppendStreamAnswer(nil, tag, a), envelope); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, envelope.GetResponse(), protocmp.Transform()); d != "" || envelope.GetTag() != tag {
			t.Fatalf("tag %d, want %d; answer (-protobuf +appended):\n%s", envelope.GetTag(), tag, d)
		}
	}
}
