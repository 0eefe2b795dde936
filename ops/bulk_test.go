package ops_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A bulk act that is stopped, or whose context ends, leaves whole transactions, and an audit row
// that counts them.
func TestU3BulkEndsInTheMiddle(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	parks(t, pool, 1600)
	in := ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Kind: "message", Scope: "stock"}, All: true}
	shown, err := ops.Redrive(t.Context(), pool, ops.By{DryRun: true}, in)
	good := err == nil &&
		shown.Count == 1600 &&
		len(shown.Rows) == 5 &&
		shown.AuditID == 0
	if !good {
		t.Fatalf("%+v, %v", shown, err)
	}
	in.Shown = shown
	in.Progress = func(ops.ParkedChange) bool { return false }
	done, err := ops.Redrive(t.Context(), pool, ops.By{Actor: "ann", Reason: "first"}, in)
	if err != nil || done.Changed != 500 || !done.Stopped {
		t.Fatalf("%+v, %v", done, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	in.Progress = func(b ops.ParkedChange) bool {
		if b.Changed == 500 {
			cancel()
		}
		return true
	}
	in.Shown = nil
	if in.Shown, err = ops.Redrive(t.Context(), pool, ops.By{DryRun: true}, in); err != nil || in.Shown.Count != 1100 {
		t.Fatalf("%+v, %v", in.Shown, err)
	}
	done, err = ops.Redrive(ctx, pool, ops.By{Actor: "ann", Reason: "second"}, in)
	if !errors.Is(err, context.Canceled) || done.Changed != 500 || !done.Stopped {
		t.Fatalf("%+v, %v", done, err)
	}
	for reason, want := range map[string]string{"first": "1 500 500", "second": "1 500 500"} {
		if got := one[string](
			t,
			pool,
			`
select concat_ws(' ', count(*), max(detail->>'changed'), max(jsonb_array_length(detail->'ids')))
  from onlyonce.audit where reason = $1`,
			reason,
		); got != want {
			t.Errorf("%s: %s", reason, got)
		}
	}
	if n := one[int](t, pool, `select count(*) from onlyonce.parked where state = 'waiting'`); n != 600 {
		t.Errorf("%d rows wait", n)
	}
}

func TestBulkRefuses(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	parks(t, pool, 1)
	all := ops.ParkedFilter{Kind: "message", Scope: "stock"}
	for name, c := range map[string]struct {
		in   ops.ParkedInput
		by   ops.By
		kind error
	}{
		"an id":   {ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Kind: "message", ID: 1}}, ops.By{DryRun: true}, ops.ErrInvalid},
		"a limit": {ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Scope: "stock", Limit: 1}}, ops.By{DryRun: true}, ops.ErrInvalid},
		"new keys": {
			ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Kind: "call", Scope: "stock"}, NewKey: true},
			ops.By{DryRun: true},
			ops.ErrInvalid,
		},
		"no reason":      {ops.ParkedInput{ParkedFilter: all, Shown: &ops.ParkedChange{Count: 1, UpTo: 1}}, ops.By{}, ops.ErrInvalid},
		"nothing so far": {ops.ParkedInput{ParkedFilter: all, Shown: &ops.ParkedChange{Count: 1}}, ops.By{Reason: "why"}, ops.ErrRefused},
		"another error": {
			ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Kind: "message", Scope: "stock", ErrorPrefix: "%"}},
			ops.By{DryRun: true},
			ops.ErrRefused,
		},
	} {
		c.in.All = true
		if _, err := ops.Redrive(t.Context(), pool, c.by, c.in); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ops.Discard(
		t.Context(),
		pool,
		ops.By{DryRun: true},
		ops.ParkedInput{ParkedFilter: all, VerifiedApplied: true},
	); !errors.Is(err, ops.ErrInvalid) {
		t.Error(err)
	}
	if n := one[int](
		t,
		pool,
		`select (select count(*) from onlyonce.audit) + (select count(*) from onlyonce.parked where state <> 'waiting')`,
	); n != 0 {
		t.Errorf("%d rows were changed", n)
	}
}
