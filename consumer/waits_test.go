package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// waitedSQL finds out whether a session waits for the lock of an owner that long. In: an interval.
const waitedSQL = `
select count(*) from pg_locks k join pg_stat_activity a using (pid)
 where a.datname = current_database()
   and k.locktype = 'advisory'
   and not k.granted
   and clock_timestamp() - k.waitstart > $1::interval`

// T14: a take-over gets the lock of an owner whose slots overlap each other without a gap: those
// that come while it waits wait behind it, at each isolation level.
func TestT14SlotsComeAfterATakeOverThatWaits(t *testing.T) {
	for level, refused := range map[string]string{"read committed": "OO001", "repeatable read": "40001", "serializable": "40001"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			s := newSlotRig(t)
			working := s.session()
			later := s.session()
			owner := s.session()
			for _, c := range []*session{working, later} {
				c.want("begin", c.run("begin isolation level "+level), "")
			}
			working.want("fence", s.fence(working, 10, []int64{10}, nil), "")
			raised := make(chan string, 1)
			answer := make(chan string, 1)
			go func() { raised <- owner.run(raiseSQL, s.id) }()
			waits(t, s.pool, &claimer{conn: owner.Conn})
			go func() { answer <- s.fence(later, 10, []int64{11}, nil) }()
			waits(t, s.pool, &claimer{conn: later.Conn})
			working.want("seal", working.run("select onlyonce.seal()"), "")
			working.want("commit", working.run("commit"), "")
			owner.want("take-over", <-raised, "")
			later.want("the slot that came later", <-answer, refused)
		})
	}
}

// T14: a take-over waits as long as the owner has declared that a transaction of it may last, and
// then says whom it waited for.
func TestT14TakeOverWaitsAsLongAsDeclared(t *testing.T) {
	t.Parallel()
	const sql = `
select onlyonce.take_cursor(
  $1,
  (select epoch from onlyonce.leases where id = $1),
  gen_random_uuid(),
  'stock',
  null,
  null,
  $2::text::interval,
  '50ms'
)`
	s := newSlotRig(t)
	working := s.session()
	owner := s.session()
	owner.want("take-over", owner.run(sql, s.id, "100ms"), "")
	s.owned()
	working.want("begin", working.run("begin"), "")
	working.want("fence", s.fence(working, 10, []int64{10}, nil), "")
	_, err := owner.Exec(t.Context(), sql, s.id, "1h")
	var pg *pgconn.PgError
	pid := strconv.Itoa(int(working.PgConn().PID()))
	good := errors.As(err, &pg) &&
		pg.Code == "55P03" &&
		strings.Contains(pg.Message, "gave up after 100ms") &&
		strings.Contains(pg.Message, "session "+pid)
	if !good {
		t.Errorf("the error names no session %s: %v", pid, err)
	}
	s.exec(`update onlyonce.leases set longest = '1h'`)
	raised := make(chan string, 1)
	go func() { raised <- owner.run(sql, s.id, "1h") }()
	until(t, "it waits longer than its own bound", func() bool { return s.count(waitedSQL, "200ms") == 1 })
	working.want("seal", working.run("select onlyonce.seal()"), "")
	working.want("commit", working.run("commit"), "")
	owner.want("take-over", <-raised, "")
	if bound := s.count(`select extract(epoch from longest)::integer from onlyonce.leases`); bound != 3600 {
		t.Errorf("the next one has declared %d s", bound)
	}
}

// T14: an attempt at a parked row that waits for a take-over fails, at each isolation level.
func TestT14AttemptThatWaitsForATakeOver(t *testing.T) {
	for level, refused := range map[string]string{"read committed": "OO001", "repeatable read": "40001", "serializable": "40001"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			s := newSlotRig(t)
			s.exec(`
insert into onlyonce.parked (
  kind,
  state,
  reason,
  attempts,
  next_attempt_at,
  scope,
  topic,
  partition,
  "offset"
) values (
  'message',
  'retrying',
  'failed',
  1,
  now(),
  'stock',
  'orders',
  0,
  3
)`)
			attempt := s.session()
			owner := s.session()
			owner.want("begin", owner.run("begin"), "")
			owner.want("take-over", owner.run(raiseSQL, s.id), "")
			attempt.want("begin", attempt.run("begin isolation level "+level), "")
			answer := make(chan string, 1)
			go func() {
				answer <- attempt.run(`
select onlyonce.settle(
  $1,
  $2,
  $3::text::uuid,
  1,
  1,
  null,
  null,
  '5s',
  '5s',
  '5s'
)`,
					s.id, s.epoch, s.nonce)
			}()
			waits(t, s.pool, &claimer{conn: attempt.Conn})
			owner.want("commit", owner.run("commit"), "")
			attempt.want("the attempt", <-answer, refused)
		})
	}
}

