package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
)

// slotConfig is testConfig with several transactions at once.
func slotConfig() consumer.Config {
	cfg := testConfig()
	cfg.Concurrency = 4
	return cfg
}

// rounds appends n messages of some ordering keys, in turn, with ids of their own. It returns their
// values: the key, a dash and the number within the key.
func (r *rig) rounds(keys, n int) (values []string) { return r.moreRounds(keys, 0, n) }

// moreRounds is rounds for more messages, after so many.
func (r *rig) moreRounds(keys, after, n int) (values []string) {
	for i := after; i < after+n; i++ {
		v := fmt.Sprintf("k%d-%d", i%keys, i/keys)
		r.log.AppendMessage(0, &consumer.Message{
			Key:     []byte(fmt.Sprintf("k%d", i%keys)),
			Value:   []byte(v),
			Headers: []consumer.Header{id(v)},
		})
		values = append(values, v)
	}
	return values
}

// inOrder fails the test unless the effects of each ordering key are in the order of their
// messages.
func (r *rig) inOrder() {
	r.t.Helper()
	rows, err := r.pool.Query(context.Background(), `select value from effects order by n`)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	last := map[string]int{}
	for rows.Next() {
		var v string
		var n int
		if err := rows.Scan(&v); err != nil {
			r.t.Fatal(err)
		}
		key, number, _ := strings.Cut(v, "-")
		if _, err := fmt.Sscan(number, &n); err != nil {
			r.t.Fatal(err)
		}
		if before, ok := last[key]; ok && n < before {
			r.t.Errorf("%s was applied after %s-%d", v, key, before)
		}
		last[key] = n
	}
}

// C1: with several transactions at once each message takes effect once, and those of an ordering
// key in their order, under each policy and for each kind of handler (C2).
func TestC1SideBySideOnce(t *testing.T) {
	for name, change := range map[string]func(*consumer.Config){
		"ids": func(*consumer.Config) {},
		"positions": func(c *consumer.Config) {
			c.Key = nil
			c.PositionsOnly = true
		},
		"keys":  func(c *consumer.Config) { c.OnFailure = consumer.ParkOrderingKey },
		"block": func(c *consumer.Config) { c.OnFailure = consumer.BlockPartition },
	} {
		for _, batches := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, batches %v", name, batches), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 1)
				values := r.rounds(7, 500)
				r.log.Skip(0, 3)
				cfg := slotConfig()
				change(&cfg)
				var stop func()
				if batches {
					stop = r.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
						for _, m := range msgs {
							if err := queued(ctx, tx, m); err != nil {
								return err
							}
						}
						return nil
					}, cfg)
				} else {
					stop = r.start(effect, cfg)
				}
				r.reaches(0, 503)
				stop()
				r.once(values...)
				r.inOrder()
				n := r.count(`select count(*) from onlyonce.done d join onlyonce.positions p on p.id = d.cursor_id
					where d."offset" >= p.next_offset`)
				if n != 0 {
					t.Errorf("%d messages are done above the position", n)
				}
			})
		}
	}
}

// Several transactions of one partition run at once, and never two with messages of one ordering
// key.
func TestC2OneTransactionAtATimeForAKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.rounds(8, 64)
	var mu sync.Mutex
	var busy []string
	most := 0
	cfg := slotConfig()
	cfg.BatchSize = 1
	all := make(chan struct{})
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		key := string(m.Key)
		mu.Lock()
		if slices.Contains(busy, key) {
			t.Errorf("two messages of %s at once", key)
		}
		busy = append(busy, key)
		if most = max(most, len(busy)); len(busy) == cfg.Concurrency && most == cfg.Concurrency {
			select {
			case <-all:
			default:
				close(all)
			}
		}
		mu.Unlock()
		select { // the first ones meet
		case <-all:
		case <-ctx.Done():
			return ctx.Err()
		}
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			busy = slices.DeleteFunc(busy, func(k string) bool { return k == key })
		}()
		return effect(ctx, tx, m)
	}, cfg)
	r.reaches(0, 64)
	stop()
	r.once(values...)
	r.inOrder()
	if most != cfg.Concurrency {
		t.Errorf("%d at once", most)
	}
}

