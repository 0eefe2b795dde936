package ops_test

import (
	"errors"
	"testing"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A replay sets the position back, and remembers where the work was interrupted (F10).
func TestReplay(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cursors(t, pool, 1)
	in := ops.ReplayInput{CursorName: ops.CursorName{Scope: "stock", Topic: "orders"}, From: 2, To: 4}
	seen, err := ops.Replay(t.Context(), pool, ops.By{DryRun: true}, in)
	good := err == nil &&
		seen.AuditID == 0 &&
		seen.From == 2 &&
		seen.To == 4 &&
		seen.Resume == 5
	if !good {
		t.Fatalf("%+v, %v", seen, err)
	}
	if c, err := cursorsOf(t, pool); err != nil || c[0].Position != 5 || c[0].ReplayUntil != nil {
		t.Fatalf("a dry run wrote: %+v, %v", c, err)
	}
	in.Shown = seen
	done, err := ops.Replay(t.Context(), pool, ops.By{Reason: "the handler was wrong"}, in)
	good = err == nil &&
		done.AuditID != 0 &&
		done.After.Position == 2 &&
		*done.After.ReplayUntil == 4 &&
		*done.After.ReplayResume == 5 &&
		done.After.Replay == 1
	if !good {
		t.Fatalf("%+v, %v", done, err)
	}
	in.Shown = nil
	if _, err := ops.Replay(t.Context(), pool, ops.By{Reason: "again"}, in); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("a replay is under way: %v", err)
	}
}

// What is not handled yet, or is parked, is not replayed: it would be applied without a replay, or
// twice.
func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cursors(t, pool, 1) // at offset 5
	at := ops.CursorName{Scope: "stock", Topic: "orders"}
	replay := func(in ops.ReplayInput) error {
		_, err := ops.Replay(t.Context(), pool, ops.By{Reason: "why"}, in)
		return err
	}
	for name, c := range map[string]struct {
		in   ops.ReplayInput
		kind error
	}{
		"from the position on": {ops.ReplayInput{CursorName: at, From: 5}, ops.ErrRefused},
		"to behind it":         {ops.ReplayInput{CursorName: at, From: 1, To: 6}, ops.ErrRefused},
		"nothing":              {ops.ReplayInput{CursorName: at, From: 3, To: 3}, ops.ErrInvalid},
		"below zero":           {ops.ReplayInput{CursorName: at, From: -1}, ops.ErrInvalid},
		"no such cursor":       {ops.ReplayInput{CursorName: ops.CursorName{Scope: "stock", Topic: "other"}, From: 1}, ops.ErrNotFound},
	} {
		if err := replay(c.in); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	parks(t, pool, 1) // offset 1
	done, err := ops.Replay(t.Context(), pool, ops.By{Reason: "why"}, ops.ReplayInput{CursorName: at, From: 0, To: 3})
	if err != nil || done.Parked != 1 {
		t.Errorf("a message of the range is parked: %+v, %v", done, err)
	}
	if err := replay(ops.ReplayInput{CursorName: at, From: 2, To: 3}); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("a replay is under way: %v", err)
	}
}
