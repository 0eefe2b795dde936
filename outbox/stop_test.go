package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestGracefulStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(g.accept)
	cfg := testConfig(sink)
	cfg.Concurrency = 1
	r.enqueue(charge("1"), charge("2"))
	x := r.start(cfg)
	g.wait()
	x.cancel()
	pgtest.Until(t, patience, "the release of the lanes that have no call under way", func() bool {
		return one[int](r, `select count(*) from onlyonce.leases where nonce is null and name like 'relay/%'`) == 15
	})
	select {
	case err := <-x.ended:
		t.Fatalf("Run returned while a call was under way: %v", err)
	default:
	}
	g.release()
	x.stop()
	if got := one[string](r, `select string_agg(state, ' ' order by state) from onlyonce.calls`); got != "delivered pending" ||
		len(sink.calls()) != 1 {
		t.Errorf("rows %s; want the call in hand settled and no other picked", got)
	}
	if n := one[int](r, `select count(*) from onlyonce.leases where nonce is null and until is null and name like 'relay/%'`); n != 16 {
		t.Errorf("%d lanes were released, want 16", n)
	}
	if n := one[int](r, `select count(*) from onlyonce.leases where nonce is not null`); n != 0 {
		t.Errorf("%d leases are held: the relay has not said goodbye", n)
	}
}

// A relay that is stopped ends when its last call is settled: it waits neither for the end of the
// drain nor for that of a lease. All calls are in one lane, so the release of the others shows that
// the stop has reached the relay (O5).
func TestStopWaitsForItsCallsOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(g.accept)
	cfg := testConfig(sink)
	// Both longer than the test waits.
	cfg.Concurrency = 2
	cfg.DrainTimeout = 10 * time.Minute
	cfg.LeaseTTL = 10 * time.Minute
	first := charge("1")
	calls := []outbox.Call{first}
	for range 5 {
		c := charge("")
		c.ID = r.sameLane(first, fmt.Sprint("more-", len(calls)))
		calls = append(calls, c)
	}
	r.enqueue(calls...)
	x := r.start(cfg)
	g.wait()
	g.wait()
	x.cancel()
	const held = `select count(*) from onlyonce.leases where nonce is not null and name like 'relay/%'`
	until(t, "the other lanes are released", func() bool { return one[int](r, held) == 1 })
	g.release()
	x.stop()
	if n := one[int](r, held); n != 0 {
		t.Errorf("%d lanes are held", n)
	}
	if got := one[string](
		r,
		`select string_agg(state, ' ' order by state) from onlyonce.calls`,
	); got != "delivered delivered pending pending pending pending" {
		t.Errorf("rows %s", got)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := 0
	released := 0
	for _, l := range r.leases {
		switch {
		case l.Held:
			taken++
		case l.Err == nil:
			released++
		}
	}
	if taken == 0 || released != taken {
		t.Errorf("%d lanes are reported as taken, and %d as released", taken, released)
	}
}

// Calls that take longer than the drain are cut off, and settled as calls to be made again.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		<-ctx.Done()
		return outbox.Failure("cut off", ctx.Err())
	})
	cfg := testConfig(sink)
	cfg.DrainTimeout = 20 * time.Millisecond
	r.enqueue(charge("1"))
	x := r.start(cfg)
	until(t, "the call is under way", func() bool { return len(sink.calls()) == 1 })
	x.stop()
	if got := one[string](r, `select state || attempts || error from onlyonce.parked`); got != "retrying1cut off" {
		t.Errorf("row %s", got)
	}
}

func TestSinkThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	t.Cleanup(g.release)
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		g.pass(a)
		return outbox.Result{}
	})
	cfg := testConfig(sink)
	cfg.DrainTimeout = time.Millisecond
	relay := r.relay(cfg)
	relay.SetJoinGrace(10 * time.Millisecond)
	r.enqueue(charge("1"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	until(t, "the call is under way", func() bool { return len(sink.calls()) == 1 })
	cancel()
	if err := pgtest.Receive(t, patience, "Run ends", ended); err == nil ||
		!strings.Contains(err.Error(), "in the sink") ||
		!strings.Contains(err.Error(), "payments") {
		t.Errorf("%v, want an error that names the sink, and says that it has the call", err)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	empty := pgtest.Empty(t)
	relay, err := outbox.NewRelay(empty, testConfig(newScripted(accept)))
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Run(t.Context()); !errors.Is(err, migrations.ErrSchema) {
		t.Errorf("without a schema: %v", err)
	}

	r := newRig(t)
	relay = r.relay(testConfig(newScripted(accept)))
	r.run(relay)
	r.holds(16)
	if err := relay.Run(t.Context()); err == nil {
		t.Errorf("a second Run: %v", err)
	}
}

// A fault that waiting does not heal ends Run, with every sink stopped in order.
func TestMissingRightsEndRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := newScripted(accept)
	other.name = "mail"
	relay := r.relay(testConfig(newScripted(accept), other))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(context.Background()) }()
	r.holds(32)
	r.exec(`alter table onlyonce.batches rename to gone`)
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "42P01") {
			t.Errorf("%v, want SQLSTATE 42P01", err)
		}
	case <-time.After(patience):
		t.Fatal("Run goes on")
	}
	if n := one[int](r, `select count(*) from onlyonce.leases where nonce is not null`); n != 0 {
		t.Errorf("%d leases are still held", n)
	}
}
