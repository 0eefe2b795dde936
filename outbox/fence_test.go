package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// seize takes a lane over in SQL, whatever its time, as another relay does after the lease has run
// out. In one transaction: a renewal in between would revive the lease.
func (r *rig) seize(lane int) {
	r.t.Helper()
	name := fmt.Sprint("relay/payments/", lane)
	var epoch *int64
	err := pgx.BeginFunc(context.Background(), r.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(context.Background(), `update onlyonce.leases set until = clock_timestamp() where name = $1`,
			name); err != nil {
			return err
		}
		return tx.QueryRow(
			context.Background(),
			`select onlyonce.raise_epoch(id, epoch, gen_random_uuid(), interval '1 hour') from onlyonce.leases where name = $1`,
			name,
		).Scan(&epoch)
	})
	if err != nil || epoch == nil {
		r.t.Fatalf("the lane was not taken over: %v", err)
	}
}

// lanesHeld waits until every lane of the sink payments is held.
func (r *rig) lanesHeld() {
	r.t.Helper()
	until(r.t, "the lanes are held", func() bool {
		return one[int](r, `select count(*) from onlyonce.leases where name ~ '^relay/payments/[0-9]+$' and nonce is not null`) == 16
	})
}

// seizeAll takes every lane over.
func (r *rig) seizeAll() {
	r.t.Helper()
	r.lanesHeld() // or a relay that is still taking them is faster
	for lane := range 16 {
		r.seize(lane)
	}
}

// giveBack releases lanes that seize took and that no relay has the lease of.
func (r *rig) giveBack() {
	r.t.Helper()
	r.exec(`update onlyonce.leases set until = null, nonce = null where until > clock_timestamp() + interval '30 minutes'`)
}

