package dedupe_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds what tests wait for; nothing is judged by how long it took. Mutants, which make
// tests wait in vain, shorten it.
var patience = pgtest.Patience(time.Minute)

func key(id, payload string) dedupe.Key {
	return dedupe.Key{Scope: "stock", ID: id, Fingerprint: dedupe.FingerprintOf([]byte(payload))}
}

// inTx claims in a transaction of its own and commits.
func inTx(t *testing.T, pool *pgxpool.Pool, keys ...dedupe.Key) (outcomes []dedupe.Outcome) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		outcomes, err = dedupe.ClaimAll(t.Context(), tx, keys)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return outcomes
}

func TestClaimOutcomes(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	other := key("a", "1")
	other.Tenant = "acme"
	unprinted := key("a", "")
	unprinted.Fingerprint = dedupe.NoFingerprint
	for _, step := range []struct {
		keys []dedupe.Key
		want string
	}{
		{[]dedupe.Key{key("a", "1")}, "[fresh]"},
		{[]dedupe.Key{key("a", "1")}, "[duplicate]"},
		{[]dedupe.Key{key("a", "2")}, "[conflict]"},
		{[]dedupe.Key{unprinted}, "[duplicate]"},
		{[]dedupe.Key{other}, "[fresh]"},
		{
			[]dedupe.Key{key("c", "1"), key("a", "1"), key("b", "1"), key("c", "1"), key("c", "2")},
			"[fresh duplicate fresh duplicate conflict]",
		},
		{nil, "[]"},
	} {
		if got := fmt.Sprint(inTx(t, pool, step.keys...)); got != step.want {
			t.Errorf("%v: %s, want %s", step.keys, got, step.want)
		}
	}
}