// A message that fails holds up the messages of its key and the position, and nothing else; later
// it is parked in its turn.
func TestC6FailingMessageHoldsUpItsKeyOnly(t *testing.T) {
	for _, policy := range []consumer.FailurePolicy{consumer.ParkMessage, consumer.ParkOrderingKey} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.rounds(5, 100)
			cfg := slotConfig()
			cfg.OnFailure = policy
			stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if string(m.Value) == "k2-3" {
					return errBoom
				}
				return effect(ctx, tx, m)
			}, cfg)
			r.reaches(0, 100)
			if policy == consumer.ParkOrderingKey {
				until(t, "the message is given up", func() bool {
					return r.count(`select count(*) from onlyonce.parked where state = 'waiting' and body = 'k2-3'`) == 1
				})
			}
			stop()
			want := slices.DeleteFunc(slices.Clone(values), func(v string) bool {
				var n int
				if _, err := fmt.Sscanf(v, "k2-%d", &n); err != nil {
					return false
				}
				return n == 3 || policy == consumer.ParkOrderingKey && n > 3
			})
			r.once(want...)
			r.inOrder()
		})
	}
}

// C6: under BlockPartition, the partition halts at the message that must not be passed over. By
// then everything below it is done. An operator who adopts above it gives up that message, and no
// other: what was done above stays done.
func TestC6HaltAtAMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.rounds(5, 100)
	cfg := slotConfig()
	cfg.OnFailure = consumer.BlockPartition
	cfg.Key = nil
	cfg.PositionsOnly = true
	cfg.BatchSize = 1
	judged := make(chan struct{})
	judge := sync.OnceFunc(func() { close(judged) })
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		switch {
		case m.Offset < 2: // so that messages of its ordering key wait below the one that halts
			select {
			case <-judged:
			case <-ctx.Done():
				return ctx.Err()
			}
		case string(m.Value) == "k2-3":
			if m.Attempt > 0 {
				judge()
			}
			return consumer.Permanent(errBoom)
		}
		return effect(ctx, tx, m)
	}, cfg)
	h := r.halted()
	if h.Position != 17 || !strings.Contains(h.Detail, "offset 17, ordering key ") {
		t.Errorf("halt: %v", h)
	}
	stop()
	if n := r.count(`select count(*) from effects where off < 17`); n != 17 {
		t.Errorf("%d of 17 messages below it were applied", n)
	}
}

// C4: a failover loses a transaction above the position, and no other. It is done again, with what
// depends on it.
func TestC4LostTransactionAboveThePosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := slotConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	cfg.BatchSize = 1
	cfg.Window = 50
	hold := make(chan struct{})
	values := r.rounds(5, 50)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 0 {
			select {
			case <-hold:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return effect(ctx, tx, m)
	}, cfg)
	until(t, "all others are done", func() bool { return r.count(`select count(*) from effects`) == 40 })
	r.exec(`
with lost as (delete from onlyonce.done where "offset" in (11, 23) returning 1) delete from effects
    where off in (11, 23)`)
	close(hold)
	r.reaches(0, 50)
	stop()
	r.once(values...)
}

// C2: a failover loses a message whose successor by its ordering key is about to be handled. The
// successor waits until it is done again.
func TestC2LostPredecessor(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for _, v := range []string{"x-0", "a-0", "a-1"} {
		r.keyed(0, v[:1], v)
	}
	cfg := slotConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	cfg.BatchSize = 1
	cfg.DrainTimeout = 10 * time.Millisecond
	third := make(chan struct{})
	lost := make(chan struct{})
	release := make(chan struct{})
	begun := 0
	var mu sync.Mutex
	wait := func(ctx context.Context, c chan struct{}) error {
		select {
		case <-c:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	cfg.OnBegin = func(ctx context.Context, _ consumer.Tx) error {
		mu.Lock()
		begun++
		n := begun
		mu.Unlock()
		if n != 3 { // the first two are of x-0 and a-0, and a-1 follows a-0
			return nil
		}
		close(third)
		return wait(ctx, lost)
	}
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if string(m.Value) == "x-0" {
			if err := wait(ctx, release); err != nil {
				return err
			}
		}
		return effect(ctx, tx, m)
	}, cfg)
	select {
	case <-third:
	case <-time.After(patience):
		t.Fatal("a-1 was not begun")
	}
	r.exec(`with lost as (delete from onlyonce.done where "offset" = 1 returning 1) delete from effects where off = 1`)
	close(lost)
	until(t, "both are done", func() bool { return r.count(`select count(*) from effects where off in (1, 2)`) == 2 })
	close(release)
	r.reaches(0, 3)
	stop()
	r.once("x-0", "a-0", "a-1")
	r.inOrder()
}

