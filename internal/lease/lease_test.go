package lease_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const ttl = time.Minute

func take(t *testing.T, pool *pgxpool.Pool, name string) *lease.Lease {
	t.Helper()
	l, err := lease.Acquire(t.Context(), pool, names.Rotator(name), ttl)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustTake(t *testing.T, pool *pgxpool.Pool, name string) *lease.Lease {
	t.Helper()
	l := take(t, pool, name)
	if l == nil {
		t.Fatalf("lease %s is owned", name)
	}
	return l
}

// end lets a lease run out, as if its owner had not renewed it.
func end(t *testing.T, pool *pgxpool.Pool, l *lease.Lease) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `update onlyonce.leases set until = clock_timestamp() where id = $1`, l.ID); err != nil {
		t.Fatal(err)
	}
}

func TestOneOwner(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	var mu sync.Mutex
	var owners []*lease.Lease
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			l, err := lease.Acquire(context.Background(), pool, names.Rotator("x"), ttl)
			if err != nil {
				t.Error(err)
			}
			if l != nil {
				mu.Lock()
				defer mu.Unlock()
				owners = append(owners, l)
			}
		})
	}
	all.Wait()
	if len(owners) != 1 {
		t.Fatalf("%d owners", len(owners))
	}
	if err := owners[0].Release(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if next := mustTake(t, pool, "x"); next.Epoch != owners[0].Epoch+1 || next.Nonce == owners[0].Nonce {
		t.Fatalf("%+v after %+v", next, owners[0])
	}
}

func TestRenew(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	a := mustTake(t, pool, "a")
	b := mustTake(t, pool, "b")
	c := mustTake(t, pool, "c")
	end(t, pool, a)
	end(t, pool, b)
	other := mustTake(t, pool, "b")
	lost, err := lease.RenewAll(t.Context(), pool, []*lease.Lease{c, b, a}, ttl)
	if err != nil || len(lost) != 1 || lost[0] != b {
		t.Fatalf("lost %v, %v", lost, err)
	}
	if take(t, pool, "a") != nil {
		t.Error("a renewal that came late, before anybody took over, revived nothing")
	}
	if ours, err := b.Renew(t.Context(), pool, ttl); ours || err != nil {
		t.Errorf("the old owner of b: %v, %v", ours, err)
	}
	if ours, err := other.Renew(t.Context(), pool, ttl); !ours || err != nil {
		t.Errorf("the new owner of b: %v, %v", ours, err)
	}
	// What an owner that was replaced gives back is not its to give.
	if err := b.Release(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if take(t, pool, "b") != nil {
		t.Error("the release of an owner that was replaced took effect")
	}
}

// After a failover that lost a take-over the epoch is given out again.
func TestSameEpochOtherNonce(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	l := mustTake(t, pool, "x")
	twin := *l
	twin.Nonce = "00000000-0000-0000-0000-000000000001"
	if ours, err := twin.Renew(t.Context(), pool, ttl); ours || err != nil {
		t.Errorf("renewed by the epoch alone: %v, %v", ours, err)
	}
	if _, err := pool.Exec(t.Context(), `select onlyonce.hold($1, $2, $3::uuid)`, twin.ID, twin.Epoch, twin.Nonce); err == nil {
		t.Error("held by the epoch alone")
	}
}

// T9: a lease that ends later than any lasts was written while the clock was ahead. It is over, and
// its owner is fenced out; one of an hour is not.
func TestT9LeaseOfTheFuture(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for ahead, over := range map[string]bool{"6 days": true, "61 minutes": true, "59 minutes": false} {
		first := mustTake(t, pool, ahead)
		if _, err := pool.Exec(t.Context(), `update onlyonce.leases set until = clock_timestamp() + $2::interval where id = $1`,
			first.ID, ahead); err != nil {
			t.Fatal(err)
		}
		second := take(t, pool, ahead)
		if (second != nil) != over {
			t.Errorf("%s ahead: taken over: %v", ahead, second != nil)
		}
		if ours, err := first.Renew(t.Context(), pool, ttl); err != nil || ours == over {
			t.Errorf("%s ahead: still the first one's: %v, %v", ahead, ours, err)
		}
	}
}

// ExpireAll and a renewal that is still under way lock the rows in the same order, whatever their
// order in the table, so neither undoes the other.
func TestExpireAllBesideRenewal(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	first := mustTake(t, pool, "first")
	second := mustTake(t, pool, "second")
	if _, err := first.Renew(t.Context(), pool, ttl); err != nil { // its row stands behind the other's now
		t.Fatal(err)
	}
	held, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.Background()) }()
	if _, err := held.Exec(t.Context(), `select id from onlyonce.leases where id = $1 for update`, second.ID); err != nil {
		t.Fatal(err)
	}
	waiting := func(n int) {
		pgtest.Until(t, time.Minute, "a session that waits for a lock", func() bool {
			var is int
			err := pool.QueryRow(
				t.Context(),
				`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
			).Scan(&is)
			if err != nil {
				t.Fatal(err)
			}
			return is == n
		})
	}
	results := make(chan error, 2)
	go func() { results <- lease.ExpireAll(context.Background(), pool) }()
	waiting(1)
	go func() {
		_, err := lease.RenewAll(context.Background(), pool, []*lease.Lease{first, second}, ttl)
		results <- err
	}()
	waiting(2)
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// O5: a lease that was given back says since when it is free: reports go by that.
func TestO5LeaseSaysSinceWhenItIsFree(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	l := mustTake(t, pool, "x")
	pgtest.Exec(t, pool, `update onlyonce.leases set freed_at = clock_timestamp() - interval '1 day' where id = $1`, l.ID)
	if err := l.Release(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if !pgtest.One[bool](t, pool, `select freed_at > clock_timestamp() - interval '1 hour' from onlyonce.leases where id = $1`, l.ID) {
		t.Error("it is free since a day")
	}
}
