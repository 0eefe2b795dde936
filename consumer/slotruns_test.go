package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// halfDone handles 50 messages of five ordering keys except offset 32 and those of its key that
// come later, and stops. The position is 32 then, and what is above is done but for 37, 42 and 47.
func (r *rig) halfDone(cfg consumer.Config) {
	r.t.Helper()
	r.rounds(5, 50)
	cfg.DrainTimeout = 10 * time.Millisecond
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 32 {
			<-ctx.Done()
			return ctx.Err()
		}
		return effect(ctx, tx, m)
	}, cfg)
	until(r.t, "all others are done", func() bool { return r.count(`select count(*) from effects`) == 46 })
	stop()
	if p := r.position(0); p != 32 {
		r.t.Fatalf("position %d", p)
	}
}

// applied fails the test unless each offset has as many effects as want says.
func (r *rig) applied(want func(offset int64) int) {
	r.t.Helper()
	for o := range int64(50) {
		if n := r.count(`select count(*) from effects where off = $1`, o); n != want(o) {
			r.t.Errorf("offset %d has %d effects, want %d", o, n, want(o))
		}
	}
}

// slotPositions is slotConfig without keys, so that only the rows of onlyonce.done prevent doubles,
// and with a message in each transaction.
func slotPositions() consumer.Config {
	cfg := slotConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	cfg.BatchSize = 1
	return cfg
}

var place = ops.CursorName{Scope: "stock", Topic: "orders"}

// C7: a replay interrupts work of which something is done above the position. When it ends, that is
// still done: with slots, and with a process that has one transaction at a time.
func TestC7ReplayComesBack(t *testing.T) {
	for _, after := range []int{4, 1} {
		for _, to := range []int64{10, 32} {
			t.Run(fmt.Sprintf("concurrency %d, to %d", after, to), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 1)
				cfg := slotPositions()
				r.halfDone(cfg)
				if _, err := ops.Replay(
					t.Context(),
					r.pool,
					ops.By{Reason: "test"},
					ops.ReplayInput{CursorName: place, From: 5, To: to},
				); err != nil {
					t.Fatal(err)
				}
				cfg.Concurrency = after
				stop := r.start(effect, cfg)
				r.reaches(0, 50)
				stop()
				r.applied(func(o int64) int {
					if o >= 5 && o < to {
						return 2
					}
					return 1
				})
			})
		}
	}
}

// C7: an operator who sets the position at or above where it was keeps what is done above it. One
// who sets it back has everything from there on handled again.
func TestC7AdoptKeepsWhatIsDone(t *testing.T) {
	for at, want := range map[int64]func(o int64) int{
		32: func(int64) int { return 1 },
		33: func(o int64) int {
			if o == 32 {
				return 0
			}
			return 1
		},
		30: func(o int64) int {
			good := o >= 30 && o != 32 && o != 37 && o != 42 && o != 47
			if !good {
				return 1
			}
			return 2
		},
	} {
		t.Run(fmt.Sprintf("at %d", at), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.halfDone(slotPositions())
			if _, err := ops.AdoptCursor(
				t.Context(),
				r.pool,
				ops.By{Reason: "test"},
				ops.AdoptInput{Scope: place.Scope, Topic: place.Topic, Partition: new(int32), At: strconv.FormatInt(at, 10)},
			); err != nil {
				t.Fatal(err)
			}
			stop := r.start(effect, slotPositions())
			r.reaches(0, 50)
			stop()
			r.applied(want)
		})
	}
}

// C8: the log is cut off above the position and written anew, where something was done. The
// partition halts, and passes over none of the new records.
func TestC8TruncatedAboveThePosition(t *testing.T) {
	for _, records := range []int{5, 30} {
		t.Run(fmt.Sprint(records), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.halfDone(slotPositions())
			r.log.Truncate(0, 35)
			for n := range records {
				r.log.Append(0, fmt.Sprintf("new-%d", n))
			}
			stop := r.start(effect, slotPositions())
			h := r.halted()
			stop()
			if h.Reason != consumer.HaltTruncated {
				t.Errorf("halt: %v", h)
			}
			if p := r.position(0); p > 35 {
				t.Errorf("the position is %d: new records were passed over", p)
			}
		})
	}
}

