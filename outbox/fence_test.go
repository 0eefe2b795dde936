package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// seize takes the lease over in SQL, whatever its time, as another relay does whose database clock is past it.
func (r *rig) seize() {
	r.t.Helper()
	r.exec(`update onlyonce.leases set until = clock_timestamp() where name = 'relay/payments'`)
	if e := one[*int64](r, `select onlyonce.raise_epoch(id, epoch, gen_random_uuid(), interval '1 hour') from onlyonce.leases where name = 'relay/payments'`); e == nil {
		r.t.Fatal("the lease was not taken over")
	}
}

func (r *rig) giveBack() {
	r.exec(`update onlyonce.leases set until = null, nonce = null where name = 'relay/payments'`)
}

// The relay is paused while a call is under way, another one takes over, the call returns: its settlement must not go
// through, and nothing more is sent until the lease is this relay's again.
func TestSettlementAfterTakeOverIsFenced(t *testing.T) {
	for _, outcome := range []outbox.Outcome{outbox.Delivered, outbox.Retry, outbox.Rejected} {
		t.Run(outcome.String(), func(t *testing.T) {
			r := newRig(t)
			begun, release := make(chan struct{}, 10), make(chan struct{})
			sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
				begun <- struct{}{}
				<-release
				if d.Attempt > 1 {
					return outbox.Result{Outcome: outbox.Delivered}
				}
				return outbox.Result{Outcome: outcome, Reason: "of a zombie"}
			})
			cfg := testConfig(sink)
			cfg.PollInterval = time.Minute // so that the settlement is the first to meet the fence
			relay := r.relay(cfg)
			r.enqueue(charge("1"))
			x := r.run(relay)
			<-begun
			r.seize()
			close(release)
			until(t, "the lease is lost", r.lost)
			if got := one[string](r, `select state || attempts || last_error from onlyonce.calls`); got != "pending1" {
				t.Errorf("row %q: settled by a relay that was replaced", got)
			}
			if n := one[int](r, `select count(*) from onlyonce.parked`); n != 0 {
				t.Error("parked by a relay that was replaced")
			}
			if len(r.as()) != 0 {
				t.Errorf("told as settled: %v", r.as())
			}
			x.stop()

			// The lease is given back, the row is due again, and goes out under the same key.
			r.giveBack()
			r.exec(`update onlyonce.calls set next_attempt_at = clock_timestamp()`)
			r.start(testConfig(sink))
			r.states("delivered")
			if c := sink.calls(); len(c) != 2 || c[0].Key != c[1].Key || string(c[0].Body) != string(c[1].Body) {
				t.Errorf("calls %+v", c)
			}
		})
	}
}

// The journal is fenced too: a relay that was replaced begins no call.
func TestJournalAfterTakeOverIsFenced(t *testing.T) {
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	until(t, "the lease is taken", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.leases) == 1 })
	r.seize()
	r.enqueue(charge("1"))
	until(t, "the lease is lost", r.lost)
	if n := len(sink.calls()); n != 0 {
		t.Errorf("%d calls without the lease", n)
	}
	if n := one[int](r, `select attempts from onlyonce.calls`); n != 0 {
		t.Errorf("%d attempts in the journal", n)
	}
	r.giveBack()
	r.states("delivered")
}

// After a failover that loses a take-over the epoch repeats; the nonce does not.
func TestSameEpochOtherNonce(t *testing.T) {
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	until(t, "the lease is taken", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.leases) == 1 })
	r.exec(`update onlyonce.leases set nonce = gen_random_uuid(), until = clock_timestamp() + interval '1 hour'`)
	r.enqueue(charge("1"))
	until(t, "the lease is lost", r.lost)
	if n := len(sink.calls()); n != 0 {
		t.Errorf("%d calls under somebody else's nonce", n)
	}
	r.giveBack()
	r.states("delivered")
}

// namedPool is a second pool, whose connections can be told from the test's own.
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

