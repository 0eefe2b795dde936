package outbox

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// Clocks run in their order, each once if it is due, up to the first error; then all of them wait.
func TestClocks(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var ran []string
	fails := errors.New("no connection")
	one := func(name string, at time.Time, err error) pace.Clock {
		return pace.Clock{Due: func(time.Time) time.Time { return at }, Run: func() error { ran = append(ran, name); return err }}
	}
	c := clocks{waits: backoff.NewExponentialBackOff(), all: pace.Clocks{
		one("first", now, nil),
		one("idle", never, nil),
		one("at once", time.Time{}, fails),
		one("after the error", now, nil),
		one("later", now.Add(time.Hour), nil),
	}}
	if err := c.run(now); !errors.Is(err, fails) || !slices.Equal(ran, []string{"first", "at once"}) {
		t.Errorf("%v, after %v", err, ran)
	}
	if at := c.next(now); !at.IsZero() {
		t.Errorf("the next one is due at %v", at)
	}
	c.postpone(emitter{log: slog.New(slog.DiscardHandler)}, fails)
	if at := c.next(now); !at.Equal(c.retryAt) || !at.After(now) {
		t.Errorf("after an error the next one is due at %v", at)
	}
}

// A statement's arguments go by name, a name may stand twice, and none may be missing.
func TestStatement(t *testing.T) {
	t.Parallel()
	s := newStatement(`select @b::int, @a, f(@b)`)
	if s.sql != `select $1::int, $2, f($1)` || !slices.Equal(s.args(pgx.NamedArgs{"a": 1, "b": 2, "c": 3}), []any{2, 1}) {
		t.Errorf("%s with %v", s.sql, s.names)
	}
	defer func() {
		if recover() == nil {
			t.Error("a missing argument becomes NULL")
		}
	}()
	s.args(pgx.NamedArgs{"a": 1})
}

// After an error of the database, whichever it is, a relay's lane is due again within a second
// (T12).
func TestT12LaneTriesEachSecond(t *testing.T) {
	t.Parallel()
	sink := &relaySink{
		cfg:  RelayConfig{LeaseTTL: 30 * time.Second},
		gate: gate.New(8, time.Second),
		emit: emitter{log: slog.New(slog.DiscardHandler)},
	}
	o := newLaneOwner(t.Context(), sink, &lease.Lease{Sent: time.Now()}, 0)
	for range 50 {
		if err := o.handleDBError(errors.New("FATAL: no more connections allowed (SQLSTATE 08P01)")); err != nil {
			t.Fatal(err)
		}
		if d := time.Until(o.clocks.retryAt); d > time.Second {
			t.Fatalf("it waits for %v", d)
		}
	}
}
