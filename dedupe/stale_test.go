package dedupe_test

import (
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T12: Do tries again on a new connection if its own leads to a server that takes no writes.
func TestT12DoOnAStaleConnection(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	var runs atomic.Int32
	if got, err := dedupe.Do(t.Context(), pgtest.Stale(t, pool), key("a", "1"), writes("a", &runs)); err != nil || got != dedupe.Fresh {
		t.Errorf("%v, %v", got, err)
	}
	if n := count(t, pool, "effects"); n != 1 || runs.Load() != 1 {
		t.Errorf("%d effects of %d runs", n, runs.Load())
	}
}
