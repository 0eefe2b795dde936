package webhook_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// T4: if the answer to COMMIT never arrives, the endpoint does the same again on another connection
// and so finds out the outcome. The sender gets 200 once the event is known to be committed, and
// there is one event (W11).
func TestT4LostCommitOfAReceiver(t *testing.T) {
	t.Parallel()
	for mode, more := range map[string][]func(*webhook.Config){"inbox": nil, "inline": {inline(effect)}} {
		r := newRig(t)
		var armed atomic.Int32 // what happens at the next COMMIT
		w := &pgtest.Wire{Statement: "commit", At: func(int32) pgtest.Cut { return pgtest.Cut(armed.Swap(int32(pgtest.Pass))) }}
		r.recv = pgtest.Wired(t, r.pool, pgx.QueryExecModeExec, w, nil)
		e := r.serve(samples(t)["Stripe"], more...)
		e.send(stripeBody("evt_0", "")).want(t, 200, false)
		for _, how := range []pgtest.Cut{pgtest.Unsent, pgtest.Unheard} {
			id := fmt.Sprint("evt_", how)
			armed.Store(int32(how))
			e.send(stripeBody(id, "")).want(t, 200, false)
			e.send(stripeBody(id, "")).want(t, 200, true)
		}
		if n := w.Cuts.Load(); n != 2 {
			t.Errorf("%s: %d connections were cut", mode, n)
		}
		table := "onlyonce.event_log"
		if mode == "inline" {
			table = "effects"
		}
		if n := r.count(table); n != 3 {
			t.Errorf("%s: %d events, want 3", mode, n)
		}
	}
}
