package ops_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A replay of several partitions is one transaction, one audit row and one number: all of them are
// replayed, or none (F10).
func TestF10ReplayOfSeveral(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cursors(t, pool, 3) // at offset 5
	in := ops.ReplayInput{CursorName: ops.CursorName{Scope: "stock", Topic: "orders", Partition: -1},
		Ranges: []ops.ReplayRange{{"orders", 2, 1, 4}, {"orders", 0, 2, 0}}}
	seen, err := ops.Replay(t.Context(), pool, ops.By{DryRun: true}, in)
	good := err == nil &&
		seen.AuditID == 0 &&
		len(seen.Partitions) == 2 &&
		seen.Partitions[0].Partition == 0 &&
		seen.Partitions[0].To == 5
	if !good {
		t.Fatalf("%+v, %v", seen, err)
	}
	in.Shown = seen
	done, err := ops.Replay(t.Context(), pool, ops.By{Reason: "the handler was wrong"}, in)
	if err != nil || done.AuditID == 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	for _, p := range done.Partitions {
		if p.After.Replay != 1 || *p.After.ReplayUntil != p.To || p.After.Position != p.From {
			t.Errorf("%+v", p.After)
		}
	}
	if _, err := ops.Replay(t.Context(), pool, ops.By{Reason: "again"}, in); !errors.Is(err, ops.ErrRefused) &&
		!errors.Is(err, ops.ErrChanged) {
		t.Errorf("a replay is under way: %v", err)
	}
	in.Shown = nil
	in.Ranges = []ops.ReplayRange{{"orders", 1, 0, 0}, {"orders", 2, 0, 0}}
	if _, err := ops.Replay(t.Context(), pool, ops.By{Reason: "again"}, in); !errors.Is(err, ops.ErrRefused) ||
		!strings.Contains(err.Error(), "orders/2: ") {
		t.Errorf("a replay of one is under way: %v", err)
	}
	if c, err := cursorsOf(t, pool); err != nil || c[1].ReplayUntil != nil {
		t.Errorf("a part of it was begun: %+v, %v", c, err)
	}
}

// Ranges that do not go together are refused before the database is asked.
func TestReplayOfSeveralRefuses(t *testing.T) {
	t.Parallel()
	all := ops.CursorName{Scope: "stock", Topic: "orders", Partition: -1}
	for want, in := range map[string]ops.ReplayInput{
		"not with `Partition`": {
			CursorName: ops.CursorName{Scope: "stock", Topic: "orders"},
			Ranges:     []ops.ReplayRange{{"orders", 0, 0, 0}},
		},
		"is another one":          {CursorName: all, Ranges: []ops.ReplayRange{{"bills", 0, 0, 0}}},
		"orders/1 is there twice": {CursorName: all, Ranges: []ops.ReplayRange{{"orders", 1, 0, 0}, {"orders", 1, 2, 0}}},
		"orders/1: `To`":          {CursorName: all, Ranges: []ops.ReplayRange{{"orders", 1, 3, 3}}},
	} {
		if err := in.Check(); !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
