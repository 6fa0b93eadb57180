package sim

import (
	"fmt"
	"testing"

	"github.com/kvoracle/kvoracle/internal/oracle"
)

// TestWrongPriorCostsNothing: a prior that is four times too slow or too fast is corrected while the first fifth of the
// trace runs (some 480 requests on eight engines); from then on it is as good as the right one.
func TestWrongPriorCostsNothing(t *testing.T) {
	tr := mustSample(t)
	run := func(factor float64) Result {
		m := Model8B()
		c := m.CostModel()
		c.PrefillPerToken *= factor
		c.PrefillPerTokenContext *= factor
		c.IterationFixed *= factor
		c.IterationBase *= factor
		c.DecodePerKVToken *= factor
		return mustRun(t, tr, NewLive(LiveOptions{Oracle: oracle.Config{Costs: map[string]oracle.CostModel{liveModel: c}}}), liveOptions())
	}
	right := run(1)
	for _, factor := range []float64{4, 0.25} {
		t.Run(fmt.Sprint(factor), func(t *testing.T) {
			wrong := run(factor)
			if ratio := wrong.TTFT.Mean / right.TTFT.Mean; ratio > 1.03 {
				t.Errorf("mean TTFT %.4f s with a prior of %v times the truth, %.4f s with the truth: %.3f", wrong.TTFT.Mean, factor, right.TTFT.Mean, ratio)
			}
		})
	}
}

// TestSilentGatewaysCostLittle: where no first token is told, prefills end by the clock and costs are learned from ends.
func TestSilentGatewaysCostLittle(t *testing.T) {
	tr := mustSample(t)
	all := mustRun(t, tr, NewLive(LiveOptions{}), liveOptions())
	silent := mustRun(t, tr, NewLive(LiveOptions{NoFirstToken: true}), liveOptions())
	ratio := silent.TTFT.Mean / all.TTFT.Mean
	t.Logf("%.3f of what all reports give", ratio)
	if ratio > 1.1 {
		t.Errorf("mean TTFT %.4f s without first tokens, %.4f s with them: %.3f", silent.TTFT.Mean, all.TTFT.Mean, ratio)
	}
}
