package consumer

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer/internal/attemptlock"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
)

// withoutDatabase is what a worker owns whose database does not answer. The message at offset 7 has
// counted attempts.
func withoutDatabase(t *testing.T) ownership {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/nothing")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c := &Consumer{cfg: Config{Scope: "s", Logger: slog.New(slog.DiscardHandler)}.withDefaults(), shared: &shared{}}
	c.pool = primary.Of(pool, c.cfg.Logger)
	return ownership{c: c, cur: &cursor{suspects: []int64{7}}, state: &partitionState{}, brake: newBrake(c.cfg.Brake)}
}

// F9: each function that takes the lock of attempts releases it, also if the attempt is not made
// because the database does not answer: all consumers of the process wait for the lock.
func TestF9LockIsReleasedOnEachPath(t *testing.T) {
	t.Parallel()
	own := withoutDatabase(t)
	suspect := &Message{Offset: 7}
	other := &Message{Offset: 8}
	log := func() *worker {
		w := &worker{applier: applier{engine: engine{ownership: own}}}
		w.fenceOf = w.positionFence
		w.reader = &reader{}
		return w
	}
	for name, begin := range map[string]func(until stop) error{
		"a batch":                       func(until stop) error { return log().handleBatch(until, []*Message{other, other}, 9) },
		"a message":                     func(until stop) error { return log().handleAlone(until, other, 9) },
		"one that may kill its process": func(until stop) error { return log().handleAlone(until, suspect, 8) },
		"ids":                           func(until stop) error { return log().identifyCounted(until.working, []*Message{other}) },
		"ids that may kill the process": func(until stop) error { return log().identifyCounted(until.working, []*Message{suspect}) },
		"a parked row": func(until stop) error {
			r := &retrier{engine: engine{ownership: own}, retryAlone: true}
			_, err := r.retryNext(until)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := process.With(t.Context(), &process.Process{})
			working, giveUp := context.WithCancel(ctx)
			giveUp()
			if err := begin(stop{taking: ctx, working: working}); err == nil {
				t.Fatal("it succeeds without a database")
			}
			release, err := attemptlock.Of(ctx).Acquire(ctx, true, time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			release()
		})
	}
}

// D2: a count that cannot be taken back because the database is away is owed, and taken back with
// the next attempt. Otherwise a message whose attempts the server cuts short is given up as one
// that ends processes.
func TestD2CountIsOwedUntilItIsTakenBack(t *testing.T) {
	t.Parallel()
	own := withoutDatabase(t)
	t1 := tries{ap: &applier{engine: engine{ownership: own}}, m: &Message{Offset: 7}, exclusive: true}
	t1.ended(errors.New("the server is away"))
	if !t1.owed {
		t.Error("the attempt stays counted, and nobody takes it back")
	}
	t2 := tries{ap: t1.ap, m: t1.m, exclusive: true}
	t2.ended(nil)
	if t2.owed {
		t.Error("an attempt that succeeded is taken back")
	}
}
