package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/devenv/pgtest"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/outbox"
)

// Only committed rows are sent: not before their commit, and never after a rollback.
func TestOnlyCommittedRowsAreSent(t *testing.T) {
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	open, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback(context.Background())
	if err := outbox.Enqueue(t.Context(), open, charge("rolled back")); err != nil {
		t.Fatal(err)
	}
	r.enqueue(charge("committed"))
	r.states("delivered")
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.enqueue(charge("later"))
	r.states("delivered")
	var bodies []string
	for _, d := range sink.calls() {
		bodies = append(bodies, string(d.Body))
	}
	if got := strings.Join(bodies, " "); got != `{"order":"committed"} {"order":"later"}` {
		t.Errorf("sent %s", got)
	}
}

// A transaction that took a lower id and commits after higher ones were sent: a cursor on ids would pass it over.
func TestLateCommitIsNotPassedOver(t *testing.T) {
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	long, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer long.Rollback(context.Background())
	if err := outbox.Enqueue(t.Context(), long, charge("low id")); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		r.enqueue(charge(fmt.Sprint("high id ", i)))
	}
	until(t, "the committed ones are sent", func() bool { return len(sink.calls()) == 20 })
	r.states("delivered")
	if err := long.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the late one is sent", func() bool { return len(sink.calls()) == 21 })
	if got := sink.calls()[20]; string(got.Body) != `{"order":"low id"}` {
		t.Errorf("sent %s", got.Body)
	}
	if id := one[int64](r, `select min(id) from onlyonce.calls`); id != sink.calls()[20].ID {
		t.Errorf("its id is not the lowest")
	}
	r.states("delivered")
}

// Each of many rows is called once and settled once while two relays run, one stops in the middle, and the other goes on.
func TestTwoRelaysShareNothing(t *testing.T) {
	r := newRig(t)
	var under atomic.Int64
	sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		under.Add(1)
		defer under.Add(-1)
		runtime.Gosched()
		return outbox.Result{Outcome: outbox.Delivered}
	})
	const n = 400
	var calls []outbox.Call
	for i := range n {
		calls = append(calls, charge(fmt.Sprint(i)))
	}
	a, b := r.start(testConfig(sink)), r.start(testConfig(sink))
	_ = b
	for chunk := range slices.Chunk(calls, 20) {
		r.enqueue(chunk...)
	}
	until(t, "some are sent", func() bool { return len(sink.calls()) > n/4 })
	a.stop()
	r.states("delivered")
	seen := map[string]int{}
	for _, d := range sink.calls() {
		seen[d.Key]++
	}
	if len(seen) != n || len(sink.calls()) != n {
		t.Errorf("%d calls of %d keys, want %d of each: nobody died", len(sink.calls()), len(seen), n)
	}
	until(t, "every settlement is told", func() bool { return len(r.as()) == n })
	if got := one[int](r, `select count(*) from onlyonce.calls where attempts = 1 and state = 'delivered' and settled_at is not null`); got != n {
		t.Errorf("%d rows were settled after one attempt, want %d", got, n)
	}
}

