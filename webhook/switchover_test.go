package webhook_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T11: while the address leads to a standby, senders get 503 with Retry-After. When it leads to the
// primary again, events are stored, although the pool's sockets to the standby are still open.
func TestT11SwitchoverOfAReceiver(t *testing.T) {
	t.Parallel()
	s := pgtest.NewSwitchover(t)
	r := &rig{t: t, pool: s.Direct(), recv: s.Pool()}
	e := r.serve(samples(t)["Stripe"])
	e.send(stripeBody("evt_1", "")).want(t, http.StatusOK, false)
	s.Begin()
	r.until("the standby refuses an event", func() bool {
		e.send(stripeBody("evt_2", ""))
		return guard.SQLState(r.lastRefusal()) == "25006"
	})
	e.send(stripeBody("evt_2", "")).want(t, http.StatusServiceUnavailable, false)
	s.End(r.recv)
	r.until("an event is stored", func() bool {
		e.send(stripeBody("evt_2", ""))
		return one[int](r, `select count(*) from onlyonce.inbox`) == 2
	})
	for i := range 8 {
		e.send(stripeBody(fmt.Sprintf("evt_3_%d", i), "")).want(t, http.StatusOK, false)
	}
}
