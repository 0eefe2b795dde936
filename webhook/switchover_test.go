package webhook_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T12: while the address leads to a standby, senders get 503 with Retry-After. When it leads to the
// primary again, events are stored, although the pool's sockets to the standby are still open.
func TestT12SwitchoverOfAReceiver(t *testing.T) {
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
	err := r.recv.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
		_, err := dedupe.PrepareConn(t.Context(), c.Conn())
		return err
	})
	if err == nil {
		t.Error("dedupe.PrepareConn lends a connection to a standby")
	}
	s.End(r.recv)
	r.until("an event is stored", func() bool {
		e.send(stripeBody("evt_2", ""))
		return one[int](r, `select count(*) from onlyonce.inbox`) == 2
	})
	for i := range 8 {
		e.send(stripeBody(fmt.Sprintf("evt_3_%d", i), "")).want(t, http.StatusOK, false)
	}
}
