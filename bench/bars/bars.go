// Package bars has the lines that benchmarks end with:
//
//	bar NAME MEASURED LIMIT ok|short
package bars

import (
	"fmt"
	"slices"
	"strings"
)

// Bar is a promise about a measured value.
type Bar struct {
	Name    string
	Limit   float64 // 0: none, for information
	AtLeast bool    // the limit is the least value, not the most
	Unit    string
}

// Print writes a line about the median of all, which it sorts. A bar without limit begins with "info".
func (b *Bar) Print(all []float64) {
	v := Quantile(all, 0.5)
	spread := fmt.Sprintf("%s; %.4g to %.4g", b.Unit, all[0], all[len(all)-1])
	if b.Limit == 0 {
		fmt.Printf("info %-28s %10.4g %10s       (%s)\n", b.Name, v, "", spread)
		return
	}
	verdict := "ok"
	if v > b.Limit != b.AtLeast && v != b.Limit {
		verdict = "short"
	}
	fmt.Printf("bar  %-28s %10.4g %10.4g %-5s (%s)\n", b.Name, v, b.Limit, verdict, spread)
}

// Quantile sorts all and gives one of its values.
func Quantile(all []float64, q float64) float64 {
	slices.Sort(all)
	return all[min(int(q*float64(len(all))), len(all)-1)]
}

// Choose reads an -only flag, names with commas between, of those there are: it says which are wanted. All are where only is
// empty; a name that nothing has is an error, since a bench that measures nothing looks like one that has passed.
func Choose(only string, names ...string) (map[string]bool, error) {
	wanted := make(map[string]bool)
	for _, name := range names {
		wanted[name] = only == ""
	}
	if only == "" {
		return wanted, nil
	}
	for name := range strings.SplitSeq(only, ",") {
		if _, ok := wanted[name]; !ok {
			return nil, fmt.Errorf("-only %s: there is no such thing to measure, want some of %s", name, strings.Join(names, ", "))
		}
		wanted[name] = true
	}
	return wanted, nil
}