// C5: a slot's transaction reaches the server long after its owner gave it up, made it again on
// another connection, and moved the position over it. It does not commit, whatever its isolation
// level: the row that stops it outlives it. Behind it the rows go.
func TestC5LateSlotDoesNotCommit(t *testing.T) {
	const heldUp = 5
	for _, level := range []string{"read committed", "repeatable read"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			var session, late atomic.Int32
			hold := make(chan struct{})
			w := &pgtest.Wire{Statement: consumer.FenceSlotSQL, At: func(n int32) pgtest.Cut {
				if n != heldUp {
					return pgtest.Pass
				}
				late.Store(session.Load())
				return pgtest.Held
			}}
			pool := pgtest.Wired(t, r.pool, pgx.QueryExecModeCacheStatement, w, hold)
			cfg := slotPositions()
			cfg.OnBegin = func(ctx context.Context, tx consumer.Tx) error {
				tx.Queue(`set transaction isolation level ` + level)
				var pid int32
				err := tx.QueryRow(ctx, `select pg_backend_pid() from onlyonce.done union all select pg_backend_pid() limit 1`).Scan(&pid)
				session.Store(pid)
				return err
			}
			stop := r.startOn(r.src, pool, queued, cfg)
			// One ordering key: so no other slot works while one is held up.
			n := 0
			produce := func(more int) {
				for range more {
					r.log.AppendMessage(0, &consumer.Message{Key: []byte("k"), Value: []byte(fmt.Sprint("m", n))})
					n++
				}
				r.reaches(0, int64(n))
			}
			produce(10)
			if w.Cuts.Load() != 1 {
				t.Fatalf("%d transactions were held up", w.Cuts.Load())
			}
			for range 40 { // each is a sweep of its own
				produce(1)
			}
			close(hold)
			until(t, "the late transaction is over", func() bool {
				return r.count(`select count(*) from pg_stat_activity where pid = $1`, late.Load()) == 0
			})
			until(t, "old rows are gone", func() bool {
				produce(1)
				return r.count(`select count(*) from onlyonce.done where "offset" < 45`) == 0
			})
			stop()
			if doubled := r.count(`select count(*) from (select from effects group by off having count(*) > 1) d`); doubled != 0 {
				t.Errorf("%d messages have two effects", doubled)
			}
			if all := r.count(`select count(distinct off) from effects`); all != n {
				t.Errorf("%d of %d messages were applied", all, n)
			}
		})
	}
}

// C5: a partition without messages does not keep the rows of its last ones.
func TestC5IdlePartitionKeepsNoRows(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.rounds(5, 30)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 17 {
			return errBoom
		}
		return effect(ctx, tx, m)
	}, slotConfig())
	r.reaches(0, 30)
	until(t, "the rows are deleted", func() bool {
		return r.count(`select count(*) from onlyonce.done`) == 0
	})
	stop()
}

// C7: what slots have counted, an owner with one transaction at a time goes on counting.
func TestC7AttemptsGoOnWithOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.rounds(5, 5) // the last one fails: nothing above it is done, so the next owner needs no slots
	var mu sync.Mutex
	var alone []int // attempts at the message that fails, of those that count
	fails := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset != 4 {
			return effect(ctx, tx, m)
		}
		mu.Lock()
		defer mu.Unlock()
		if m.Attempt > 0 {
			alone = append(alone, m.Attempt)
		}
		return errBoom
	}
	cfg := slotConfig()
	cfg.MaxAttempts = 2
	cfg.Backoff.Min = 2 * patience
	cfg.Backoff.Max = 2 * patience
	stop := r.start(fails, cfg)
	until(t, "an attempt at the message alone", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(alone) > 0 && r.count(`select count(*) from effects`) == 4
	})
	stop()
	cfg.Concurrency = 1
	stop = r.start(fails, cfg)
	r.reaches(0, 5)
	stop()
	if want := []int{1, 2}; !slices.Equal(alone, want) {
		t.Errorf("attempts %v, want %v", alone, want)
	}
	r.once(slices.Delete(values, 4, 5)...)
}

// C6: the window is full, because one message takes long. Status and the hook name it, and the
// partition goes on when it is done.
func TestC6WindowFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.rounds(5, 100)
	cfg := slotConfig()
	cfg.BatchSize = 1
	cfg.Window = 20
	r.src.FetchLimit = 5
	release := make(chan struct{})
	full := make(chan consumer.WindowFullEvent, 10)
	cfg.Hooks.WindowFull = func(f consumer.WindowFullEvent) { full <- f }
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 7 {
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return effect(ctx, tx, m)
	}, cfg)
	var f consumer.WindowFullEvent
	select {
	case f = <-full:
	case <-time.After(patience):
		pgtest.GaveUp(t, patience, "the hook")
	}
	good := f.Blocked != nil &&
		f.Blocked.Offset == 7 &&
		f.Partition == 0 &&
		len(f.Blocked.Key) == 32 &&
		f.Blocked.Done != 0
	if !good {
		t.Errorf("hook: %+v", f)
	}
	status, err := r.consumer.Status(t.Context())
	good = err == nil &&
		len(status) == 1 &&
		status[0].BlockedBy != nil &&
		status[0].BlockedBy.Offset == 7
	if !good {
		t.Errorf("status: %+v, %v", status, err)
	}
	until(t, "the database names it", func() bool {
		return r.count(`select count(*) from onlyonce.owners o, jsonb_array_elements(o.partitions) p
			where p -> 'blocked_by' ->> 'offset' = '7'`) > 0
	})
	if top := r.count(`select max(off) from effects`); top > 7+20+5 {
		t.Errorf("offset %d was handled: the window ends before it", top)
	}
	close(release)
	r.reaches(0, 100)
	stop()
	r.once(values...)
	r.inOrder()
}
