package ops_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// cursors makes n cursors of group g1 at offset 5, which their owner has released.
func cursors(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	exec(
		t,
		pool,
		`with l as (insert into onlyonce.leases (name)
                      select 'cursor/stock/orders/' || p from generate_series(0, $1::int - 1) p returning id, name)
  insert into onlyonce.cursors (
    id,
    scope,
    topic,
    partition,
    group_id,
    cluster_id,
    start_offset,
    run_start,
    start_policy
  )
  select id,
         'stock',
         'orders',
         substr(name, 21)::int,
         'g1',
         'c1',
         5,
         5,
         'earliest'
    from l`,
		n,
	)
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestAdoptCursor(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cursors(t, pool, 1)
	in := ops.AdoptInput{Scope: "stock", Topic: "orders", Partition: new(int32), At: "9"}
	seen, err := ops.AdoptCursor(t.Context(), pool, ops.By{DryRun: true}, in)
	good := err == nil &&
		seen.AuditID == 0 &&
		seen.Before.Position == 5 &&
		seen.After.Position == 9 &&
		*seen.Skipped == 4 &&
		*seen.Repeated == 0
	if !good {
		t.Fatalf("%+v, %v", seen, err)
	}
	if c, err := cursorsOf(t, pool); err != nil || c[0].Position != 5 || c[0].Run != 0 {
		t.Fatalf("a dry run wrote: %+v, %v", c, err)
	}
	in.Shown = seen
	done, err := ops.AdoptCursor(t.Context(), pool, ops.By{Actor: "ann", Reason: "INC-7"}, in)
	good = err == nil &&
		done.AuditID != 0 &&
		done.After.Position == 9 &&
		done.After.Run == 1 &&
		done.After.ClusterID == nil
	if !good {
		t.Fatalf("%+v, %v", done, err)
	}
	if _, err := ops.AdoptCursor(t.Context(), pool, ops.By{Reason: "again"}, in); !errors.Is(err, ops.ErrChanged) {
		t.Errorf("with what was shown before: %v", err)
	}
}

// All partitions of a topic go to a group together, or none does.
func TestAdoptTopic(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cursors(t, pool, 4)
	exec(t, pool, `update onlyonce.cursors set retired_at = clock_timestamp() where partition = 2`)
	exec(t, pool, `update onlyonce.cursors set released_at = null where partition = 3`)
	in := ops.AdoptInput{Scope: "stock", Topic: "orders", Group: "g2"}
	groups := func() string {
		return one[string](
			t,
			pool,
			`select string_agg(coalesce(group_id, '-') || '@' || start_offset, ' ' order by partition) from onlyonce.cursors`,
		)
	}
	if _, err := ops.AdoptCursor(t.Context(), pool, ops.By{Reason: "renamed"}, in); !errors.Is(err, ops.ErrRefused) {
		t.Fatalf("one is not released: %v", err)
	}
	if got := groups(); got != "g1@5 g1@5 g1@5 g1@5" {
		t.Errorf("after a refusal: %s", got)
	}
	in.OldGroupStopped = true
	seen, err := ops.AdoptCursor(t.Context(), pool, ops.By{DryRun: true}, in)
	if err != nil || len(seen.Partitions) != 3 {
		t.Fatalf("%+v, %v", seen, err)
	}
	in.Shown = seen
	done, err := ops.AdoptCursor(t.Context(), pool, ops.By{Reason: "renamed"}, in)
	if err != nil || len(done.Partitions) != 3 || done.AuditID == 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	for _, p := range done.Partitions {
		good := *p.After.Group == "g2" &&
			p.After.Position == 5 &&
			p.After.Run == 0 &&
			p.After.ClusterID != nil
		if !good {
			t.Errorf("%+v", p.After)
		}
	}
	if got := groups(); got != "g2@5 g2@5 g1@5 g2@5" {
		t.Error(got)
	}
	if n := one[int](t, pool, `select jsonb_array_length(detail->'partitions') from onlyonce.audit where action = 'cursor adopt'`); n != 3 {
		t.Errorf("%d partitions in the audit row", n)
	}
	in.Shown = nil
	if _, err := ops.AdoptCursor(t.Context(), pool, ops.By{Reason: "again"}, in); !errors.Is(err, ops.ErrNothing) {
		t.Errorf("all have the group: %v", err)
	}
	in.Topic = "other"
	if _, err := ops.AdoptCursor(t.Context(), pool, ops.By{Reason: "typo"}, in); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("no such topic: %v", err)
	}
	in.Topic = "orders"
	in.Shown = seen
	in.Group = "g3"
	if _, err := ops.AdoptCursor(t.Context(), pool, ops.By{Reason: "late"}, in); !errors.Is(err, ops.ErrChanged) {
		t.Errorf("the epochs have risen since: %v", err)
	}
}

