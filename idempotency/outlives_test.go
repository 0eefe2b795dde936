package idempotency_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// aged has the TTL of all records be over, and the next look due, and purges.
func (r *rig) aged() (records int) {
	r.t.Helper()
	r.exec(`update onlyonce.http_records
		set expires_at = least(expires_at, clock_timestamp() - interval '1 s'),
		look_at = case when look_at is not null then clock_timestamp() - interval '1 s' end`)
	r.purged()
	return one[int](r, `select count(*) from onlyonce.http_records`)
}

// purged does what Layer.Run does each time.
func (r *rig) purged() {
	r.t.Helper()
	r.exec(`select onlyonce.http_look(100)`)
	r.exec(`select onlyonce.http_purge(100)`)
}

// charges handles requests whose calls derive their keys from the request's.
func (r *rig) charges(mode idempotency.RouteMode) {
	r.handle(
		idempotency.Route{Pattern: "/charges", Mode: mode, TTL: 48 * time.Hour, KeyWindow: 24 * time.Hour},
		func(w http.ResponseWriter, req *http.Request) {
			tx, err := idempotency.TxOf(req)
			if err != nil {
				r.t.Error(err)
				return
			}
			for n := range 2 {
				if err := outbox.Enqueue(req.Context(), tx, outbox.Call{
					Sink: "payments",
					Name: "charge",
					ID:   strconv.Itoa(n),
					Body: []byte("{}"),
				}); err != nil {
					r.t.Error(err)
				}
			}
			w.WriteHeader(http.StatusCreated)
		},
	)
}

// listed makes the lanes of the sink, as a relay does that lists it.
const listedSQL = `
insert into onlyonce.sinks (name) values ('payments');
with e as (insert into onlyonce.leases (name) select 'relay/payments/' || n from generate_series(0, 15) n returning id, name),
made as (insert into onlyonce.sink_lanes (id, sink, lane) select e.id, 'payments', substr(e.name, 16)::smallint from e returning id)
insert into onlyonce.lane_cursors (id) select id from made`

// parkedSQL parks the first call of the log in a state and for a reason, and has the cursors pass
// the others.
const parkedSQL = listedSQL + `;
update onlyonce.lane_cursors set prev = pg_current_snapshot();
insert into onlyonce.parked (kind, state, reason, tenant, scope, key, first_key, sink, lane, row_id, call_name, method, target, body)
select 'call', '%s', '%s', tenant, scope, %s, sink, lane, id, name, method, target, body from onlyonce.outbox_log order by id limit 1`

// H31: a record does not expire before the calls of its request are settled, in whichever state
// they are, and not before remotes have forgotten their keys.
func TestH31RecordOutlivesItsCalls(t *testing.T) {
	t.Parallel()
	parked := func(state, reason string) string { return fmt.Sprintf(parkedSQL, state, reason, "key, null") }
	for name, c := range map[string]struct{ open, settle string }{
		"no relay lists the sink": {"select 1", listedSQL + `; update onlyonce.lane_cursors set prev = pg_current_snapshot()`},
		"in the log":              {listedSQL, `update onlyonce.lane_cursors set prev = pg_current_snapshot()`},
		"in a pass": {
			listedSQL + `; update onlyonce.lane_cursors set target = pg_current_snapshot()`,
			`update onlyonce.lane_cursors set last_id = 9000000`,
		},
		"rejected":           {parked("waiting", "rejected"), ""},
		"scheduled":          {parked("retrying", "scheduled"), ""},
		"waits for a rate":   {parked("retrying", "rate"), ""},
		"blocked":            {parked("blocked", "behind"), ""},
		"of unknown outcome": {parked("reconcile", "window"), ""},
		"a conflict":         {parked("waiting", "conflict"), ""},
		"under a new key":    {fmt.Sprintf(parkedSQL, "retrying", "rejected", "gen_random_uuid(), key"), ""},
		"after a rebase": {
			listedSQL + `; update onlyonce.http_records set calls_xid = null`,
			`update onlyonce.lane_cursors set prev = pg_current_snapshot()`,
		},
	} {
		for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
			t.Run(fmt.Sprint(name, " ", mode), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, leasedConfig())
				r.charges(mode)
				if g := r.post("/charges", "k", "10 EUR"); g.mark() != "created" {
					t.Fatalf("%v", g)
				}
				r.exec(c.open)
				for range 2 {
					if r.aged() != 1 {
						t.Fatal("the record was purged while a call is open")
					}
					// Between the looks it is the record's time that is over.
					r.exec(`update onlyonce.http_records set expires_at = clock_timestamp() - interval '1 s'`)
					if g := r.post("/charges", "k", "20 EUR"); g.code() != "key-reused" {
						t.Errorf("another request under the key: %v", g)
					}
					if g := r.post("/charges", "k", "10 EUR"); g.mark() != "replayed" {
						t.Errorf("a copy: %v", g)
					}
				}
				if c.settle == "" {
					c.settle = `update onlyonce.parked set state = 'resolved', settled_at = clock_timestamp()`
				}
				r.exec(c.settle)
				if r.aged() != 1 {
					t.Fatal("the record was purged when the call was settled: the remote remembers its key")
				}
				if left := one[float64](
					r,
					`select extract(epoch from expires_at - clock_timestamp()) / 3600 from onlyonce.http_records where look_at is null`,
				); left < 23 ||
					left > 24 {
					t.Errorf("it is kept for %.1f hours, want those of KeyWindow", left)
				}
				if r.aged() != 0 {
					t.Error("it is kept for longer")
				}
			})
		}
	}
}

