package outbox_test

import (
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T5: a relay is stopped while the COMMIT that journals an attempt waits for a synchronous standby.
// If that were cancelled, the commit would be on this server alone, with the call made. A failover
// would then lose when its key window began.
func TestT5RelaysCommitOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	standby := pgtest.NewStandbyAway(t)
	r := &rig{t: t, pool: standby.Admin}
	relays := &rig{t: t, pool: pgtest.Pool(t, standby.URL+"&application_name=relay")}
	sink := newScripted(accept)
	cfg := testConfig(sink)
	cfg.LeaseTTL = 10 * time.Minute // its third bounds a COMMIT
	x := relays.start(cfg)
	r.lanesHeld()
	standby.Leave()
	r.enqueue(charge("1"))
	until(t, "the relay's COMMIT waits for the standby", func() bool { return standby.Waits("relay") })
	x.cancel()
	standby.CancelAnother()
	if !standby.Waits("relay") {
		t.Error("COMMIT no longer waits for the standby: it was cancelled, and is on this server alone")
	}
	standby.Return()
	x.stop()
}
