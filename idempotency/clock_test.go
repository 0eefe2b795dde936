package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T11: while the database's clock is a week ahead, and afterwards, copies of requests are answered
// from their records, in each mode, although a process that starts meanwhile purges. So are copies
// of requests that came while it was a week back. When the TTL has passed by watched time too, the
// records are purged.
func TestT11ClockThatJumpsForgetsNoRequest(t *testing.T) {
	t.Parallel()
	cfg := leasedConfig()
	cfg.PurgeInterval = 100 * time.Millisecond
	var purged atomic.Int64
	cfg.Hooks.Purged = func(n int) { purged.Add(int64(n)) }
	r := newRig(t, cfg)
	routes := func(r *rig) {
		r.handle(idempotency.Route{Pattern: "/tx", TTL: 24 * time.Hour, KeyWindow: time.Hour}, effect)
		r.handle(idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased, TTL: 24 * time.Hour, KeyWindow: time.Hour}, effect)
	}
	routes(r)
	r.exec(`update onlyonce.watched set at = clock_timestamp()`)
	clock := pgtest.ShiftClock(t, r.pool)
	send := func(keys, mark string) {
		t.Helper()
		for i := range 20 {
			for _, path := range []string{"/tx", "/leased"} {
				if g := r.post(path, fmt.Sprint(keys, i), "x"); g.mark() != mark {
					t.Fatalf("%s of the keys %s: %v, want %s", path, keys, g, mark)
				}
			}
		}
	}
	// look is a look of a process that has watched for some time.
	look := func(seconds int) {
		t.Helper()
		r.exec(`select onlyonce.watch(at, $1 * interval '1 second') from onlyonce.watched`, seconds)
	}
	send("first", "created")

	clock("7 days")
	send("first", "replayed")                         // before anybody has looked
	for _, path := range []string{"/tx", "/leased"} { // nor does a claim forget it that did not look it up
		id := one[string](r, `select id::text from onlyonce.http_records where scope = $1 limit 1`, "http POST "+path)
		if n := one[int](r, `select onlyonce.http_begin($1, '1s', '1s', '1s')`, id); n != 2 {
			t.Errorf("http_begin returns %d for a record of %s, want 2", n, path)
		}
		if n := one[int](r, `select count(*) from onlyonce.http_claim($1, '', 's', '\x00', gen_random_uuid(), '1 day', '1 minute')`,
			id); n != 0 {
			t.Errorf("http_claim claims the key of a record of %s", path)
		}
	}
	if n := one[int](r, `select onlyonce.http_purge(1000)`); n != 0 {
		t.Errorf("%d purged", n)
	}
	look(25)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	before := one[time.Time](r, `select at from onlyonce.watched`)
	started := newRigOn(t, r.pool, r.pool, cfg)
	go func() { ended <- started.layer.Run(ctx) }()
	until(t, "a process that was started has moved watched time on", func() bool {
		return one[time.Time](r, `select at from onlyonce.watched`).After(before)
	})
	cancel()
	if err := wait(t, "Run returns", ended); err != nil {
		t.Fatal(err)
	}
	send("first", "replayed")
	clock("0")
	look(25)
	send("first", "replayed")

	clock("-7 days")
	look(25)
	send("back", "created")
	clock("0")
	look(25)
	if n := one[int](r, `select onlyonce.http_purge(1000)`); n != 0 || purged.Load() != 0 {
		t.Errorf("%d and %d purged", n, purged.Load())
	}
	send("back", "replayed")
	send("first", "replayed")
	if r.effects() != 80 {
		t.Errorf("%d effects, want 80", r.effects())
	}

	clock("26 hours")
	look(14 * 60 * 60)
	send("first", "created")
	if n := one[int](r, `select onlyonce.http_purge(1000)`); n != 40 {
		t.Errorf("%d purged, want the 40 of the keys that came second", n)
	}
}

