package ring_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Tests of this package are not parallel: each waits for all transactions of the server, and some
// keep one open.

// patience bounds what tests wait for; nothing is judged by how long it took.
var patience = pgtest.Patience(time.Minute)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// rig is a database with a ring whose segments are due as soon as something is in them.
type rig struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return rigOn(t, pgtest.URL(t))
}

func rigOn(t *testing.T, url string) *rig {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 24
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &rig{t: t, pool: pool}
}

// quick rotates as soon as there is anything to rotate.
func quick() ring.Config {
	return ring.Config{
		MaxBytes:    1,
		Retention:   time.Millisecond,
		LockTimeout: 50 * time.Millisecond,
		LockPause:   time.Millisecond,
		Interval:    time.Millisecond,
	}
}

// rotator is a rotator and what it reported.
type rotator struct {
	*ring.Rotator
	stepped []ring.StepResult
	leases  []ring.LeaseEvent
}

func (r *rig) rotator(cfg ring.Config) *rotator {
	r.t.Helper()
	x := &rotator{}
	cfg.Hooks = ring.Hooks{
		Stepped: func(o ring.StepResult) { x.stepped = append(x.stepped, o) },
		Lease:   func(c ring.LeaseEvent) { x.leases = append(x.leases, c) },
		Failed:  func(err error) { r.t.Logf("failed: %v", err) },
	}
	var err error
	if x.Rotator, err = ring.New(r.pool, ring.Outbox(), cfg); err != nil {
		r.t.Fatal(err)
	}
	return x
}

func (r *rig) step(x *rotator) ring.StepResult {
	r.t.Helper()
	out, err := x.Step(r.t.Context())
	if err != nil {
		r.t.Fatalf("Step: %v", err)
	}
	return out
}

// until steps until a step comes to that, with nothing but waiting before.
func (r *rig) until(x *rotator, want ring.Action) ring.StepResult {
	r.t.Helper()
	var last ring.StepResult
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if last = r.step(x); last.Action == want {
			return last
		}
		if last.Changed() {
			r.t.Fatalf("a step came to %+v and not to %s", last, want)
		}
	}
	pgtest.GaveUp(r.t, patience, fmt.Sprintf("a step comes to %s; the last one: %+v", want, last))
	return last
}

// reach steps until a step has that outcome, whichever steps are due before.
func (r *rig) reach(x *rotator, want ring.Action) {
	r.t.Helper()
	var last ring.StepResult
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if last = r.step(x); last.Action == want {
			return
		}
	}
	pgtest.GaveUp(r.t, patience, fmt.Sprintf("a step comes to %s; the last one: %+v", want, last))
}

// never steps some times and fails if a step comes to that. A rotator also waits for transactions
// of other databases, for example other packages' tests: the steps count once those that are open
// now have ended.
func (r *rig) never(x *rotator, not ring.Action) {
	r.t.Helper()
	const others = `select coalesce(array_agg(backend_xid::text), '{}') from pg_stat_activity
		where datname <> current_database() and backend_xid is not null`
	open := one[[]string](r, others)
	deadline := time.Now().Add(patience)
	for n := 0; n < 5; {
		now := one[[]string](r, others)
		if !slices.ContainsFunc(open, func(xid string) bool { return slices.Contains(now, xid) }) || time.Now().After(deadline) {
			n++
		}
		if out := r.step(x); out.Action == not {
			r.t.Fatalf("a step came to %+v", out)
		}
	}
}

// row is the ring's row.
type row struct {
	Cur      int16
	Draining *int16
	Closed   []int16
	Retired  *int16
	Version  int64
	Sequence int64
}

func (r *rig) row() (x row) {
	r.t.Helper()
	err := r.pool.QueryRow(r.t.Context(), `select r.cur, r.draining, r.closed, r.retired, r.version, v.last_value
	  from onlyonce.rings r, onlyonce.outbox_version v where r.name = 'outbox'`).Scan(
		&x.Cur,
		&x.Draining,
		&x.Closed,
		&x.Retired,
		&x.Version,
		&x.Sequence,
	)
	if err != nil {
		r.t.Fatal(err)
	}
	return x
}

func (x row) String() string {
	slot := func(p *int16) string {
		if p == nil {
			return "-"
		}
		return fmt.Sprint(*p)
	}
	return fmt.Sprintf("cur %d draining %s closed %v retired %s", x.Cur, slot(x.Draining), x.Closed, slot(x.Retired))
}

