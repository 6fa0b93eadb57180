// Package bars has the lines that benchmarks end with:
//
//	bar NAME MEASURED LIMIT ok|short
package bars

import (
	"fmt"
	"slices"
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