func TestConcurrencyIsBoundedForEachSink(t *testing.T) {
	r := newRig(t)
	var now, most atomic.Int64
	release := make(chan struct{})
	slow := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		<-release
		return outbox.Result{Outcome: outbox.Delivered}
	})
	quick := newScripted(accept)
	quick.name = "mail"
	cfg := testConfig(slow, quick)
	cfg.Concurrency = 3
	r.start(cfg)
	for i := range 12 {
		mail := charge(fmt.Sprint(i))
		mail.Sink = "mail"
		r.enqueue(charge(fmt.Sprint(i)), mail)
	}
	// A remote that hangs holds up its own calls only.
	until(t, "the quick sink is done", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where sink = 'mail' and state = 'delivered'`) == 12
	})
	until(t, "the slow sink is full", func() bool { return now.Load() == 3 })
	close(release)
	r.states("delivered")
	if most.Load() != 3 {
		t.Errorf("%d calls at once, want 3", most.Load())
	}
	if len(slow.calls()) != 12 {
		t.Errorf("%d calls, want 12", len(slow.calls()))
	}
}

// A call that takes longer than its row's next due time is not made a second time beside itself.
func TestRowUnderWayIsNotPickedAgain(t *testing.T) {
	r := newRig(t)
	release := make(chan struct{})
	sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		<-release
		return outbox.Result{Outcome: outbox.Delivered}
	})
	r.enqueue(charge("1"))
	r.start(testConfig(sink))
	until(t, "the call is under way", func() bool { return len(sink.calls()) == 1 })
	r.exec(`update onlyonce.calls set next_attempt_at = clock_timestamp() - interval '1 hour'`)
	r.enqueue(charge("2")) // shows that the relay has looked for rows since
	until(t, "the other call is under way", func() bool { return len(sink.calls()) == 2 })
	close(release)
	r.states("delivered")
	if n := len(sink.calls()); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

func TestWake(t *testing.T) {
	r := newRig(t)
	sink := newScripted(accept)
	cfg := testConfig(sink)
	cfg.PollInterval = time.Minute
	relay := r.relay(cfg)
	r.run(relay)
	until(t, "the lease is taken", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.leases) == 1 })
	r.enqueue(charge("1"))
	until(t, "it is delivered", func() bool {
		relay.Wake() // the first one may come before the row is there
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == 1
	})
}

// The journal is written before the call: attempt and time of the first one stand in the row while the call is under way,
// and no transaction is open.
func TestJournalBeforeTheCall(t *testing.T) {
	r := newRig(t)
	var fault atomic.Value
	sink := newScripted(nil)
	sink.send = func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		var ok bool
		err := r.pool.QueryRow(ctx, `select attempts = $2 and first_attempt_at is not null and next_attempt_at > clock_timestamp()
			from onlyonce.calls where id = $1`, d.ID, d.Attempt).Scan(&ok)
		if err != nil || !ok {
			fault.Store(fmt.Sprintf("attempt %d is not in the journal: %v", d.Attempt, err))
		}
		// The relay may be settling or deleting other rows just now; one that is open for this call would stay open.
		open := 1
		for deadline := time.Now().Add(5 * time.Second); err == nil && open > 0 && time.Now().Before(deadline); {
			err = r.pool.QueryRow(ctx, `select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'`).Scan(&open)
		}
		if err != nil || open > 0 {
			fault.Store(fmt.Sprintf("%d transactions are open during a call: %v", open, err))
		}
		if d.Attempt < 3 {
			return outbox.RetryLater("again", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	}
	cfg := testConfig(sink)
	cfg.Concurrency = 1
	r.enqueue(charge("1"))
	r.start(cfg)
	r.states("delivered")
	if f := fault.Load(); f != nil {
		t.Error(f)
	}
}

func TestWindowPassed(t *testing.T) {
	r := newRig(t)
	sink := newScripted(accept)
	r.enqueue(charge("in time"), charge("too late"), charge("never tried"))
	r.exec(`update onlyonce.calls set attempts = 3, first_attempt_at = clock_timestamp() - case convert_from(body, 'UTF8')
		when '{"order":"in time"}' then interval '23 hours' else interval '23 hours 59 minutes 30 seconds' end
		where body <> '{"order":"never tried"}'`)
	r.exec(`update onlyonce.calls set created_at = clock_timestamp() - interval '30 days'`) // the age of the row does not matter
	r.start(testConfig(sink))
	r.states("delivered", "parked")
	var sent []string
	for _, d := range sink.calls() {
		sent = append(sent, string(d.Body))
	}
	slices.Sort(sent)
	if got := strings.Join(sent, " "); got != `{"order":"in time"} {"order":"never tried"}` {
		t.Errorf("sent %s", got)
	}
	got := one[string](r, `select concat_ws(' ', p.state, p.reason, p.attempts, o.state, o.attempts) from onlyonce.parked p join onlyonce.calls o using (key)`)
	if got != "reconcile window 3 parked 3" {
		t.Errorf("parked: %s; want it to reconcile, without another attempt", got)
	}
}

// The window counts from the first attempt through all retries, and ends them.
func TestWindowEndsRetries(t *testing.T) {
	r := newRig(t)
	start := time.Now()
	var last atomic.Int64
	sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		last.Store(int64(time.Since(start)))
		return outbox.RetryLater("no", nil)
	})
	sink.limits = outbox.Limits{KeyWindow: 2 * time.Second, Timeout: time.Second}
	r.enqueue(charge("1"))
	start = time.Now()
	r.start(testConfig(sink))
	r.states("parked")
	if n := len(sink.calls()); n < 3 {
		t.Errorf("%d attempts", n)
	}
	first := one[time.Time](r, `select first_attempt_at from onlyonce.calls`)
	settled := one[time.Time](r, `select settled_at from onlyonce.calls`)
	if age := settled.Sub(first); age < 900*time.Millisecond {
		t.Errorf("given up after %v", age)
	}
}

