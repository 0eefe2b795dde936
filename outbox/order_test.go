package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// keyed is a call with an ordering key, whose body names it.
func keyed(key string, n int) outbox.Call {
	c := charge(fmt.Sprint(key, n))
	c.OrderingKey = key
	return c
}

// neighbours are n ordering keys of one lane.
func (r *rig) neighbours(n int) (keys []string) {
	r.t.Helper()
	lanes := map[int][]string{}
	for i := 0; ; i++ {
		key := fmt.Sprintf("k%d-", i)
		c := keyed(key, 0)
		tx, err := r.pool.Begin(context.Background())
		if err != nil {
			r.t.Fatal(err)
		}
		var lane int
		err = outbox.Enqueue(context.Background(), tx, c)
		if err == nil {
			err = tx.QueryRow(context.Background(), `select lane from onlyonce.outbox_log order by id desc limit 1`).Scan(&lane)
		}
		if err != nil {
			r.t.Fatal(err)
		}
		_ = tx.Rollback(context.Background())
		if lanes[lane] = append(lanes[lane], key); len(lanes[lane]) == n {
			return lanes[lane]
		}
	}
}

// ofKey are the bodies sent that name the key, in order.
func ofKey(sink *scripted, key string) string {
	var all []string
	for _, b := range strings.Fields(sink.bodies()) {
		if n, ok := strings.CutPrefix(b, key); ok {
			all = append(all, n)
		}
	}
	return strings.Join(all, " ")
}

// O4: calls of one key are made one after another in the order of their commits, through retries of
// each. No two of a key are under way at once, and none is made before the previous one was
// delivered.
func TestO4OrderThroughRetries(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	under := map[string]int{}
	tries := map[string]int{}
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		key, _, _ := strings.Cut(strings.TrimPrefix(string(a.Body), `{"order":"`), "-")
		mu.Lock()
		if under[key]++; under[key] > 1 {
			t.Errorf("two calls of %s at once", key)
		}
		tries[a.Key]++
		again := tries[a.Key] <= int(a.ID)%3
		mu.Unlock()
		_ = one[int](r, `select 1`)
		mu.Lock()
		under[key]--
		mu.Unlock()
		if again {
			return outbox.Failure("again", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	r.start(testConfig(sink))
	const n = 12
	keys := []string{"a-", "b-", "c-", "d-"}
	for i := range n {
		for _, key := range keys {
			r.enqueue(keyed(key, i))
		}
	}
	r.states("delivered")
	for _, key := range keys {
		sent := slices.Compact(strings.Fields(ofKey(sink, key)))
		var want []string
		for i := range n {
			want = append(want, fmt.Sprint(i))
		}
		if !slices.Equal(sent, want) {
			t.Errorf("%s: sent %v", key, sent)
		}
	}
}

// O4: a call that fails holds up its own key, in the lane and in later passes of it, and no other.
func TestO4FailingHeadHoldsUpItsKeyOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keys := r.neighbours(2)
	healthy := make(chan struct{})
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if strings.Contains(string(a.Body), keys[0]+"0") {
			select {
			case <-healthy:
			default:
				return outbox.Failure("down", nil)
			}
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	r.enqueue(keyed(keys[0], 0), keyed(keys[0], 1), keyed(keys[1], 0), keyed(keys[1], 1))
	cfg := testConfig(sink)
	cfg.Backoff = dedupe.Backoff{Min: time.Hour, Max: time.Hour} // or the lane would know the key by its call under way
	r.start(cfg)
	until(t, "the other key is sent", func() bool { return ofKey(sink, keys[1]) == "0 1" })
	until(t, "the call that fails is parked", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state in ('retrying', 'blocked')`) == 2
	})
	r.enqueue(keyed(keys[0], 2), keyed(keys[1], 2)) // another pass
	until(t, "the other key is sent", func() bool { return ofKey(sink, keys[1]) == "0 1 2" })
	until(t, "the key waits", func() bool { return one[int](r, `select count(*) from onlyonce.calls where state = 'blocked'`) == 2 })
	if got := strings.Trim(ofKey(sink, keys[0]), "0 "); got != "" {
		t.Errorf("sent %s behind a call that fails", got)
	}
	close(healthy)
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() where state = 'retrying'`)
	r.states("delivered")
	if got := strings.TrimLeft(ofKey(sink, keys[0]), "0 "); got != "1 2" {
		t.Errorf("sent %s", got)
	}
}

// O4: a call that is given up blocks its key until an operator resolves it. With PassOn the key
// goes on at once.
func TestO4DeadHead(t *testing.T) {
	t.Parallel()
	for _, passOn := range []bool{false, true} {
		t.Run(fmt.Sprintf("PassOn=%v", passOn), func(t *testing.T) {
			r := newRig(t)
			keys := r.neighbours(2)
			sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
				switch b := string(a.Body); {
				case strings.Contains(b, keys[0]+"0"):
					return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
				case strings.Contains(b, keys[0]+"2") && a.Number == 1: // rejected when it is tried again
					return outbox.Failure("again", nil)
				case strings.Contains(b, keys[0]+"2"):
					return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
				}
				return outbox.Result{Outcome: outbox.Delivered}
			})
			cfg := testConfig(sink)
			cfg.PassOn = passOn
			r.enqueue(keyed(keys[0], 0), keyed(keys[0], 1), keyed(keys[0], 2), keyed(keys[0], 3), keyed(keys[1], 0))
			r.start(cfg)
			if passOn {
				r.states("delivered", "waiting")
				if got := ofKey(sink, keys[0]); got != "0 1 2 2 3" {
					t.Errorf("sent %s", got)
				}
				if n := one[int](r, `select count(*) from onlyonce.calls where state = 'waiting'`); n != 2 {
					t.Errorf("%d wait for an operator, want 2", n)
				}
				return
			}
			resolve := func() {
				r.exec(`update onlyonce.parked set state = 'resolved', settled_at = clock_timestamp() where state = 'waiting'`)
				r.exec(`select onlyonce.promote(k) from (select distinct order_key as k from onlyonce.parked) p`)
			}
			r.states("delivered", "waiting", "blocked")
			r.enqueue(keyed(keys[1], 1), keyed(keys[0], 4))
			until(t, "the other key goes on, and the new call waits", func() bool {
				return ofKey(sink, keys[1]) == "0 1" && one[int](r, `select count(*) from onlyonce.calls where state = 'blocked'`) == 4
			})
			if got := ofKey(sink, keys[0]); got != "0" {
				t.Errorf("sent %s before the head was resolved", got)
			}
			resolve()
			until(t, "the next one is given up", func() bool { return ofKey(sink, keys[0]) == "0 1 2 2" })
			r.states("delivered", "waiting", "blocked")
			resolve()
			r.states("delivered")
			if got := ofKey(sink, keys[0]); got != "0 1 2 2 3 4" {
				t.Errorf("sent %s", got)
			}
		})
	}
}

