package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
)

// gated is a copy's source that waits: a call on the transaction is under way for as long as a test
// wants.
type gated struct {
	asked sync.Once
	begun chan struct{}
	more  <-chan struct{}
}

func (g *gated) Next() bool {
	g.asked.Do(func() { close(g.begun) })
	<-g.more
	return false
}
func (*gated) Values() ([]any, error) { return nil, nil }
func (*gated) Err() error             { return nil }

// forks makes two calls at once, and returns whether both failed because of that.
func forks(ctx context.Context, tx consumer.Tx) bool {
	more := make(chan struct{})
	src := &gated{begun: make(chan struct{}), more: more}
	first := make(chan error)
	go func() {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"value"}, src)
		first <- err
	}()
	select {
	case <-src.begun:
	case err := <-first: // refused: the transaction has failed already
		return err != nil
	}
	_, second := tx.Exec(ctx, `insert into effects (value) values ($1)`, "of the other goroutine")
	close(more)
	return second != nil && <-first != nil
}

// T6: if goroutines of one handler call at once, their message fails, with an error that names the
// reason. Nothing else fails: not the process, no neighbour, and no connection.
func TestT6ForkedHandlerFailsItsMessage(t *testing.T) {
	t.Parallel()
	r := unlike(t, "exhausted", func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
		if !forks(ctx, tx) {
			t.Error("a call that overlapped with another one was answered")
		}
		return nil // the handler overlooks it
	})
	if n := r.count(`select count(*) from onlyonce.parked where error like '%two calls at once%'`); n != 1 {
		r.dump(`select error from onlyonce.parked`)
		t.Error("the parked message does not say why")
	}
}

// T6: as above in a savepoint, in a batch handler, and in OnBegin.
func TestT6ForkedElsewhere(t *testing.T) {
	t.Run("savepoint", func(t *testing.T) {
		t.Parallel()
		unlike(t, "exhausted", func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
			_ = tx.Savepoint(ctx, func() error { forks(ctx, tx); return errBoom })
			return nil
		})
	})
	t.Run("batch handler", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 1)
		values := r.numbered(0, 3)
		stop := r.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
			for _, m := range msgs {
				if m.Offset == 1 {
					forks(ctx, tx)
				}
				_ = effect(ctx, consumer.TxFor(tx, m), m)
			}
			return nil
		}, testConfig())
		r.reaches(0, 3)
		stop()
		r.once(values[0], values[2])
		if got := fmt.Sprint(r.reasons()); got != "map[1:exhausted]" {
			t.Errorf("parked: %s", got)
		}
	})
	t.Run("on begin", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 1)
		values := r.numbered(0, 3)
		cfg := testConfig()
		var begun atomic.Int32
		cfg.OnBegin = func(ctx context.Context, tx consumer.Tx) error {
			if begun.Add(1) == 1 {
				forks(ctx, tx)
			}
			return nil
		}
		stop := r.start(effect, cfg)
		r.reaches(0, 3)
		stop()
		r.once(values...)
		if len(r.reasons()) > 0 {
			t.Errorf("parked: %v", r.reasons())
		}
	})
}

// T6: the transaction of a message is over when its handler returns, though that of the batch goes
// on: a later handler that uses it fails, and what it queues there is logged.
func TestT6TransactionOfAnEarlierMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 10)
	var mu sync.Mutex
	var log strings.Builder
	cfg := testConfig()
	cfg.Logger = slog.New(slog.NewTextHandler(&locked{mu: &mu, w: &log}, nil))
	kept := map[int64]consumer.Tx{}
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		kept[m.Offset] = tx
		if m.Offset != 7 {
			return effect(ctx, tx, m)
		}
		if err := effect(ctx, kept[6], m); err == nil || !strings.Contains(err.Error(), "after its handler returned") {
			t.Errorf("the transaction of the message before: %v", err)
		}
		kept[6].Queue(`insert into effects (value) values ('astray')`)
		return errBoom
	}, cfg)
	r.reaches(0, 10)
	stop()
	r.once(append(values[:7:7], values[8:]...)...)
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(log.String(), "queued a statement after it had returned") || !strings.Contains(log.String(), "astray") {
		t.Errorf("log: %s", log.String())
	}
}

// locked is a writer for several goroutines.
type locked struct {
	mu *sync.Mutex
	w  *strings.Builder
}

func (l *locked) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.w.Write(p) }

// T6: if a statement is queued after its handler has returned, and before the batch has ended, the
// batch fails. In the end only the message that did it fails, alone.
func TestT6StatementQueuedTooLate(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 4)
	cfg := testConfig()
	var astray atomic.Bool
	queue := make(chan func(), 1)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		select {
		case late := <-queue: // a goroutine of the message before, in the middle of this one
			done := make(chan struct{})
			go func() { late(); close(done) }()
			<-done
		default:
		}
		if m.Offset == 1 && !astray.Swap(true) {
			queue <- func() { tx.Queue(`insert into effects (value) values ('astray')`) }
		}
		return effect(ctx, tx, m)
	}, cfg)
	r.reaches(0, 4)
	stop()
	r.once(values...)
	runs := 0
	for _, v := range r.seen {
		if v == values[1] {
			runs++
		}
	}
	if runs < 2 {
		t.Errorf("the transaction that had lost the statement has committed: %d run", runs)
	}
}

// T6: session state that one message leaves is not visible to later ones.
func TestT6SessionStateIsNotMet(t *testing.T) {
	for name, sql := range map[string]string{
		"temporary table":    `create temp table scratch (i int)`,
		"prepared statement": `prepare p as select 1`,
		"cursor":             `declare c cursor with hold for select 1`,
		"read-only":          `set default_transaction_read_only = on`,
		"encoding":           `set client_encoding = 'latin1'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			cfg := r.pool.Config().Copy()
			cfg.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			var values []string
			for i := range 6 {
				values = append(values, fmt.Sprint("ä", i))
				r.log.Append(0, values[i], id(values[i]))
			}
			ccfg := testConfig()
			ccfg.BatchSize = 1
			ccfg.OnFailure = consumer.ParkMessage
			var again sync.Map
			stop := r.startOn(r.src, pool, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if err := effect(ctx, tx, m); err != nil {
					return err
				}
				if m.Offset > 0 && m.Offset%2 == 0 {
					return nil // innocent
				}
				_, err := tx.Exec(ctx, sql)
				if _, second := again.LoadOrStore(m.Offset, true); !second && m.Offset == 3 {
					// The transaction runs again at once.
					_, retry := tx.Exec(ctx, `do $$ begin raise exception using errcode = '40001', message = 'as if serialized'; end $$`)
					return errors.Join(err, retry)
				}
				return err
			}, ccfg)
			r.reaches(0, 6)
			stop()
			r.once(values...)
			if len(r.reasons()) > 0 || len(r.tries) > 0 {
				t.Errorf("parked: %v, tried again: %d", r.reasons(), len(r.tries))
			}
		})
	}
}
