package policy

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestNamedTermsAreTheSum: an explanation leaves out no term and shows what is taken away as such.
func TestNamedTermsAreTheSum(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	for range 100 {
		var terms Terms
		v := reflect.ValueOf(&terms).Elem()
		for _, field := range v.Fields() {
			field.SetFloat(float64(rnd.Float32()))
		}
		sum, names := 0.0, make(map[string]bool)
		for _, x := range terms.Named() {
			sum += x.Seconds
			names[x.Name] = true
		}
		var few [NumTerms]float32
		if terms.Narrow(&few); TermsOf(&few) != terms {
			t.Fatalf("%+v, in half the memory %+v", terms, TermsOf(&few))
		}
		if len(names) != v.NumField() || math.Abs(sum-terms.Sum()) > 1e-12 {
			t.Fatalf("%+v: %d names, sum %v, want %d and %v", terms, len(names), sum, v.NumField(), terms.Sum())
		}
	}
	for _, x := range new(Terms).Named() {
		if math.Signbit(x.Seconds) {
			t.Errorf("%s is -0 where it is nothing", x.Name)
		}
	}
}