// T14: a handler takes longer than Timeouts.Lock of the process that takes over. That one waits,
// and is the owner when the handler has ended.
func TestT14TakeOverOfALongHandler(t *testing.T) {
	for _, concurrency := range []int{1, 4} {
		t.Run(strconv.Itoa(concurrency), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.numbered(0, 3)
			cfg := testConfig()
			cfg.Concurrency = concurrency
			cfg.BatchSize = 1
			cfg.Timeouts.Lock = 50 * time.Millisecond
			cfg.Timeouts.Statement = 150 * time.Millisecond
			inside := make(chan struct{})
			goOn := make(chan struct{})
			var once sync.Once
			stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				err := effect(ctx, tx, m)
				once.Do(func() {
					close(inside)
					<-goOn
				})
				return err
			}, cfg)
			pgtest.Receive(t, patience, "the handler is under way", inside)
			other := rig{t: t, pool: r.pool, log: r.log, src: &memlog.Source{Log: r.log, GroupID: r.src.GroupID}}
			other.start(effect, cfg)
			until(t, "the other one waits longer than both of its bounds", func() bool { return r.count(waitedSQL, "400ms") == 1 })
			var stopped sync.WaitGroup
			stopped.Go(stop) // it would join again, and take the partition back
			close(goOn)
			stopped.Wait()
			r.reaches(0, 3)
			r.once(values...)
			if n := r.count(`select epoch::integer from onlyonce.leases where name = 'cursor/stock/orders/0'`); n != 2 {
				t.Errorf("epoch %d: it was taken over", n)
			}
		})
	}
}

// T14: a command has the owner's lock for longer than Timeouts.Lock and Config.BlockedAfter. The
// batch that is not let in meanwhile is not divided, and the partition does not halt; neither does
// it if the message is alone already, because its handler has failed.
func TestT14KeptOutByACommand(t *testing.T) {
	for name, size := range map[string]int{"1": 1, "4": 4, "alone": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			cfg := testConfig()
			cfg.BatchSize = size
			cfg.Timeouts.Lock = 50 * time.Millisecond
			cfg.BlockedAfter = 100 * time.Millisecond
			cfg.MaxAttempts = 1000
			first := r.numbered(0, 1)
			var fails atomic.Bool
			r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if fails.Load() {
					return errors.New("asked to fail")
				}
				return effect(ctx, tx, m)
			}, cfg)
			r.reaches(0, 1)
			tried := func() int {
				r.mu.Lock()
				defer r.mu.Unlock()
				return len(r.tries)
			}
			if name == "alone" {
				fails.Store(true)
				r.log.Append(0, "alone", id("alone"))
				first = append(first, "alone")
				until(t, "the message is tried alone", func() bool { return tried() > 1 })
			}
			command, err := r.pool.BeginTx(t.Context(), pgx.TxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = command.Rollback(context.WithoutCancel(t.Context())) }()
			lock := `select onlyonce.lock_owner(id) from onlyonce.cursors`
			if name == "alone" { // attempts are counted in the row, which a command that waits has not locked yet
				lock = `select pg_advisory_xact_lock(onlyonce.owner_lock(id)) from onlyonce.cursors`
			}
			if _, err := command.Exec(t.Context(), lock); err != nil {
				t.Fatal(err)
			}
			fails.Store(false)
			before := tried()
			began := time.Now()
			for _, v := range []string{"a", "b", "c", "d"} {
				r.log.Append(0, v, id(v))
			}
			until(t, "it was tried often, for long", func() bool {
				return tried() > before+8 && time.Since(began) > 10*cfg.BlockedAfter
			})
			if err := command.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.reaches(0, int64(len(first)+4))
			r.once(append(first, "a", "b", "c", "d")...)
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.halts) > 0 {
				t.Errorf("halts: %v", r.halts)
			}
			if divided := slices.ContainsFunc(r.events, func(b consumer.BatchResult) bool { return b.Alone }); divided && size > 1 {
				t.Errorf("a message was alone: %+v", r.events)
			}
		})
	}
}