// A late renewal keeps the epoch, so a competitor that has read "ended" must not get through on the epoch alone.
func TestRaiseAsksForTheEndAgain(t *testing.T) {
	r := newRig(t)
	r.exec(`insert into onlyonce.leases (name, epoch, nonce, until) values ('relay/x', 7, gen_random_uuid(), clock_timestamp() - interval '1 second')`)
	id := one[int64](r, `select id from onlyonce.leases`)
	r.exec(`update onlyonce.leases set until = clock_timestamp() + interval '1 hour'`) // the late renewal
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

// The relay stops by its own clock when it cannot renew, without anybody telling it, and before the lease ends.
func TestStopsOnItsOwnClock(t *testing.T) {
	r := newRig(t)
	ended := make(chan time.Duration, 1)
	start := make(chan time.Time, 1)
	sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		if d.Attempt > 1 {
			return outbox.Result{Outcome: outbox.Delivered}
		}
		start <- time.Now()
		<-ctx.Done()
		left := one[float64](r, `select extract(epoch from until - clock_timestamp())::float8 from onlyonce.leases where name = 'relay/payments'`)
		ended <- time.Duration(left * float64(time.Second))
		if err := d.MayStart(); !errors.Is(err, outbox.ErrLease) {
			t.Errorf("MayStart after the lease: %v", err)
		}
		return outbox.RetryLater("cut off", ctx.Err())
	})
	cfg := testConfig(sink)
	cfg.LeaseTTL = time.Second
	r.enqueue(charge("1"))
	r.start(cfg)
	<-start
	lock, err := r.pool.Begin(t.Context()) // every renewal waits for this lock
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), `select 1 from onlyonce.leases where name = 'relay/payments' for update`); err != nil {
		t.Fatal(err)
	}
	left := <-ended
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
	r := newRig(t)
	sink := newScripted(nil)
	sink.send = func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		select {
		case <-time.After(2500 * time.Millisecond):
			return outbox.Result{Outcome: outbox.Delivered}
		case <-ctx.Done():
			return outbox.RetryLater("cut off", ctx.Err())
		}
	}
	cfg := testConfig(sink)
	cfg.LeaseTTL = time.Second
	r.enqueue(charge("1"))
	r.start(cfg)
	r.start(cfg) // stands by
	r.states("delivered")
	if n := len(sink.calls()); n != 1 || r.lost() {
		t.Errorf("%d calls, lost: %v", n, r.lost())
	}
}

// Every connection of the relay is cut while a call is under way: what it returned is settled over a new one, and the
// call is not made again.
func TestConnectionsCut(t *testing.T) {
	r := newRig(t)
	begun, release := make(chan struct{}, 10), make(chan struct{})
	sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
		begun <- struct{}{}
		<-release
		return outbox.Result{Outcome: outbox.Delivered}
	})
	admin := r.pool
	r.pool = r.namedPool("relay")
	x := r.start(testConfig(sink))
	r.pool = admin
	r.enqueue(charge("1"))
	<-begun
	if n := one[int](r, `select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = 'relay'`); n == 0 {
		t.Fatal("there was no connection to cut")
	}
	close(release)
	r.states("delivered")
	x.stop()
	if n := len(sink.calls()); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

// Two relays, one row after the other, connections cut all the time: every row ends delivered, each under one key with
// one body.
func TestManyCuts(t *testing.T) {
	r := newRig(t)
	m := newRemote(t)
	cfg := testConfig(m.sink())
	cfg.LeaseTTL = time.Second
	admin := r.pool
	var relays []*running
	for _, name := range []string{"relay-a", "relay-b"} {
		r.pool = r.namedPool(name)
		relays = append(relays, r.start(cfg))
		r.pool = admin
		// Run ends if it cannot check the schema when it starts, so the cuts begin later.
		until(t, name+" has begun", func() bool {
			return one[bool](r, `select exists (select from pg_stat_activity where datname = current_database() and application_name = $1 and query like '%onlyonce.leases%')`, name)
		})
	}
	const n = 300
	var cuts sync.WaitGroup
	stop := make(chan struct{})
	cuts.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = admin.Exec(context.Background(), `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name like 'relay-%'`)
			case <-stop:
				return
			}
		}
	})
	for i := range n {
		r.enqueue(charge(fmt.Sprint(i)))
	}
	until(t, "most are delivered", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) > n/2
	})
	close(stop)
	cuts.Wait()
	r.states("delivered")
	for _, x := range relays {
		x.stop()
	}
	body := map[string]string{}
	for _, c := range m.calls() {
		if other, again := body[c.key]; again && other != c.body {
			t.Errorf("key %s with two bodies", c.key)
		}
		body[c.key] = c.body
	}
	if len(body) != n {
		t.Errorf("%d keys, want %d", len(body), n)
	}
	t.Logf("%d calls for %d rows", len(m.calls()), n)
}

