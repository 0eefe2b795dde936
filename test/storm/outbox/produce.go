package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/callcheck"
	"github.com/onlyonce/onlyonce/test/fleet"
)

// orderingKeys is how many ordering keys each sink has.
const orderingKeys = 1000

// producer commits calls in transactions, several at once.
type producer struct {
	pool  *pgxpool.Pool
	total int64
	many  int
	seed  uint64

	taken   atomic.Int64 // calls that a transaction was begun for
	written atomic.Int64 // calls that were committed
	gate    atomic.Int64 // how many may be

	mu    sync.Mutex
	kinds map[string]int // transactions by their special property
}

func (p *producer) note(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kinds[kind]++
}

// let allows n calls to be committed.
func (p *producer) let(n int64) { p.gate.Store(min(max(n, p.gate.Load()), p.total)) }

// run commits all of them.
func (p *producer) run(ctx context.Context) error {
	var all sync.WaitGroup
	errs := make([]error, p.many)
	for i := range p.many {
		all.Go(func() {
			w := &writer{producer: p, name: fmt.Sprintf("p%d", i), random: rand.New(rand.NewPCG(p.seed, uint64(i)))}
			errs[i] = w.run(ctx)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// writer is one of those that commit.
type writer struct {
	*producer
	name   string
	random *rand.Rand
	last   int // transaction
}

// transaction is the plan of one transaction.
type transaction struct {
	id       string
	calls    []callcheck.Planned
	oneByOne bool
	rollBack bool
	// One more call is written and rolled back to a savepoint; one is written in a savepoint that
	// is kept.
	savepoint  bool
	repeatable bool
	hold       time.Duration // with everything written, before the end
}

func (w *writer) run(ctx context.Context) error {
	for ctx.Err() == nil {
		n := int64(1 + w.random.IntN(5))
		at := w.taken.Add(n) - n
		if at >= w.total {
			return nil
		}
		t := w.plan(int(min(n, w.total-at)))
		if err := w.await(ctx, at); err != nil {
			return err
		}
		if t.rollBack {
			if err := w.attempt(ctx, t, t.id+"-void"); err != nil && ctx.Err() == nil {
				w.note("failed")
			}
			t.rollBack = false // the same again under its own ids, this time committed
		}
		for try := 0; ctx.Err() == nil; try++ {
			id := fmt.Sprintf("%s-%d", t.id, try)
			err := w.attempt(ctx, t, id)
			if err == nil || w.committed(ctx, id, err) {
				w.written.Add(int64(len(t.calls)))
				break
			}
		}
	}
	return ctx.Err()
}

// await waits until the gate lets calls through.
func (w *writer) await(ctx context.Context, at int64) error {
	for at >= w.gate.Load() && ctx.Err() == nil {
		fleet.Pause(ctx, fleet.PollEvery)
	}
	return ctx.Err()
}

func (w *writer) plan(n int) transaction {
	w.last++
	t := transaction{id: fmt.Sprintf("%s-%d", w.name, w.last)}
	for range n {
		t.calls = append(t.calls, w.call())
	}
	// The rows that number the calls are locked in one order, by every writer.
	slices.SortStableFunc(t.calls, func(a, b callcheck.Planned) int {
		return cmp.Or(cmp.Compare(a.Sink, b.Sink), cmp.Compare(a.Key, b.Key))
	})
	t.oneByOne = w.random.IntN(4) == 0
	t.rollBack = w.random.IntN(12) == 0
	t.savepoint = w.random.IntN(20) == 0
	t.repeatable = w.random.IntN(30) == 0
	if w.random.IntN(200) == 0 {
		t.hold = time.Second + time.Duration(w.random.IntN(2000))*time.Millisecond
	}
	return t
}

func (w *writer) call() callcheck.Planned {
	var c callcheck.Planned
	if w.random.IntN(50) == 0 {
		c.NotBefore = time.Now().Add(time.Second)
	}
	switch r := w.random.IntN(100); {
	case r < 75:
		c.Sink = sinkMain
	case r < 85:
		c.Sink = sinkStrict
	default:
		c.Sink = sinkShort
	}
	if w.random.IntN(100) < 80 {
		u := w.random.Float64()
		c.Key = fmt.Sprintf("k%03d", int(orderingKeys*u*u)) // some keys have many calls
	}
	switch r := w.random.IntN(1000); {
	case r < 3, c.Sink == sinkStrict && r < 15:
		c.Fate = callcheck.FateReject
	case c.Sink == sinkShort && r < 20:
		c.Fate = callcheck.FateOutlast
	}
	return c
}

// attempt is one transaction.
func (w *writer) attempt(ctx context.Context, t transaction, id string) error {
	var o pgx.TxOptions
	if t.repeatable {
		o.IsoLevel = pgx.RepeatableRead
	}
	tx, err := w.pool.BeginTx(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(bounded) // nothing after a COMMIT
	}()
	if err := callcheck.Write(ctx, tx, id, t.calls, t.oneByOne); err != nil {
		return err
	}
	if t.savepoint {
		if err := w.nested(ctx, tx, id); err != nil {
			return err
		}
	}
	if t.hold > 0 {
		w.note("held")
		fleet.Pause(ctx, t.hold)
	}
	if t.rollBack {
		w.note("rolled back")
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}

// nested writes a call that is kept, and one that is not. Neither has an ordering key: its lock
// would come too late.
func (w *writer) nested(ctx context.Context, tx pgx.Tx, id string) error {
	w.note("savepoints")
	for _, keep := range []bool{true, false} {
		sub, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := callcheck.Write(
			ctx,
			sub,
			fmt.Sprintf("%s-sub-%t", id, keep),
			[]callcheck.Planned{{Body: callcheck.Body{Sink: sinkMain}}},
			false,
		); err != nil {
			return err
		}
		if keep {
			err = sub.Commit(ctx)
		} else {
			err = sub.Rollback(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// committed reports whether a transaction whose end was an error has committed. It waits until the
// server answers. By then the transaction is no longer running: its session has ended, or its
// server was killed.
func (w *writer) committed(ctx context.Context, id string, failed error) bool {
	var pgErr *pgconn.PgError
	if errors.As(failed, &pgErr) {
		w.note("failed with " + pgErr.Code)
	} else {
		w.note("cut off")
	}
	for ctx.Err() == nil {
		fleet.Pause(ctx, 100*time.Millisecond)
		var is bool
		if err := w.pool.QueryRow(ctx, `select exists (select from storm.calls where tx = $1)`, id).Scan(&is); err == nil {
			return is
		}
	}
	return false
}
