package outbox_test

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A relay is ready while it takes part in its sinks, and healthy unless its transactions keep
// failing.
func TestReadyAndHealthy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	relay, err := outbox.NewRelay(r.pool, testConfig(newScripted(accept)))
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Ready(); err == nil || !strings.Contains(err.Error(), "Run has not begun") {
		t.Errorf("before Run: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(t.Context()) }()
	until(t, "it is ready", func() bool { return relay.Ready() == nil })
	if err := relay.Healthy(); err != nil {
		t.Error(err)
	}
	r.exec(`alter table onlyonce.leases rename to moved`)
	if err := pgtest.Receive(t, patience, "Run ends, which needs the table", ended); err == nil {
		t.Error("Run returned nil without its table")
	}
	if relay.Ready() == nil {
		t.Error("ready after Run has ended")
	}
	r.exec(`alter table onlyonce.moved rename to leases`)
}