// Names of the child process's environment.
const (
	childDB  = "ONLYONCE_TEST_CHILD_DB"
	childURL = "ONLYONCE_TEST_CHILD_URL"
)

// child is a relay in a process of its own, to be killed.
func child(db, url string) error {
	pool, err := pgxpool.New(context.Background(), db)
	if err != nil {
		return err
	}
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: url, KeyWindow: 24 * time.Hour, AllowPrivate: true})
	if err != nil {
		return err
	}
	cfg := testConfig(sink)
	cfg.LeaseTTL = time.Second
	relay, err := outbox.NewRelay(pool, cfg)
	if err != nil {
		return err
	}
	return relay.Run(context.Background())
}

// child starts a relay in a process of its own; kill ends it with SIGKILL.
func (r *rig) child(m *remote) (kill func()) {
	r.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDB+"="+r.pool.Config().ConnString(), childURL+"="+m.server.URL+"/v1")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// The process dies after the remote has accepted the call and before that is settled: another relay sends the call again,
// under the same key and with the same bytes.
func TestKilledBetweenJournalAndSettlement(t *testing.T) {
	r := newRig(t)
	begun := make(chan struct{})
	m := newRemote(t, func(w http.ResponseWriter, req *http.Request) {
		close(begun)
		<-req.Context().Done() // the process is gone
	})
	r.enqueue(charge("1"))
	kill := r.child(m)
	<-begun
	kill()
	if got := one[string](r, `select state || attempts from onlyonce.calls`); got != "pending1" {
		t.Fatalf("row %s", got)
	}
	r.start(testConfig(m.sink()))
	r.states("delivered")
	m.same(2)
	if n := one[int](r, `select attempts from onlyonce.calls`); n != 2 {
		t.Errorf("%d attempts", n)
	}
}

// Relay processes are killed while producers commit and roll back and the remote fails in every way it can: each committed
// row ends delivered, was called under its own key only and with its own bytes, and nothing else was called.
func TestKills(t *testing.T) {
	r := newRig(t)
	script := make([]http.HandlerFunc, 4000)
	ways := []http.HandlerFunc{status(200), dropped, status(200), status(500), truncated, status(200), status(429)}
	for i := range script {
		script[i] = ways[i%len(ways)]
	}
	m := newRemote(t, script...)
	kill := r.child(m)
	var produced []string
	for round := range 4 {
		for i := range 40 {
			id := fmt.Sprintf("%d-%d", round, i)
			tx, err := r.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := outbox.Enqueue(t.Context(), tx, charge(id)); err != nil {
				t.Fatal(err)
			}
			if i%4 == 3 {
				err = tx.Rollback(t.Context())
			} else {
				produced = append(produced, string(charge(id).Body))
				err = tx.Commit(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		before := len(m.calls())
		until(t, "the relay of this round calls", func() bool { return len(m.calls()) > before+10 })
		kill()
		if round < 3 {
			kill = r.child(m)
		}
	}
	r.start(testConfig(m.sink()))
	r.states("delivered")
	slices.Sort(produced)
	rows := map[string]string{}
	for _, pair := range one[[]string](r, `select array_agg(key::text || convert_from(body, 'UTF8')) from onlyonce.calls`) {
		rows[pair[:36]] = pair[36:]
	}
	if got := slices.Sorted(maps.Values(rows)); !slices.Equal(got, produced) {
		t.Errorf("%d rows, %d produced", len(got), len(produced))
	}
	called := map[string]bool{}
	for _, c := range m.calls() {
		called[c.key] = true
		if rows[c.key] != c.body {
			t.Errorf("called %s with %s, its row has %q", c.key, c.body, rows[c.key])
		}
	}
	if len(called) != len(rows) {
		t.Errorf("%d keys were called, want %d", len(called), len(rows))
	}
	t.Logf("%d calls for %d rows", len(m.calls()), len(rows))
}