// T11: an operation stays while the clock is ahead.
func TestT11ClockThatJumpsForgetsNoOperation(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.operations(map[string]idempotency.Work{"export": func(context.Context, consumer.Tx, *idempotency.Operation) (json.RawMessage, error) {
		return nil, nil
	}})
	location := r.post("/exports", "k", "x", "X-Tenant", "acct_1").header.Get("Location")
	r.exec(`update onlyonce.operations
		set state = 'failed', completed_at = clock_timestamp(), expires_at = clock_timestamp() + keep, watched_at = clock_timestamp()`)
	r.exec(`update onlyonce.watched set at = clock_timestamp()`)
	clock := pgtest.ShiftClock(t, r.pool)
	clock("70 days")
	if g := r.send("GET", location, "", "", "X-Tenant", "acct_1"); g.status != 200 {
		t.Errorf("%v", g)
	}
	r.exec(idempotency.PurgeOperationsSQL, 100)
	if one[int](r, `select count(*) from onlyonce.operations`) != 1 {
		t.Error("it was purged")
	}
	r.exec(`update onlyonce.watched set at = 'infinity'`)
	r.exec(idempotency.PurgeOperationsSQL, 100)
	if one[int](r, `select count(*) from onlyonce.operations`) != 0 {
		t.Error("it is old by both, and was not purged")
	}
}

// T11: a purge deletes what has expired however much is before it by the clock and must stay.
func TestT11PurgeBehindWhatMustStay(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.exec(`update onlyonce.watched set at = clock_timestamp()`)
	r.exec(`insert into onlyonce.operations (id, record_id, topic, tenant, principal, name, state, keep, expires_at, watched_at)
		select gen_random_uuid(), gen_random_uuid(), 't', '', '', case when n = 6 then 'old' else 'stays' end, 'failed', '1 hour',
		       clock_timestamp() - interval '1 hour' + n * interval '1 minute',
		       case when n = 6 then clock_timestamp() - interval '2 hours' else clock_timestamp() end
		  from generate_series(1, 6) n`)
	r.exec(`set session_replication_role = replica;
		insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, response, keep, completed_at, expires_at,
		watched_at)
		select gen_random_uuid(), name, 's', '', gen_random_uuid(), 'completed', '', keep, clock_timestamp(), expires_at, watched_at
		  from onlyonce.operations;
		set session_replication_role = origin`, pgx.QueryExecModeSimpleProtocol)
	r.exec(idempotency.PurgeOperationsSQL, 2)
	if n := one[int](r, `select onlyonce.http_purge(2)`); n != 1 {
		t.Errorf("%d records are purged, want 1", n)
	}
	if got := one[string](r, `select string_agg(tenant, ' ') from onlyonce.http_records`); got != "stays stays stays stays stays" {
		t.Errorf("left: %s", got)
	}
	if got := one[string](r, `select string_agg(name, ' ') from onlyonce.operations`); got != "stays stays stays stays stays" {
		t.Errorf("left: %s", got)
	}
}

// T11, H18: a step whose first attempt was made while the clock was ahead has no known age, and the
// clock being back makes none young: the provider may have forgotten their keys.
func TestT11StepsWhoseAgeIsInDoubt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ first, ahead string }{
		"the clock was ahead": {"6 days", "0"},
		"the clock is back":   {"-4 hours -1 minute", "-7 days"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, leasedConfig())
			calls := map[string]int{}
			r.handle(
				idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased, TTL: 10 * time.Hour, KeyWindow: 5 * time.Hour},
				func(w http.ResponseWriter, req *http.Request) {
					if _, err := idempotency.Step(req.Context(), "charge", func(_ context.Context, key string) ([]byte, error) {
						calls[key]++
						return nil, errors.New("no answer")
					}); err != nil {
						w.WriteHeader(http.StatusBadGateway)
					}
				},
			)
			r.post("/charges", "old", "x")
			r.exec(`update onlyonce.http_steps set first_at = clock_timestamp() + $1::text::interval`, c.first)
			r.exec(`update onlyonce.watched set at = clock_timestamp()`)
			pgtest.ShiftClock(t, r.pool)(c.ahead)
			if g := r.post("/charges", "old", "x"); g.code() != "commit-unknown" {
				t.Errorf("%v", g)
			}
			for range 2 {
				if g := r.post("/charges", "new", "x"); g.status != http.StatusBadGateway {
					t.Errorf("a step that is new: %v", g)
				}
			}
			if slices.Sorted(maps.Values(calls))[1] != 2 || len(calls) != 2 {
				t.Errorf("calls by key: %v", calls)
			}
		})
	}
}
