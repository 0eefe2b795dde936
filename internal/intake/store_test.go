package intake_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// oneBad is a way in whose transactions fail because of one event, if they have several. Alone, an
// event fails as its entry in alone says.
type oneBad struct {
	bad   string
	alone map[string]error
}

func (w oneBad) Claim(_ context.Context, tx *guard.Tx, set []*intake.Item, _ time.Duration) ([]intake.Found, error) {
	intake.Begin(tx, time.Minute, time.Minute)
	if len(set) == 1 && w.alone[set[0].ID] != nil {
		return nil, w.alone[set[0].ID]
	}
	return make([]intake.Found, len(set)), nil
}

func (w oneBad) Apply(_ context.Context, _ *guard.Tx, it *intake.Item) error {
	if it.ID == w.bad {
		return fmt.Errorf("%w: %s", intake.ErrOne, it.ID)
	}
	return nil
}

func (oneBad) Aside(context.Context, *guard.Tx, []*intake.Item) error { return nil }

func (oneBad) Refuses(error) string { return "" }

// Q4, W9: a set that fails because of one event is stored one by one: each event has an outcome or
// an error, and never both. What the run of the set said of it does not count.
func TestQ4OutcomeOrError(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	away := errors.New("the database is away")
	for name, c := range map[string]struct {
		alone   map[string]error
		ordered bool
		stored  string
	}{
		"only the bad one is not stored":          {nil, false, "ac"},
		"one waits for a copy":                    {map[string]error{"a": intake.ErrPending}, false, "c"},
		"in order, nothing is stored behind it":   {nil, true, "a"},
		"in order, nothing behind one that waits": {map[string]error{"a": intake.ErrPending}, true, ""},
		"the database is away by then":            {map[string]error{"a": away}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &intake.Store[*intake.Item]{
				Intake: intake.New(intake.Intake{
					Pool: primary.Of(pool, nil), Topic: "orders", Partitions: 1, CommitTimeout: time.Minute,
					Logger: slog.New(slog.DiscardHandler),
				}),
				Way: oneBad{"b", c.alone}, Ordered: c.ordered, Timeout: time.Minute, Wait: time.Minute,
			}
			set := []*intake.Item{item("a", nil, ""), item("b", nil, ""), item("c", nil, "")}
			s.Store(t.Context(), set)
			stored := ""
			for _, it := range set {
				if (it.Outcome == 0) != (it.Err != nil) {
					t.Errorf("%s has outcome %d and error %v", it.ID, it.Outcome, it.Err)
				}
				if it.Err == nil {
					stored += it.ID
				}
			}
			if stored != c.stored {
				t.Errorf("stored: %q, want %q", stored, c.stored)
			}
		})
	}
}
