package outbox_test

import (
	"context"
	"testing"
	"time"
)

// A lane whose lease somebody keeps locked (an operator's session, a rebase) costs that lane, and no other.
func TestLockedLaneCostsNoOther(t *testing.T) {
	r := newRig(t)
	cfg := testConfig(newScripted(accept))
	cfg.LeaseTTL = 2 * time.Second
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
	time.Sleep(2 * cfg.LeaseTTL)
	if r.lost() {
		t.Error("lanes were lost")
	}
}
