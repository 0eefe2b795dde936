package consumer

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer/internal/attemptlock"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
)

// F9: each function that takes the lock of attempts releases it, also if the attempt is not made
// because the database does not answer: all consumers of the process wait for the lock.
func TestF9LockIsReleasedOnEachPath(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/nothing")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c := &Consumer{cfg: Config{Scope: "s", Logger: slog.New(slog.DiscardHandler)}.withDefaults(), shared: &shared{}}
	c.pool = primary.Of(pool, c.cfg.Logger)
	own := ownership{c: c, cur: &cursor{suspects: []int64{7}}, state: &partitionState{}, brake: newBrake(c.cfg.Brake)}
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