// O4: a slow call does not hold up its lane, only its key; it is settled when it returns, and made
// once.
func TestO4SlowCallDoesNotHoldUpItsLane(t *testing.T) {
	t.Parallel()
	for _, outcome := range []outbox.AttemptOutcome{outbox.Delivered, outbox.Rejected} {
		t.Run(outcome.String(), func(t *testing.T) {
			r := newRig(t)
			keys := r.neighbours(2)
			g := r.gate()
			sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
				if strings.Contains(string(a.Body), keys[0]+"0") {
					g.pass(a)
					return outbox.Result{Outcome: outcome, Reason: "late"}
				}
				return outbox.Result{Outcome: outbox.Delivered}
			})
			cfg := testConfig(sink)
			cfg.PassOn = true
			r.enqueue(keyed(keys[0], 0), keyed(keys[0], 1), keyed(keys[1], 0))
			r.start(cfg)
			g.wait()
			until(t, "its chunk is done", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 2 })
			r.enqueue(keyed(keys[1], 1), keyed(keys[0], 2))
			until(t, "the lane goes on", func() bool { return ofKey(sink, keys[1]) == "0 1" })
			until(t, "the key waits", func() bool {
				return one[int](r, `select count(*) from onlyonce.calls where state = 'blocked'`) == 2
			})
			if n := one[int](r, `select attempts from onlyonce.parked where first_attempt_at is not null`); n != 1 {
				t.Errorf("%d attempts at the call under way", n)
			}
			g.release()
			r.states("delivered", "waiting")
			if got := ofKey(sink, keys[0]); got != "0 1 2" {
				t.Errorf("sent %s", got)
			}
			if got := one[string](
				r,
				`select state from onlyonce.calls order by id limit 1`,
			); (got == "delivered") != (outcome == outbox.Delivered) {
				t.Errorf("the slow call is %s", got)
			}
		})
	}
}

// slowSealer opens bodies when the test lets it.
type slowSealer struct{ g *gate }

func (s slowSealer) Seal(_ [16]byte, body []byte) ([]byte, error) { return body, nil }
func (s slowSealer) Open(_ [16]byte, body []byte) ([]byte, error) { s.g.pass(nil); return body, nil }

// O6: a chunk that goes on without a call whose body is still being opened journals its attempt,
// because it may be made at any moment.
func TestO6AttemptThatIsAboutToBeMadeIsJournaled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(accept)
	cfg := testConfig(sink)
	cfg.Sealer = slowSealer{g}
	c := charge("1")
	c.Sealer = cfg.Sealer
	r.enqueue(c)
	r.start(cfg)
	g.wait()
	until(t, "its chunk is done", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
	if got := one[string](r, `select attempts || ' ' || (first_attempt_at is not null) from onlyonce.parked`); got != "1 true" {
		t.Errorf("attempts, and whether a first one is known: %s", got)
	}
	g.release()
	r.states("delivered")
}