func TestForever(t *testing.T) {
	r := newRig(t)
	sink := newScripted(accept)
	sink.limits.KeyWindow = outbox.Forever
	r.enqueue(charge("1"))
	r.exec(`update onlyonce.calls set attempts = 3, first_attempt_at = clock_timestamp() - interval '10 years'`)
	r.start(testConfig(sink))
	r.states("delivered")
}

// What a sink must not do costs its own call a retry, and nothing else.
func TestSinksThatMisbehave(t *testing.T) {
	r := newRig(t)
	sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		switch d.Attempt {
		case 1:
			panic("card 4242")
		case 2:
			runtime.Goexit()
		case 3:
			return outbox.Result{}
		case 4:
			return outbox.RetryLater("bad\x00bytes\xff and\nlines "+strings.Repeat("é", 300), errors.New("x"))
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	r.enqueue(charge("1"))
	r.start(testConfig(sink))
	r.states("delivered")
	until(t, "all is told", func() bool { return len(r.as()) == 5 })
	var reasons []string
	for _, s := range r.settled {
		reasons = append(reasons, s.Reason)
	}
	got := strings.Join(reasons[:3], "|")
	if want := "the sink panicked (string)|the sink ended its goroutine|the sink returned no outcome (0)"; got != want {
		t.Errorf("reasons %s", got)
	}
	if s := reasons[3]; !strings.HasPrefix(s, "bad bytes\uFFFD and lines é") || len(s) > 310 {
		t.Errorf("stored %q", s)
	}
}

func TestRowsOfUnknownSinksWait(t *testing.T) {
	r := newRig(t)
	sink := newScripted(accept)
	other := charge("1")
	other.Sink = "unknown"
	r.enqueue(other, charge("2"))
	x := r.start(testConfig(sink))
	until(t, "the known one is sent", func() bool { return len(sink.calls()) == 1 })
	x.stop()
	if n := one[int](r, `select count(*) from onlyonce.calls where sink = 'unknown' and state = 'pending' and attempts = 0`); n != 1 {
		t.Error("the row of the unknown sink was touched")
	}
	late := newScripted(accept)
	late.name = "unknown"
	r.start(testConfig(late))
	r.states("delivered")
}

func TestRetention(t *testing.T) {
	r := newRig(t)
	for i := range 5 {
		r.enqueue(charge(fmt.Sprint(i)))
	}
	other := charge("other sink")
	other.Sink = "unknown"
	r.enqueue(other)
	r.exec(`update onlyonce.calls set state = 'delivered', settled_at = clock_timestamp() - interval '8 days' where body in ('{"order":"0"}', '{"order":"1"}') or sink = 'unknown'`)
	r.exec(`update onlyonce.calls set state = 'delivered', settled_at = clock_timestamp() - interval '6 days' where body = '{"order":"2"}'`)
	r.exec(`update onlyonce.calls set state = 'parked', settled_at = clock_timestamp() - interval '80 days' where body = '{"order":"3"}'`)
	r.exec(`update onlyonce.calls set created_at = clock_timestamp() - interval '80 days' where body = '{"order":"4"}'`)
	hold := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result { return outbox.RetryLater("no", nil) })
	r.start(testConfig(hold))
	until(t, "old rows are gone", func() bool { return one[int](r, `select count(*) from onlyonce.calls`) == 4 })
	if got := one[string](r, `select string_agg(convert_from(body, 'UTF8') || state, ' ' order by id) from onlyonce.calls`); got !=
		`{"order":"2"}delivered {"order":"3"}parked {"order":"4"}pending {"order":"other sink"}delivered` {
		t.Errorf("left: %s", got)
	}
	// A call whose row is gone is new again; one whose row is there is not sent again.
	r.enqueue(charge("0"), charge("2"))
	if n := one[int](r, `select count(*) from onlyonce.calls`); n != 5 {
		t.Errorf("%d rows, want 5", n)
	}
}

