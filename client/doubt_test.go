package client_test

import (
	"testing"
	"testing/synctest"

	"github.com/kvoracle/kvoracle/client"
	"github.com/kvoracle/kvoracle/client/clienttest"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// What cannot be vouched for is STALE, goes on being applied, stays so over a restart of the oracle, and is over when the
// reporter says so.
func TestDoubt(t *testing.T) {
	inBubble(t, func(t *testing.T, o *clienttest.Oracle) {
		r := newReporter(t, o, worker("a"))
		running(t, r)
		router := client.NewRouter(o.Conn(), client.WithGatewayID("g"))
		running(t, router)
		prompt := text(3, 32)
		ids, err := r.StoreTokens(client.Root(), prompt[:16], client.Variant{}, client.TierDevice)
		if err != nil {
			t.Fatal(err)
		}
		expect := func(what string, want client.BlockConfidence, tokens uint64) {
			t.Helper()
			flush(t, r)
			if got := r.Stats().Confidence; got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
			if got := matched(t, router, "a", prompt, "").Device; got != tokens {
				t.Errorf("%s: %d tokens, want %d", what, got, tokens)
			}
		}
		const fresh, stale = kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_FRESH, kvoraclev1.BlockConfidence_BLOCK_CONFIDENCE_STALE
		expect("told", fresh, 16)
		r.Doubt(true)
		synctest.Wait()
		if got := r.Stats().Confidence; got != stale {
			t.Errorf("in doubt, without a change: %v", got)
		}
		expect("in doubt", stale, 16)
		if _, err := r.StoreTokens(client.After(ids[3]), prompt[16:], client.Variant{}, client.TierDevice); err != nil {
			t.Fatal(err)
		}
		expect("more", stale, 32)
		if err := o.Restart(); err != nil {
			t.Fatal(err)
		}
		expect("told to an oracle that has restarted", stale, 32)
		invalidate(t, o, "a")
		synctest.Wait()
		expect("stated anew", stale, 32)
		if err := r.Clear(); err != nil {
			t.Fatal(err)
		}
		r.Doubt(false)
		expect("given up", fresh, 0)
		if n := r.Stats().Resyncs; n != 1 {
			t.Errorf("%d snapshots were asked for, want the operator's", n)
		}
	})
}
