package ops_test

import (
	"errors"
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
	if err != nil || seen.AuditID != 0 || seen.Parked != 2 || seen.Before.RetiredAt != nil || seen.After.RetiredAt == nil {
		t.Fatalf("%+v, %v", seen, err)
	}
	if one[bool](t, pool, `select exists (select from onlyonce.cursors where retired_at is not null)`) {
		t.Fatal("a dry run has retired the cursor")
	}
	in.Shown = seen
	done, err := ops.RetireCursor(t.Context(), pool, ops.By{Actor: "ann", Reason: "the topic is gone"}, in)
	if err != nil || done.AuditID == 0 || done.After.RetiredAt == nil || done.After.Epoch != seen.Before.Epoch+1 || done.After.Position != 5 {
		t.Fatalf("%+v, %v", done, err)
	}
	if got := one[string](t, pool, `select concat_ws(' ', actor, action, reason) from onlyonce.audit`); got != "ann cursor retire the topic is gone" {
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
	if one[bool](t, pool, `select exists (select from onlyonce.cursors where retired_at is not null) or exists (select from onlyonce.audit)`) {
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
