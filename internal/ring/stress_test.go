package ring_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// rotations is how many segments each of the three isolation levels empties: more than three turns
// of the ring.
const rotations = 20

// Producers of all kinds, lanes that move, three rotators that take the lease from each other: no
// committed call is emptied before a lane has seen it, and no call that was rolled back is seen.
func TestO8NothingIsEmptiedUnseen(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) { stress(t, level) })
	}
}

type ledger struct {
	mu                sync.Mutex
	committed, undone map[string]bool
	seen              map[string]int
}

func stress(t *testing.T, level pgx.TxIsoLevel) {
	r := newRig(t)
	r.sink("payments")
	book := &ledger{committed: map[string]bool{}, undone: map[string]bool{}, seen: map[string]int{}}
	ctx, stop := context.WithTimeout(context.Background(), 2*patience)
	defer stop()
	var emptied, refused atomic.Int64
	var rotating, producing sync.WaitGroup
	var outcomes sync.Mutex
	came := map[ring.Action]int{}
	fail := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			t.Errorf("%s: %v", what, err)
			stop()
		}
	}
	for range 3 {
		cfg := quick()
		cfg.Timeout = patience // this process is busy
		cfg.Hooks.Stepped = func(o ring.StepResult) {
			if o.Action == ring.Truncated && emptied.Add(1) >= rotations {
				stop()
			}
		}
		x, err := ring.New(r.pool, ring.Outbox(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		rotating.Go(func() {
			for ctx.Err() == nil {
				out, err := x.Step(ctx)
				fail("rotating", err)
				outcomes.Lock()
				came[out.Action]++
				outcomes.Unlock()
				switch {
				case out.Action == ring.Standby:
					_, _ = r.pool.Exec(ctx, `select pg_sleep(0.02)`)
				case !out.Changed():
					_, _ = r.pool.Exec(ctx, `select pg_sleep(0.002)`)
				}
			}
		})
	}
	rotating.Go(func() { // take-overs
		for ctx.Err() == nil {
			_, err := r.pool.Exec(ctx, `update onlyonce.leases set until = clock_timestamp() where name = 'ring/outbox'`)
			if err == nil {
				_, err = r.pool.Exec(ctx, `select pg_sleep(0.3 * random())`)
			}
			fail("taking over", err)
		}
	})
	for range 4 {
		producing.Go(func() {
			for ctx.Err() == nil {
				err := r.produce(book, level)
				if guard.SQLState(err) == "40001" || guard.SQLState(err) == "40P01" {
					refused.Add(1)
					err = nil
				}
				fail("producing", err)
			}
		})
	}
	rotating.Go(func() {
		for ctx.Err() == nil {
			keys, err := r.pass()
			fail("passing", err)
			book.see(keys)
			// What scans the log keeps segments from being emptied.
			_, err = r.pool.Exec(ctx, `select pg_sleep(0.005)`)
			fail("passing", err)
		}
	})
	producing.Wait()
	rotating.Wait()
	if emptied.Load() < rotations {
		t.Fatalf("only %d segments were emptied: %v", emptied.Load(), r.row())
	}
	for range 2 {
		keys, err := r.pass()
		if err != nil {
			t.Fatal(err)
		}
		book.see(keys)
	}
	for key := range book.committed {
		if book.seen[key] == 0 {
			t.Errorf("call %s was committed, and emptied unseen (in slot %d now)", key, r.stands(key))
		}
	}
	for key := range book.seen {
		if book.undone[key] {
			t.Errorf("call %s was rolled back, and seen", key)
		}
	}
	t.Logf("%d segments emptied, %d calls, %d transactions refused, steps %v", emptied.Load(), len(book.committed), refused.Load(), came)
}

func (b *ledger) see(keys []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		b.seen[k]++
	}
}

var errUndone = errors.New("undone")

// produce is one transaction with some calls, which pauses at points that may cause harm.
func (r *rig) produce(book *ledger, level pgx.TxIsoLevel) error {
	ctx := context.Background() // not cut off: its end would be unknown
	var keys []string
	err := pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
		pause := func() error {
			if rand.IntN(3) > 0 {
				return nil
			}
			_, err := tx.Exec(ctx, `select pg_sleep($1)`, rand.Float64()*0.01)
			return err
		}
		if rand.IntN(2) == 0 {
			// The snapshot, above READ COMMITTED.
			if _, err := tx.Exec(ctx, `select 1`); err != nil {
				return err
			}
		}
		if err := pause(); err != nil {
			return err
		}
		for range 1 + rand.IntN(3) {
			key := uuid.NewString()
			sink := "payments"
			var err error
			if rand.IntN(2) == 0 {
				_, err = tx.Exec(ctx, enqueueSQL, key, sink)
			} else {
				_, err = tx.Exec(ctx, `select onlyonce.enqueue($1, 't', 's', $2, 'n', 'POST', '/', '{}', '{}', 'x')`, key, sink)
			}
			if err == nil {
				err = pause()
			}
			if err != nil {
				return fmt.Errorf("enqueue: %w", err)
			}
			keys = append(keys, key)
		}
		if rand.IntN(10) == 0 {
			return errUndone
		}
		return nil
	})
	book.mu.Lock()
	defer book.mu.Unlock()
	for _, k := range keys {
		if err == nil {
			book.committed[k] = true
		} else {
			book.undone[k] = true
		}
	}
	if errors.Is(err, errUndone) {
		return nil
	}
	return err
}