func TestGracefulStop(t *testing.T) {
	r := newRig(t)
	begun, release := make(chan struct{}, 1), make(chan struct{})
	sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		begun <- struct{}{}
		<-release
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg := testConfig(sink)
	cfg.Concurrency = 1
	r.enqueue(charge("1"), charge("2"))
	x := r.start(cfg)
	<-begun
	x.cancel()
	select {
	case err := <-x.ended:
		t.Fatalf("Run returned while a call was under way: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	x.stop()
	if got := one[string](r, `select string_agg(state || attempts, ' ' order by id) from onlyonce.calls`); got != "delivered1 pending0" {
		t.Errorf("rows %s; want the call in hand settled and no other picked", got)
	}
	if free := one[bool](r, `select nonce is null and until is null from onlyonce.leases where name = 'relay/payments'`); !free {
		t.Error("the lease was not released")
	}
}

// Calls that take longer than the drain are cut off, and settled as calls to be made again.
func TestDrainTimeout(t *testing.T) {
	r := newRig(t)
	sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		<-ctx.Done()
		return outbox.RetryLater("cut off", ctx.Err())
	})
	cfg := testConfig(sink)
	cfg.DrainTimeout = 20 * time.Millisecond
	r.enqueue(charge("1"))
	x := r.start(cfg)
	until(t, "the call is under way", func() bool { return len(sink.calls()) == 1 })
	x.stop()
	if got := one[string](r, `select state || attempts || last_error from onlyonce.calls`); got != "pending1cut off" {
		t.Errorf("row %s", got)
	}
}

func TestSinkThatDoesNotReturn(t *testing.T) {
	r := newRig(t)
	release := make(chan struct{})
	defer close(release)
	sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		<-release
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
	if err := <-ended; !errors.Is(err, outbox.ErrStuck) || !strings.Contains(err.Error(), "payments") {
		t.Errorf("%v, want ErrStuck that names the sink", err)
	}
}

func TestRunRefuses(t *testing.T) {
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
	until(t, "it runs", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.leases) == 1 })
	if err := relay.Run(t.Context()); !errors.Is(err, outbox.ErrRunning) {
		t.Errorf("a second Run: %v", err)
	}
}

// A fault that waiting does not heal ends Run, with every sink stopped in order.
func TestMissingRightsEndRun(t *testing.T) {
	r := newRig(t)
	other := newScripted(accept)
	other.name = "mail"
	relay := r.relay(testConfig(newScripted(accept), other))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(context.Background()) }()
	until(t, "both leases are taken", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.leases) == 2 })
	r.exec(`alter table onlyonce.parked rename to gone`)
	r.exec(`alter table onlyonce.calls rename to gone2`)
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

func TestConfigFaultsAllAtOnce(t *testing.T) {
	bad := newScripted(accept)
	bad.limits = outbox.Limits{}
	short := newScripted(accept)
	short.name, short.limits = "short", outbox.Limits{KeyWindow: time.Second, Timeout: time.Second}
	nameless := newScripted(accept)
	nameless.name = ""
	_, err := outbox.NewRelay(nil, outbox.RelayConfig{
		Sinks: []outbox.Sink{bad, bad, nil, short, nameless}, Concurrency: -1, PollInterval: time.Hour, LeaseTTL: time.Millisecond,
		RetryMin: time.Hour, RetryMax: time.Minute, Retention: time.Second, DrainTimeout: -1,
	})
	if !errors.Is(err, outbox.ErrConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{"pool: must not be nil", "Concurrency: -1", "PollInterval: 1h0m0s", "LeaseTTL: 1ms", "RetryMax: 1m0s is less", "Retention: 1s",
		"DrainTimeout: -1ns", "Sinks[0]: payments: Limits.Timeout", `Sinks[1]: a second sink named "payments"`, "Sinks[2]: must not be nil",
		"Sinks[3]: short: Limits.KeyWindow, 1s, leaves no time", "Sinks[4]: its name"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing says %q in:\n%v", want, err)
		}
	}
	if _, err := outbox.NewRelay(nil, outbox.RelayConfig{}); !strings.Contains(err.Error(), "Sinks: must not be empty") {
		t.Error(err)
	}
}

func TestRetrySchedule(t *testing.T) {
	r := newRig(t)
	cfg := testConfig(newScripted(accept))
	cfg.RetryMin, cfg.RetryMax = time.Second, 10*time.Minute
	relay := r.relay(cfg)
	for attempt, centre := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 11: 10 * time.Minute, 1 << 30: 10 * time.Minute} {
		for range 50 {
			if d := relay.RetryDelay(attempt, 0); d < centre/2 || d > centre*3/2 {
				t.Errorf("attempt %d: %v, want about %v", attempt, d, centre)
			}
		}
	}
	if d := relay.RetryDelay(1, time.Minute); d != time.Minute {
		t.Errorf("asked for a minute: %v", d)
	}
	if d := relay.RetryDelay(1, 48*time.Hour); d != time.Hour {
		t.Errorf("asked for two days: %v", d)
	}
}
