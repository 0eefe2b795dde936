package outbox_test

import (
	"context"
	"testing"
	"time"
)

// If a session (an operator's, or a rebase) keeps a lane's lease locked, that lane is lost, and no
// other (O5).
func TestLockedLaneCostsNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := testConfig(newScripted(accept))
	cfg.LeaseTTL = 8 * time.Second // a busy machine does not lose the other lanes
	x := r.start(cfg)
	r.holds(16)
	x.stop()
	tx, err := r.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(context.Background(), `select 1 from onlyonce.leases where name = 'relay/payments/3' for update`); err != nil {
		t.Fatal(err)
	}
	r.start(cfg)
	r.holds(31)
	// For as long as a lease lasts all others are renewed.
	begun := one[time.Time](r, `select clock_timestamp()`)
	until(t, "the other lanes are held on", func() bool {
		return one[time.Time](
			r,
			`select min(until) from onlyonce.leases where name ~ '^relay/payments/[0-9]+$' and name <> 'relay/payments/3'`,
		).After(
			begun.Add(2 * cfg.LeaseTTL),
		)
	})
	if r.lost() {
		t.Error("lanes were lost")
	}
}