// H31: a look says no more than once for how long a call was open: the record is kept for its whole
// time from each look that finds one.
func TestH31EachLookKeepsTheRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.charges(idempotency.Transactional)
	r.post("/charges", "k", "10 EUR")
	at := func(column string) float64 {
		return one[float64](r, `select extract(epoch from `+column+` - clock_timestamp()) / 3600 from onlyonce.http_records`)
	}
	look, expires := at("look_at"), at("expires_at")
	good := look >= 23 && look <= 24 && expires >= 47 && expires <= 48
	if !good {
		t.Errorf("the first look is in %.1f hours, and its time over in %.1f; want 24 and 48", look, expires)
	}
	r.exec(`update onlyonce.http_records set look_at = clock_timestamp(), expires_at = clock_timestamp() + interval '24 hours'`)
	r.purged()
	look, expires = at("look_at"), at("expires_at")
	good = look >= 23 && look <= 24 && expires >= 47 && expires <= 48
	if !good {
		t.Errorf("the next look is in %.1f hours, and its time over in %.1f; want 24 and 48", look, expires)
	}
	// A request that has begun nothing is not looked at.
	r.handle(idempotency.Route{Pattern: "/plain"}, effect)
	r.post("/plain", "k", "x")
	if n := one[int](r, `select count(*) from onlyonce.http_records where look_at is not null`); n != 1 {
		t.Errorf("%d records are looked at, want 1", n)
	}
}

// H31: the calls of Do are those of its record.
func TestH31RecordOfDoOutlivesItsCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	doer, err := idempotency.NewDoer(r.layer, idempotency.DoerConfig{Scope: "charge", KeyWindow: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	do := func(body string) (idempotency.ServeOutcome, error) {
		_, outcome, err := idempotency.Do(
			t.Context(),
			doer,
			idempotency.Scope{},
			"k",
			body,
			func(ctx context.Context, tx consumer.Tx) (string, error) {
				return "done", outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Body: []byte(body)})
			},
		)
		return outcome, err
	}
	if outcome, err := do("10 EUR"); err != nil || outcome != idempotency.Created {
		t.Fatal(outcome, err)
	}
	if r.aged() != 1 {
		t.Fatal("the record was purged while its call is open")
	}
	if outcome, err := do("20 EUR"); outcome != idempotency.Mismatch {
		t.Error(outcome, err)
	}
}

// H31: a request whose operation runs is not forgotten, however long the operation takes: a copy
// gets the operation, and begins no other one.
func TestH31RecordOutlivesItsOperation(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	r := newRig(t, cfg)
	g := newGate(t)
	ops := r.operations(map[string]idempotency.Work{
		"export": func(_ context.Context, tx consumer.Tx, op *idempotency.Operation) (json.RawMessage, error) {
			g.begun <- struct{}{}
			<-g.open
			tx.Queue(`insert into effects values ($1)`, op.ID)
			return json.RawMessage(`"done"`), nil
		},
	})
	r.works(ops)
	location := r.post("/exports", "k", "x", "X-Tenant", "acct_1").header.Get("Location")
	wait(t, "it runs", g.begun)
	for range 3 {
		if r.aged() != 1 {
			t.Fatal("the record was purged while its operation runs")
		}
		r.exec(`update onlyonce.http_records set expires_at = clock_timestamp() - interval '1 s'`)
		if copied := r.post("/exports", "k", "x", "X-Tenant", "acct_1"); copied.status != http.StatusAccepted ||
			copied.header.Get("Location") != location {
			t.Errorf("a copy: %v, Location %q, want %q", copied, copied.header.Get("Location"), location)
		}
	}
	g.release()
	until(t, "it has ended", func() bool { return r.effects() == 1 })
	if r.aged() != 1 {
		t.Fatal("the record was purged when its operation ended")
	}
	if n := one[int](r, `select count(*) from onlyonce.http_records r join onlyonce.operations o on o.record_id = r.id
		where r.look_at is null and abs(extract(epoch from r.expires_at - o.completed_at - r.keep)) < 60`); n != 1 {
		t.Error("its time does not count from the operation's end")
	}
	if r.aged() != 0 {
		t.Error("it is kept for longer")
	}
}

// H31: Layer.Run looks, and so a record expires once its calls are settled; also through a pool
// that prepares no statements.
func TestH31LayerLooks(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	none := &pgtest.Wire{At: func(int32) pgtest.Cut { return pgtest.Pass }}
	r := newRigOn(t, pgtest.Wired(t, pool, pgx.QueryExecModeExec, none, nil), pool, testConfig())
	r.charges(idempotency.Transactional)
	r.post("/charges", "k", "10 EUR")
	r.exec(listedSQL + `;
		update onlyonce.lane_cursors set prev = pg_current_snapshot();
		update onlyonce.http_records set look_at = clock_timestamp()`)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.layer.Run(ctx) }()
	until(t, "the layer has looked", func() bool {
		return one[int](r, `select count(*) from onlyonce.http_records where look_at is null`) == 1
	})
	cancel()
	if err := wait(t, "Run ends", ended); err != nil {
		t.Error(err)
	}
}