// C1: the partition is taken away again and again while many handlers are under way. Some end
// before the partition is given up, others are cut off. This is the scenario of
// confluentinc/parallel-consumer#365, where what had ended came again.
func TestC1RevokedInMidFlight(t *testing.T) {
	t.Parallel()
	const (
		messages    = 400
		atOnce      = 6
		revocations = 20
	)
	r := newRig(t, 1)
	values := r.rounds(40, messages)
	cfg := slotConfig()
	// no key hides a double
	cfg.Key = nil
	cfg.PositionsOnly = true
	cfg.BatchSize = 1
	cfg.Concurrency = 8
	cfg.DrainTimeout = 50 * time.Millisecond
	wide := r.pool.Config().Copy()
	wide.MaxConns = int32(cfg.Concurrency) + 4 // one for each slot, and some for the engine
	pool, err := pgxpool.NewWithConfig(t.Context(), wide)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var mu sync.Mutex
	revoked := 0
	inFlight := 0
	met := make(chan struct{})
	// meet returns when so many handlers are under way that the partition is taken away.
	meet := func(ctx context.Context) (more bool, err error) {
		mu.Lock()
		defer mu.Unlock()
		if revoked == revocations {
			return false, nil
		}
		if inFlight++; inFlight == atOnce {
			r.src.Rebalance()
			close(met)
			revoked = revoked + 1
			inFlight = 0
			met = make(chan struct{})
			return true, nil
		}
		mine := met
		mu.Unlock()
		select {
		case <-mine:
		case <-ctx.Done():
			err = ctx.Err()
		}
		mu.Lock()
		if mine == met {
			inFlight--
		}
		return true, err
	}
	stop := r.startOn(r.src, pool, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		more, err := meet(ctx)
		if err != nil {
			return err
		}
		if more && m.Offset%2 == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return effect(ctx, tx, m)
	}, cfg)
	r.reaches(0, messages)
	stop()
	r.once(values...)
	r.inOrder()
	if epoch := r.count(`select max(epoch) from onlyonce.leases`); epoch < revocations {
		t.Errorf("epoch %d: the partition was not taken away %d times", epoch, revocations)
	}
}

// C1: handlers fail now and then, and owners come and go in the middle of their work.
func TestC1HandlerErrorsAndTakeOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.rounds(7, 300)
	cfg := slotConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	seen := map[int64]int{}
	var mu sync.Mutex
	failOnce := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		mu.Lock()
		seen[m.Offset]++
		n := seen[m.Offset]
		mu.Unlock()
		if n == 1 && m.Offset%13 == 0 {
			return errors.New("fails once")
		}
		return effect(ctx, tx, m)
	}
	for range 5 {
		stop := r.start(failOnce, cfg)
		n := r.count(`select count(*) from effects`)
		until(t, "some more are done", func() bool { return r.count(`select count(*) from effects`) >= min(n+40, len(values)) })
		stop()
	}
	stop := r.start(failOnce, cfg)
	r.reaches(0, 300)
	stop()
	r.once(values...)
	r.inOrder()
}

// Concurrency goes back to 1 while something is done above the position: that is finished with
// slots, and then the partition goes on with one transaction at a time, under another epoch.
func TestC7BackToOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := slotConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	cfg.BatchSize = 1
	cfg.Window = 50
	cfg.DrainTimeout = 10 * time.Millisecond
	values := r.rounds(5, 50)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 2 {
			<-ctx.Done()
			return ctx.Err()
		}
		return effect(ctx, tx, m)
	}, cfg)
	until(t, "all others are done", func() bool { return r.count(`select count(*) from effects`) == 40 })
	stop()
	cfg.Concurrency = 1
	stop = r.start(effect, cfg)
	r.reaches(0, 50)
	values = append(values, r.moreRounds(5, 50, 20)...)
	r.reaches(0, 70)
	until(t, "no rows of onlyonce.done: they are deleted, and no slots make new ones", func() bool {
		return r.count(`select count(*) from onlyonce.done`) == 0
	})
	if n := r.count(`select epoch from onlyonce.leases`); n != 3 {
		t.Errorf("epoch %d: want 3, those of the two starts and that of one transaction at a time", n)
	}
	stop()
	r.once(values...)
	r.inOrder()
}

// A pool that the transactions of one partition can use up is named when the consumer begins.
func TestC1PoolIsTooSmall(t *testing.T) {
	t.Parallel()
	for most, warns := range map[int32]bool{4: true, 5: false} {
		r := newRig(t, 1)
		small := r.pool.Config().Copy()
		small.MaxConns = most
		pool, err := pgxpool.NewWithConfig(t.Context(), small)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		values := r.numbered(0, 1)
		var mu sync.Mutex
		var log strings.Builder
		cfg := slotConfig()
		cfg.Logger = slog.New(slog.NewTextHandler(&locked{mu: &mu, w: &log}, nil))
		stop := r.startOn(r.src, pool, effect, cfg)
		r.reaches(0, 1)
		stop()
		r.once(values...)
		mu.Lock()
		said := log.String()
		mu.Unlock()
		if strings.Contains(said, "raise pool_max_conns") != warns || strings.Contains(said, "shard=") {
			t.Errorf("with %d connections for %d transactions it logged:\n%s", most, cfg.Concurrency, said)
		}
	}
}