// The relay is paused while a call is under way, another one takes the lane over, the call returns.
// Its settlement must not be committed, neither with its chunk nor by itself if the lane went on
// without the call. This relay sends nothing more until the lane is its own again (O5).
func TestSettlementAfterTakeOverIsFenced(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		for _, outcome := range []outbox.AttemptOutcome{outbox.Delivered, outbox.Retry, outbox.Rejected} {
			t.Run(fmt.Sprintf("%v, late=%v", outcome, late), func(t *testing.T) {
				r := newRig(t)
				g := r.gate()
				sink := newScripted(func(ctx context.Context, d *outbox.Attempt) outbox.Result {
					g.pass(d)
					return outbox.Result{Outcome: outcome, Reason: "of a zombie"}
				})
				cfg := testConfig(sink)
				// These are long so that the settlement is the first to meet the fence.
				cfg.PollInterval = time.Minute
				cfg.LeaseTTL = time.Minute
				relay := r.relay(cfg)
				r.enqueue(charge("1"))
				x := r.run(relay)
				g.wait()
				if late {
					until(t, "the lane goes on without it", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
				}
				r.seize(one[int](r, `select lane from onlyonce.calls`))
				g.release()
				until(t, "the lease is lost", r.lost)
				if got := one[string](r, `select state from onlyonce.calls`); got != "pending" && got != "retrying" {
					t.Errorf("row %q: settled by a relay that was replaced", got)
				}
				if n := one[int](r, `select count(*) from onlyonce.parked where reason <> 'under-way'`); n != 0 {
					t.Error("parked by a relay that was replaced")
				}
				if len(r.as()) != 0 {
					t.Errorf("told as settled: %v", r.as())
				}
				x.stop()

				// The lane is given back, the row is due again, and goes out under the same key.
				r.giveBack()
				r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp()`)
				again := newScripted(accept)
				r.start(testConfig(again))
				r.states("delivered")
				a := sink.calls()
				b := again.calls()
				good := len(a) == 1 &&
					len(b) == 1 &&
					a[0].Key == b[0].Key &&
					string(a[0].Body) == string(b[0].Body)
				if !good {
					t.Errorf("calls %+v and %+v", a, b)
				}
			})
		}
	}
}

// The journal is fenced too: a relay that was replaced begins no call, neither of a pass nor of a
// parked row (O5).
func TestJournalAfterTakeOverIsFenced(t *testing.T) {
	t.Parallel()
	for _, parked := range []bool{false, true} {
		t.Run(fmt.Sprintf("parked=%v", parked), func(t *testing.T) {
			r := newRig(t)
			if parked {
				no := newScripted(func(context.Context, *outbox.Attempt) outbox.Result { return outbox.Failure("no", nil) })
				r.enqueue(charge("1"))
				x := r.start(testConfig(no))
				r.states("retrying")
				x.stop()
				r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() + interval '1 hour', attempts = 0`)
				r.leases = nil
			}
			sink := newScripted(accept)
			r.start(testConfig(sink))
			r.holds(16)
			r.seizeAll()
			if parked {
				r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp()`)
			} else {
				r.enqueue(charge("1"))
			}
			until(t, "the lease is lost", r.lost)
			if n := len(sink.calls()); n != 0 {
				t.Errorf("%d calls without the lease", n)
			}
			if n := one[int](r, `select coalesce(sum(attempts), 0) from onlyonce.parked`); n != 0 {
				t.Errorf("%d attempts in the journal", n)
			}
			r.giveBack()
			r.states("delivered")
		})
	}
}

// After a failover that loses a take-over the epoch repeats; the nonce does not (O5).
func TestSameEpochOtherNonce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	r.holds(16)
	r.exec(`update onlyonce.leases set nonce = gen_random_uuid(), until = clock_timestamp() + interval '1 hour'`)
	r.enqueue(charge("1"))
	until(t, "the lease is lost", r.lost)
	if n := len(sink.calls()); n != 0 {
		t.Errorf("%d calls under somebody else's nonce", n)
	}
	r.giveBack()
	r.states("delivered")
}

// namedPool is a second pool, whose connections have a name of their own.
func (r *rig) namedPool(name string) *pgxpool.Pool {
	r.t.Helper()
	cfg := r.pool.Config().Copy()
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	p, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(p.Close)
	return p
}

// A late renewal keeps the epoch, so a competitor that has read "ended" must not succeed by the
// epoch alone (T9, O5).
func TestRaiseAsksForTheEndAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`
insert into onlyonce.leases (name, epoch, nonce, until)
  values ('relay/x', 7, gen_random_uuid(), clock_timestamp() - interval '1 second')`)
	id := one[int64](r, `select id from onlyonce.leases`)
	// The late renewal.
	r.exec(`update onlyonce.leases set until = clock_timestamp() + interval '1 hour'`)
	raise := func() *int64 {
		return one[*int64](r, `select onlyonce.raise_epoch($1, 7, gen_random_uuid(), interval '1 minute')`, id)
	}
	if e := raise(); e != nil {
		t.Errorf("took over a lease that stands: epoch %d", *e)
	}
	r.exec(`update onlyonce.leases set until = clock_timestamp()`)
	if e := raise(); e == nil || *e != 8 {
		t.Error("did not take over a lease that has ended")
	}
	if e := raise(); e != nil {
		t.Error("took over under an old epoch")
	}
}

// If it cannot renew, the relay stops by its own clock, without a message from any process, and
// before the lease ends (T9, O5).
func TestStopsOnItsOwnClock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	clock := &rig{t: t, pool: r.namedPool("clock")} // the relay's own connections wait for the lock
	_ = one[int](clock, `select 1`)
	ended := make(chan time.Duration, 1)
	start := make(chan time.Time, 1)
	var calls atomic.Int64
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if calls.Add(1) > 1 {
			return outbox.Result{Outcome: outbox.Delivered}
		}
		start <- time.Now()
		<-ctx.Done()
		left := one[float64](clock, `select extract(epoch from l.until - clock_timestamp())::float8
			from onlyonce.leases l join onlyonce.lanes using (id) join onlyonce.calls c using (lane) where c.id = $1`, a.ID)
		ended <- time.Duration(left * float64(time.Second))
		if err := a.MayStart(); !errors.Is(err, outbox.ErrNotStarted) {
			t.Errorf("MayStart after the lease: %v", err)
		}
		return outbox.Failure("cut off", ctx.Err())
	})
	sink.limits.Timeout = 5 * time.Second
	cfg := testConfig(sink)
	cfg.LeaseTTL = 3 * time.Second
	r.enqueue(charge("1"))
	r.start(cfg)
	pgtest.Receive(t, patience, "the call begins", start)
	lock, err := r.pool.Begin(t.Context()) // every renewal of its lane waits for this lock, and others need their connections
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(
		t.Context(),
		`select 1 from onlyonce.leases l join onlyonce.lanes using (id) join onlyonce.calls using (lane) for update of l`,
	); err != nil {
		t.Fatal(err)
	}
	left := pgtest.Receive(t, patience, "the call is cut off", ended)
	if left <= 0 {
		t.Errorf("the call went on until %v after the lease had ended", -left)
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the loss is told", r.lost)
	r.states("delivered")
}

// Renewals keep the lease through a call that takes longer than it.
func TestRenewal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(nil)
	sink.limits.Timeout = time.Minute
	sink.send = func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		select {
		case <-time.After(14 * time.Second):
			return outbox.Result{Outcome: outbox.Delivered}
		case <-ctx.Done():
			return outbox.Failure("cut off", ctx.Err())
		}
	}
	cfg := testConfig(sink)
	cfg.LeaseTTL = 6 * time.Second // also a busy machine renews it in time
	cfg.DrainTimeout = time.Minute // the second relay may ask for the lane
	r.enqueue(charge("1"))
	r.start(cfg)
	r.start(cfg) // stands by
	r.states("delivered")
	if n := len(sink.calls()); n != 1 || r.lost() {
		t.Errorf("%d calls, lost: %v", n, r.lost())
	}
}