func (r *rig) expect(want string) {
	r.t.Helper()
	got := r.row()
	if got.String() != want {
		r.t.Fatalf("the row is %s and not %s", got, want)
	}
	if got.Version != got.Sequence {
		r.t.Fatalf("version %d, sequence %d", got.Version, got.Sequence)
	}
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	pgtest.Exec(r.t, r.pool, sql, args...)
}

// one reads one value.
func one[T any](r *rig, sql string, args ...any) T {
	r.t.Helper()
	return pgtest.One[T](r.t, r.pool, sql, args...)
}

// enqueueSQL is a call that nothing but enqueue_calls gives a transaction id. In: key, sink.
const enqueueSQL = `select onlyonce.enqueue_calls(array[0::smallint], array[$1::uuid], array[null::uuid], array[$2::text], array['t'],
	array['s'], array['n'],
  array['POST'], array['/'], array[''], array[null::text], array['x'::bytea], array[null::timestamptz], array[null::timestamptz],
  array[false], array[false], array[false])`

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// enqueue writes a call to a sink and returns its key.
func (r *rig) enqueue(db execer, sink string) string {
	r.t.Helper()
	key := uuid.NewString()
	if _, err := db.Exec(context.Background(), enqueueSQL, key, sink); err != nil {
		r.t.Fatal(err)
	}
	return key
}

// stands returns the slot of a call, or -1 if it is in none.
func (r *rig) stands(key string) int16 {
	r.t.Helper()
	return one[int16](r, `select coalesce(max(slot), -1) from onlyonce.outbox_log where key = $1`, key)
}

func (r *rig) begin(level pgx.TxIsoLevel) pgx.Tx {
	r.t.Helper()
	tx, err := r.pool.BeginTx(context.Background(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func (r *rig) commit(tx pgx.Tx) {
	r.t.Helper()
	if err := tx.Commit(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

// sink makes a sink with its lanes, as a relay does that lists it.
func (r *rig) sink(name string) {
	r.t.Helper()
	r.exec(`with s as (insert into onlyonce.sinks (name) values ($1)),
	  l as (insert into onlyonce.leases (name) select 'relay/' || $1 || '/' || n from generate_series(0, 15) n returning id, name)
	  select 1 from l`, name)
	r.exec(
		`with made as (insert into onlyonce.sink_lanes (id, sink, lane)
			select id, $1, split_part(name, '/', 3)::smallint from onlyonce.leases
			where name like 'relay/' || $1 || '/%' returning id)
		insert into onlyonce.lane_cursors (id) select id from made`,
		name,
	)
}

// pass makes every lane of every sink make a pass: what the last one found is done. It returns the
// keys that this one finds.
func (r *rig) pass() ([]string, error) {
	if _, err := r.pool.Exec(context.Background(), `select onlyonce.advance(id, version, 0, true, false) from onlyonce.lanes`); err != nil {
		return nil, err
	}
	rows, err := r.pool.Query(context.Background(), `select r.key::text from onlyonce.lanes l cross join lateral (
	    select n.key, n.xid from onlyonce.outbox_log n where n.sink = l.sink and n.lane = l.lane and n.xid >= pg_snapshot_xmax(l.prev)
	    union all
	    select n.key, n.xid from onlyonce.outbox_log n
	    where n.sink = l.sink and n.lane = l.lane and n.xid in (select pg_snapshot_xip(l.prev))) r
	  where pg_visible_in_snapshot(r.xid, l.target)`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// done sends everything.
func (r *rig) done() {
	r.t.Helper()
	for range 2 {
		if _, err := r.pass(); err != nil {
			r.t.Fatal(err)
		}
	}
}

// takeOver takes the ring's lease from its owner, as if it had run out.
func (r *rig) takeOver() *lease.Lease {
	r.t.Helper()
	r.expire()
	l, err := lease.Acquire(r.t.Context(), r.pool, names.Rotator("outbox"), time.Minute)
	if err != nil || l == nil {
		r.t.Fatalf("taking over: %v, %v", l, err)
	}
	return l
}

func (r *rig) expire() {
	r.t.Helper()
	r.exec(`update onlyonce.leases set until = clock_timestamp() where name = 'ring/outbox'`)
}