// T1: a claim is part of its transaction: rolled back, it never was.
func TestT1RolledBackClaimNeverWas(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if o, err := dedupe.Claim(t.Context(), tx, key("a", "1")); err != nil || o != dedupe.Fresh {
		t.Fatal(o, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := inTx(t, pool, key("a", "1")); got[0] != dedupe.Fresh {
		t.Errorf("%v after a rollback", got[0])
	}
}

// T1: a claim outside of a transaction would commit by itself, and a crash after it would lose the
// message. A value with a transaction's methods that is no transaction is refused, and no outcome
// is then mistaken for fresh.
func TestT1ClaimNeedsATransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	ended, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := ended.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	type wrapped struct{ *pgxpool.Pool }
	for what, tx := range map[string]dedupe.AnyTx{
		"pool":              pool,
		"wrapped pool":      wrapped{pool},
		"pooled connection": conn,
		"connection":        conn.Conn(),
		"nil":               nil,
		"ended":             ended,
	} {
		o, err := dedupe.Claim(t.Context(), tx, key("a", "1"))
		wrong := err == nil ||
			what != "ended" && !errors.Is(err, dedupe.ErrNoTransaction) ||
			o.String() != "invalid"
		if wrong {
			t.Errorf("%s: %v %v", what, o, err)
		}
		if all, err := dedupe.ClaimAll(t.Context(), tx, []dedupe.Key{key("a", "1")}); err == nil || len(all) > 0 {
			t.Errorf("%s: all: %v %v", what, all, err)
		}
	}
	if got := inTx(t, pool, key("a", "1")); got[0] != dedupe.Fresh { // nothing was claimed; a pool's transaction is one
		t.Errorf("%v", got[0])
	}
	for _, sql := range []string{"begin", "", "commit"} { // so is a connection's own
		if sql == "" {
			if o, err := dedupe.Claim(t.Context(), conn.Conn(), key("a", "1")); o != dedupe.Duplicate || err != nil {
				t.Error(o, err)
			}
		} else if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// K2: a duplicate whose first copy is uncommitted waits for it, and is what that one's end makes of
// it.
func TestK2DuplicateWaitsForAnUncommittedCopy(t *testing.T) {
	for _, c := range []struct {
		name   string
		level  pgx.TxIsoLevel
		commit bool
		want   string
	}{
		{"first commits", pgx.ReadCommitted, true, "duplicate"},
		{"first rolls back", pgx.ReadCommitted, false, "fresh"},
		{"first commits, repeatable read", pgx.RepeatableRead, true, "40001"},
		{"first rolls back, repeatable read", pgx.RepeatableRead, false, "fresh"},
		{"first commits, serializable", pgx.Serializable, true, "40001"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			first, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = first.Rollback(context.Background()) }() // the pool closes only then
			if _, err := dedupe.Claim(t.Context(), first, key("a", "1")); err != nil {
				t.Fatal(err)
			}
			got := make(chan string, 1)
			go func() {
				var o dedupe.Outcome
				err := pgx.BeginTxFunc(context.Background(), pool, pgx.TxOptions{IsoLevel: c.level}, func(tx pgx.Tx) (err error) {
					if _, err := tx.Exec(context.Background(), "select 1"); err != nil { // the snapshot is taken here
						return err
					}
					o, err = dedupe.Claim(context.Background(), tx, key("a", "1"))
					return err
				})
				var pg *pgconn.PgError
				switch {
				case errors.As(err, &pg):
					got <- pg.Code
				case err != nil:
					got <- err.Error()
				default:
					got <- o.String()
				}
			}()
			blocked(t, pool)
			select {
			case o := <-got:
				t.Fatalf("did not wait: %s", o)
			default:
			}
			if c.commit {
				err = first.Commit(t.Context())
			} else {
				err = first.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if o := <-got; o != c.want {
				t.Errorf("%s, want %s", o, c.want)
			}
		})
	}
}

// blocked returns when some session of this database waits for a lock.
func blocked(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	for n := 0; n == 0; <-tick.C {
		if time.Now().After(deadline) {
			pgtest.GaveUp(t, patience, "a session that waits for a lock")
		}
		err := pool.QueryRow(
			t.Context(),
			`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
		).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Many workers claim overlapping sets in any order: each key is fresh exactly once, and no claim
// deadlocks.
func TestClaimsOfManyWorkers(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	const (
		workers = 8
		rounds  = 30
		keys    = 60
	)
	var mu sync.Mutex
	fresh := map[int]int{}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				picked := rand.Perm(keys)[:20]
				all := make([]dedupe.Key, len(picked))
				for i, n := range picked {
					all[i] = key(fmt.Sprint(n), "x")
				}
				var outcomes []dedupe.Outcome
				commit := rand.IntN(4) > 0
				err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) (err error) {
					if outcomes, err = dedupe.ClaimAll(context.Background(), tx, all); err == nil && !commit {
						return errRollback
					}
					return err
				})
				if err != nil && !errors.Is(err, errRollback) {
					t.Error(err)
					return
				}
				if !commit {
					continue
				}
				mu.Lock()
				for i, o := range outcomes {
					if o == dedupe.Fresh {
						fresh[picked[i]]++
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for k, n := range fresh {
		if n != 1 {
			t.Errorf("key %d was fresh %d times", k, n)
		}
	}
	if len(fresh) != keys {
		t.Errorf("%d of %d keys were ever fresh", len(fresh), keys)
	}
}

var errRollback = errors.New("rolled back by the test")

func TestClaimNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := dedupe.ClaimAll(t.Context(), tx, []dedupe.Key{key("a", "1"), {Scope: "s"}})
		return err
	})
	if !errors.Is(err, dedupe.ErrKey) {
		t.Errorf("%v", err)
	}
	if got := inTx(t, pool, key("a", "1")); got[0] != dedupe.Fresh {
		t.Error("a refused call claimed something")
	}
}

// A null among keys is refused as a whole: outcomes are by position.
func TestClaimOfNulls(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	exec := func(sql string) error {
		_, err := pool.Exec(t.Context(), sql)
		return err
	}
	err := exec(`select onlyonce.claim_consumer(array[onlyonce.key('', 's', 'a')], array[0]);
		update onlyonce.rings set closed = '{0}', cur = 1 where name = 'consumer_keys'`)
	if err != nil {
		t.Fatal(err)
	}
	for _, function := range []string{"claim", "claim_consumer", "claim_standard"} {
		for _, args := range []string{
			`array[null, onlyonce.key('', 's', 'a'), onlyonce.key('', 's', 'b')], array[0, 0, 0]`,
			`array[onlyonce.key('', 's', 'b')], array[null]::bigint[]`,
			`array[onlyonce.key('', null, 'b')], array[0]`,
			`null, null`, `null, array[0]`, `array[onlyonce.key('', 's', 'b')], null`,
		} {
			if err := exec("select onlyonce." + function + "(" + args + ")"); guard.SQLState(err) != "23502" {
				t.Errorf("%s(%s): %v", function, args, err)
			}
		}
		if err := exec("select onlyonce." + function + "(array[onlyonce.key('', 's', 'b')], array[0, 0])"); guard.SQLState(err) != "22023" {
			t.Errorf("%s of one key and two fingerprints: %v", function, err)
		}
	}
}
