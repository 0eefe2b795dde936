package ops_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A retired cursor keeps its row, and whoever owned it is fenced out.
func TestRetireCursor(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cursors(t, pool, 1)
	parks(t, pool, 2)
	in := ops.RetireInput{CursorName: ops.CursorName{Scope: "stock", Topic: "orders"}}
	seen, err := ops.RetireCursor(t.Context(), pool, ops.By{DryRun: true}, in)
	good := err == nil &&
		seen.AuditID == 0 &&
		*seen.Parked == 2 &&
		seen.Before.RetiredAt == nil &&
		seen.After.RetiredAt != nil
	if !good {
		t.Fatalf("%+v, %v", seen, err)
	}
	if one[bool](t, pool, `select exists (select from onlyonce.cursors where retired_at is not null)`) {
		t.Fatal("a dry run has retired the cursor")
	}
	in.Shown = seen
	done, err := ops.RetireCursor(t.Context(), pool, ops.By{Actor: "ann", Reason: "the topic is gone"}, in)
	good = err == nil &&
		done.AuditID != 0 &&
		done.After.RetiredAt != nil &&
		done.After.Epoch == seen.Before.Epoch+1 &&
		done.After.Position == 5
	if !good {
		t.Fatalf("%+v, %v", done, err)
	}
	if got := one[string](
		t,
		pool,
		`select concat_ws(' ', actor, action, reason) from onlyonce.audit`,
	); got != "ann cursor retire the topic is gone" {
		t.Error(got)
	}
	in.Shown = nil
	if _, err := ops.RetireCursor(t.Context(), pool, ops.By{Reason: "again"}, in); !errors.Is(err, ops.ErrNothing) {
		t.Errorf("a cursor that is retired: %v", err)
	}
	in.Topic = "other"
	if _, err := ops.RetireCursor(t.Context(), pool, ops.By{Reason: "typo"}, in); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("no such cursor: %v", err)
	}
}

// A decision about a cursor that another process has taken over since it was shown is refused.
func TestRetireOfWhatWasShown(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cursors(t, pool, 1)
	in := ops.RetireInput{CursorName: ops.CursorName{Scope: "stock", Topic: "orders"}}
	seen, err := ops.RetireCursor(t.Context(), pool, ops.By{DryRun: true}, in)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `update onlyonce.leases set epoch = epoch + 1`)
	in.Shown = seen
	if _, err := ops.RetireCursor(t.Context(), pool, ops.By{Reason: "why"}, in); !errors.Is(err, ops.ErrChanged) {
		t.Errorf("the epoch has risen: %v", err)
	}
	if one[bool](
		t,
		pool,
		`select exists (select from onlyonce.cursors where retired_at is not null) or exists (select from onlyonce.audit)`,
	) {
		t.Error("a refused decision wrote")
	}
}

// T12: a decision on a connection to a server that takes no writes fails, and no connection of the
// pool is used again.
func TestT12DecisionOnAStaleConnection(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cursors(t, pool, 1)
	stale := pgtest.Stale(t, pool)
	at := ops.CursorName{Scope: "stock", Topic: "orders"}
	var refused *pgconn.PgError
	if _, err := ops.PauseCursor(t.Context(), stale, ops.By{Reason: "why"}, at); !errors.As(err, &refused) || refused.Code != "25006" {
		t.Fatalf("on a standby: %v", err)
	}
	if _, err := ops.PauseCursor(t.Context(), stale, ops.By{Reason: "why"}, at); err != nil {
		t.Errorf("the next decision: %v", err)
	}
}

// Without a partition a whole topic is retired, and without a topic the whole scope, in one
// decision. A pause of the whole topic holds each partition of it, and no other topic.
func TestWholeTopics(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cursors(t, pool, 1)
	exec(t, pool, `insert into onlyonce.leases (name, epoch) values ('a', 1), ('b', 1);
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
  select l.id,
         'stock',
         case l.name when 'a' then 'orders' else 'other' end,
         1,
         'g1',
         'c1',
         5,
         5,
         'earliest'
    from onlyonce.leases l where l.name in ('a', 'b')`)
	by := ops.By{Reason: "why"}
	paused := func() string {
		return one[string](t, pool, `select string_agg(c.topic || c.partition, ' ' order by c.topic, c.partition) from onlyonce.cursors c
   where exists (select from onlyonce.pauses u
                  where u.scope = c.scope and u.topic in ('', c.topic) and u.partition in (-1, c.partition))`)
	}
	topic := ops.CursorName{Scope: "stock", Topic: "orders", Partition: -1}
	d, err := ops.PauseCursor(t.Context(), pool, by, topic)
	good := err == nil &&
		d.Cursors == 2 &&
		d.Topic != nil &&
		d.Partition == nil &&
		paused() == "orders0 orders1"
	if !good {
		t.Fatalf("%+v, %v: %s", d, err, paused())
	}
	if _, err = ops.ResumeCursor(t.Context(), pool, by, ops.CursorName{Scope: "stock", Topic: "orders"}); !errors.Is(err, ops.ErrNothing) ||
		!strings.Contains(err.Error(), "topic orders of scope stock as a whole") {
		t.Error(err)
	}
	if d, err = ops.ResumeCursor(t.Context(), pool, by, topic); err != nil || d.Was == nil {
		t.Errorf("%+v, %v", d, err)
	}
	in := ops.RetireInput{CursorName: topic}
	if in.Shown, err = ops.RetireCursor(t.Context(), pool, ops.By{DryRun: true}, in); err != nil || len(in.Shown.Partitions) != 2 {
		t.Fatalf("%+v, %v", in.Shown, err)
	}
	exec(t, pool, `update onlyonce.leases set epoch = epoch + 1 where name = 'a'`)
	if _, err := ops.RetireCursor(t.Context(), pool, by, in); !errors.Is(err, ops.ErrChanged) {
		t.Errorf("one has another owner: %v", err)
	}
	in.Shown = nil
	retired := func() string {
		return one[string](
			t,
			pool,
			`select string_agg(topic || partition, ' ' order by topic, partition) from onlyonce.cursors where retired_at is not null`,
		)
	}
	if c, err := ops.RetireCursor(t.Context(), pool, by, in); err != nil || len(c.Partitions) != 2 || retired() != "orders0 orders1" {
		t.Fatalf("%+v, %v: %s", c, err, retired())
	}
	in.CursorName = ops.CursorName{Scope: "stock"}
	c, err := ops.RetireCursor(t.Context(), pool, by, in)
	good = err == nil &&
		len(c.Partitions) == 1 &&
		*c.Partitions[0].Parked == 0 &&
		retired() == "orders0 orders1 other1"
	if !good {
		t.Fatalf("%+v, %v: %s", c, err, retired())
	}
	if _, err := ops.RetireCursor(t.Context(), pool, by, in); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("none is left: %v", err)
	}
}