// The partitions that are halted for one reason get a position together.
func TestAdoptHalted(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cursors(t, pool, 4)
	exec(t, pool, `insert into onlyonce.owners (
  id,
  scope,
  host,
  pid,
  seen_at,
  partitions
) values
  (
    gen_random_uuid(),
    'stock',
    'new',
    1,
    clock_timestamp(),
    '[{"topic": "orders", "partition": 0, "epoch": 2, "halted": "new-topic", "high_watermark": 30},
			{"topic": "orders", "partition": 2, "epoch": 2, "halted": "gap", "log_start": 8},
			{"topic": "orders", "partition": 3, "epoch": 2, "halted": "new-topic", "log_start": 2, "high_watermark": 33}]'
  ),
  (
    gen_random_uuid(),
    'stock',
    'late',
    2,
    clock_timestamp(),
    '[{"topic": "orders", "partition": 1, "epoch": 1, "halted": "new-topic"}]'
  ),
  (
    gen_random_uuid(),
    'stock',
    'next',
    3,
    clock_timestamp(),
    '[{"topic": "orders", "partition": 1, "epoch": 2}]'
  )`)
	positions := func() string {
		return one[string](t, pool, `select string_agg(next_offset || '@' || run, ' ' order by partition) from onlyonce.positions`)
	}
	for _, c := range []struct {
		halted, at, want string
		err              error
	}{
		{"", "0", "5@0 5@0 5@0 5@0", ops.ErrInvalid},
		{"new-topic", "begin", "5@0 5@0 5@0 5@0", ops.ErrInvalid},
		{"", "first", "5@0 5@0 5@0 5@0", ops.ErrInvalid},
		{"truncated", "0", "5@0 5@0 5@0 5@0", ops.ErrNotFound},
		{"new-topic", "0", "0@1 5@0 5@0 0@1", nil},
		{"gap", "position", "0@1 5@0 5@1 0@1", nil},
		{"gap", "first", "0@1 5@0 8@2 0@1", nil},
		{"new-topic", "last", "30@2 5@0 8@2 33@2", nil},
		{"new-topic", "first", "0@3 5@0 8@2 2@3", nil},
	} {
		_, err := ops.AdoptCursor(
			t.Context(),
			pool,
			ops.By{Reason: "INC-8"},
			ops.AdoptInput{Scope: "stock", Topic: "orders", Halted: c.halted, At: c.at},
		)
		if got := positions(); !errors.Is(err, c.err) || got != c.want {
			t.Errorf("halted %q at %q: %s, %v", c.halted, c.at, got, err)
		}
	}
}

// idleBounds is a database that records the bound on idle sessions at the end of each transaction.
type idleBounds struct {
	ops.DB
	seen *[]string
}

func (d idleBounds) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := d.DB.BeginTx(ctx, options)
	return idleBoundsTx{tx, d.seen}, err
}

type idleBoundsTx struct {
	pgx.Tx
	seen *[]string
}

func (t idleBoundsTx) Commit(ctx context.Context) error {
	var bound string
	if err := t.QueryRow(ctx, `show idle_in_transaction_session_timeout`).Scan(&bound); err != nil {
		return err
	}
	*t.seen = append(*t.seen, bound)
	return t.Tx.Commit(ctx)
}

// F13: the other database's session is idle in its transaction while keys that it has sent are
// claimed here, however long that takes. If it ends all the same, the error says what that means.
func TestF13AdoptionMayTakeLong(t *testing.T) {
	t.Parallel()
	from := pgtest.DB(t)
	to := pgtest.DB(t)
	exec(t, from, `insert into onlyonce.leases (name) values ('cursor/stock/orders/0')`)
	exec(t, from, `insert into onlyonce.cursors (
  id,
  scope,
  topic,
  partition,
  group_id,
  start_offset,
  run_start,
  start_policy,
  retired_at
)
  select id,
         'stock',
         'orders',
         0,
         'g',
         0,
         100,
         'earliest',
         clock_timestamp()
    from onlyonce.leases`)
	var there, here []string
	_, err := ops.AdoptCursor(
		t.Context(),
		idleBounds{to, &here},
		ops.By{Reason: "move"},
		ops.AdoptInput{Scope: "stock", Topic: "orders", Partition: new(int32),
			From: &ops.Origin{DB: idleBounds{from, &there}, Name: "a"}},
	)
	if err != nil || there[len(there)-1] != "0" || here[0] != "10min" {
		t.Errorf("bounds there: %v, here: %v; %v", there, here, err)
	}
	if err := (&ops.OriginError{Name: "a", Err: errors.New("terminated")}).Error(); !strings.Contains(
		err,
		"Nothing was done, here or there",
	) {
		t.Error(err)
	}
}