// O4: two transactions of handlers that enqueue the same ordering keys in opposite orders take
// their locks in one order, at their ends.
func TestO4HandlersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var all sync.WaitGroup
	for who, keys := range [][]string{{"a", "b", "c", "d"}, {"d", "c", "b", "a"}} {
		all.Go(func() {
			for round := range 50 {
				err := pgx.BeginFunc(context.Background(), r.pool, func(inner pgx.Tx) error {
					origin := origin.Origin{Scope: "stock", ID: fmt.Sprint(who, "-", round)}
					tx := &handlerTx{Tx: inner, origin: &origin, marks: map[[16]byte]bool{}}
					for _, key := range keys {
						if err := outbox.Enqueue(context.Background(), tx, outbox.Call{
							Sink:        "payments",
							Name:        "n",
							ID:          key,
							OrderingKey: key,
						}); err != nil {
							return err
						}
						// Time for the other one.
						if _, err := tx.Exec(context.Background(), `select 1`); err != nil {
							return err
						}
					}
					return tx.end(context.Background())
				})
				if err != nil {
					t.Errorf("transaction %d of handler %d: %v", round, who, err)
				}
			}
		})
	}
	all.Wait()
	if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != 400 {
		t.Errorf("%d rows, want 400", n)
	}
	// Within a key ids rise in the order of commits: a later commit never has a lower id.
	if n := one[int](
		r,
		`
select count(*)
  from onlyonce.outbox_log a
  join onlyonce.outbox_log b using (order_key) where a.id < b.id and a.created_at > b.created_at`,
	); n != 0 {
		t.Errorf("%d pairs of a key out of order", n)
	}
}

// O4: the key's lock is taken before the id is drawn: a transaction that comes second waits, and
// has the higher id.
func TestO4LockComesBeforeTheId(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Rollback(context.Background())
	if err := outbox.Enqueue(t.Context(), first, keyed("k", 1)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- pgx.BeginFunc(context.Background(), r.pool, func(tx pgx.Tx) error {
			return outbox.Enqueue(context.Background(), tx, keyed("k", 2))
		})
	}()
	until(t, "the second waits for the key's lock", func() bool {
		return one[int](r, `select count(*) from pg_locks where locktype = 'advisory' and not granted`) == 1
	})
	if err := outbox.Enqueue(t.Context(), first, keyed("k", 3)); err != nil {
		t.Fatal(err)
	}
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Receive(t, patience, "Run ends", ended); err != nil {
		t.Fatal(err)
	}
	if got := one[string](
		r,
		`select string_agg(convert_from(body, 'UTF8'), ' ' order by id) from onlyonce.outbox_log`,
	); got != `{"order":"k1"} {"order":"k3"} {"order":"k2"}` {
		t.Errorf("order %s", got)
	}
}

// O4: a call whose time has not come, and that is blocked by an earlier one of its ordering key, is
// not made before its time when that one is settled.
func TestO4BlockedCallKeepsItsTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		if strings.Contains(string(a.Body), "account-0") {
			return outbox.Failure("the card has expired", outbox.Permanent(errors.New("status 402")))
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	later := keyed("account-", 1)
	later.NotBefore = time.Now().Add(3 * 24 * time.Hour) // by more than a due time may be ahead
	r.enqueue(keyed("account-", 0))
	r.start(testConfig(sink))
	until(t, "the first call waits for an operator", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where state = 'waiting'`) == 1
	})
	r.enqueue(later, keyed("account-", 2))
	until(t, "the later calls are blocked", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where state = 'blocked'`) == 2
	})
	r.exec(`update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp() where state = 'waiting'`)
	r.exec(parked.PromoteSQL, one[[]string](r, `select array_agg(distinct order_key::text) from onlyonce.parked`))
	until(t, "the next call is scheduled", func() bool {
		return one[int](
			r,
			`
select count(*)
  from onlyonce.parked
 where state = 'retrying' and reason = 'scheduled' and next_attempt_at > clock_timestamp() + interval '2 days'`,
		) == 1
	})
	if got := ofKey(sink, "account-"); got != "0" {
		t.Errorf("made: %s", got)
	}
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() where reason = 'scheduled'`)
	until(t, "the calls are made in their order", func() bool { return ofKey(sink, "account-") == "0 1 2" })
}

// T13: a database that needs long for each promotion promotes all of them too, in smaller portions.
func TestT13PromotionsOfASlowDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	refused := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		return outbox.Failure("the card has expired", outbox.Permanent(errors.New("status 402")))
	})
	cfg := testConfig(refused)
	cfg.LeaseTTL = 3 * time.Second // a statement may take a third of that
	cfg.Brake.Off = true
	keys := r.neighbours(40)
	for _, key := range keys {
		r.enqueue(keyed(key, 0), keyed(key, 1))
	}
	first := r.start(cfg)
	until(t, "the second call of each key is blocked", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where state = 'blocked'`) == len(keys)
	})
	first.stop()
	r.exec(`
update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp() where state = 'waiting'`)
	r.exec(`create function slow() returns trigger language plpgsql as
		$$ begin perform pg_sleep(0.05); return new; end $$`)
	r.exec(`create trigger slow before update on onlyonce.parked for each row
		when (old.state = 'blocked' and new.state = 'retrying') execute function slow()`)
	delivers := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg.Sinks = []outbox.Sink{delivers}
	r.start(cfg)
	until(t, "the second call of each key is delivered", func() bool {
		return len(strings.Fields(delivers.bodies())) == len(keys)
	})
}
