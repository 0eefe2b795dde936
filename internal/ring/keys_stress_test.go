package ring_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// keyRotations is how many segments of keys each isolation level empties; ONLYONCE_ROTATIONS asks
// for more (make storm-keys).
var keyRotations = func() int64 {
	if n, err := strconv.ParseInt(os.Getenv("ONLYONCE_ROTATIONS"), 10, 64); err == nil {
		return n
	}
	return 20
}()

// lasting is the horizon of the stress, in milliseconds: short, so that slots are used again;
// longer than most transactions.
const lasting = 400

// K4: claimers collide on keys, in transactions that last, are rolled back and claim in savepoints,
// by both forms of the claim. Three rotators take the lease from each other, and their sessions are
// killed at any step. Segments are emptied and used again. A key that is claimed within its horizon
// has one effect at most, and the first claim of a key is never refused.
func TestK4RotationsUnderCollidingClaims(t *testing.T) {
	for _, which := range ring.Keys() {
		if which.Rare && testing.Short() {
			continue // the text of their claims is that of the first ring
		}
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			t.Run(which.Name+" "+string(level), func(t *testing.T) { stressKeys(t, which, level) })
		}
	}
}

type keyStress struct {
	*rig
	ring                                             ring.Ring
	level                                            pgx.TxIsoLevel
	newest                                           atomic.Int64
	fresh, duplicate, late, refused, undone, emptied atomic.Int64
}

func stressKeys(t *testing.T, which ring.Ring, level pgx.TxIsoLevel) {
	r := newRig(t)
	s := &keyStress{rig: r, ring: which, level: level}
	r.exec(`update onlyonce.rings set horizon = make_interval(secs => $2::float8 / 1000) where name = $1`, which.Name, lasting)
	r.exec(`create table born (n bigint primary key, at timestamptz not null default clock_timestamp())`)
	r.exec(`create table effects (n bigint not null)`)
	r.exec(`create index on effects (n)`)
	ctx, stop := context.WithTimeout(context.Background(), patience+time.Duration(keyRotations)*time.Second)
	defer stop()
	cfg, err := pgxpool.ParseConfig(r.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 6
	cfg.ConnConfig.RuntimeParams["application_name"] = "rotator"
	killable, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer killable.Close()
	var all sync.WaitGroup
	pause := func(seconds float64) { _, _ = r.pool.Exec(ctx, `select pg_sleep($1)`, seconds*rand.Float64()) }
	var outcomes sync.Mutex
	came := map[ring.Action]int{}
	for range 3 {
		all.Go(func() {
			x, err := ring.New(killable, which, ring.Config{
				MaxBytes:    1,
				LockTimeout: patience / 300,
				LockPause:   1e6,
				Interval:    1e6,
				LeaseTTL:    time.Second,
				Timeout:     patience,
			})
			if err != nil {
				t.Error(err)
				return
			}
			for ctx.Err() == nil {
				out, err := x.Step(ctx)
				if errors.Is(err, ring.ErrRights) || errors.Is(err, ring.ErrSchema) || errors.Is(err, ring.ErrClock) {
					t.Error(err)
					return
				}
				outcomes.Lock()
				came[out.Action]++
				if err != nil {
					came["error"]++
				}
				outcomes.Unlock()
				if out.Action == ring.Truncated && s.emptied.Add(1) >= keyRotations {
					stop()
				}
				if !out.Changed() {
					pause(0.01)
				}
			}
		})
	}
	all.Go(func() { // take-overs, and rotators that die at any step
		for ctx.Err() == nil {
			pause(3)
			_, _ = r.pool.Exec(ctx, `update onlyonce.leases set until = clock_timestamp() where name = 'ring/' || $1`, which.Name)
			_, _ = r.pool.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity
			  where datname = current_database() and application_name = 'rotator' and (state <> 'idle' or random() < 0.3)`)
		}
	})
	all.Go(func() { // a transaction that has nothing to do with it
		for ctx.Err() == nil {
			_, _ = r.pool.Exec(ctx, `select pg_current_xact_id(), pg_sleep($1)`, 0.3*rand.Float64())
			pause(1)
		}
	})
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := s.claim(); err != nil {
					t.Error(err)
					stop()
				}
			}
		})
	}
	all.Wait()
	if s.emptied.Load() < keyRotations {
		t.Fatalf("only %d segments were emptied: %v", s.emptied.Load(), came)
	}
	if n := one[int](r, `select count(*) from (select n from effects group by n having count(*) > 1) d`); n > 0 {
		t.Errorf("%d keys have more than one effect", n)
	}
	t.Logf("%d segments emptied; %d fresh, %d duplicates, %d rolled back, %d too late, %d run again; steps %v",
		s.emptied.Load(), s.fresh.Load(), s.duplicate.Load(), s.undone.Load(), s.late.Load(), s.refused.Load(), came)
}

// keyOf is a random key: the same for a number.
func keyOf(n int64) uuid.UUID { return uuid.NewMD5(uuid.Nil, strconv.AppendInt(nil, n, 10)) }

// claim is one transaction that claims some of the latest keys.
func (s *keyStress) claim() error {
	ctx := context.Background()
	numbers := map[int64]bool{}
	for range 1 + rand.IntN(4) {
		n := s.newest.Load() - rand.Int64N(40)
		if rand.IntN(4) == 0 {
			n = s.newest.Add(1)
		}
		if n > 0 {
			numbers[n] = true
		}
	}
	var picked []int64
	var keys []uuid.UUID
	for n := range numbers {
		if _, err := s.pool.Exec(ctx, `insert into born (n) values ($1) on conflict do nothing`, n); err != nil {
			return err
		}
		picked, keys = append(picked, n), append(keys, keyOf(n))
	}
	if len(picked) == 0 {
		return nil
	}
	form := rand.IntN(2)
	nested := rand.IntN(4) == 0
	settle := rand.IntN(8) > 0
	var outcomes []int16
	var late bool
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: s.level}, func(tx pgx.Tx) error {
		if rand.IntN(3) == 0 { // the snapshot, above READ COMMITTED
			if _, err := tx.Exec(ctx, `select pg_sleep($1)`, rand.Float64()*0.03); err != nil {
				return err
			}
		}
		on := tx
		if nested {
			var err error
			if on, err = tx.Begin(ctx); err != nil {
				return err
			}
		}
		if err := s.ask(ctx, on, form, keys, &outcomes); err != nil {
			return err
		}
		if nested {
			if err := on.Commit(ctx); err != nil {
				return err
			}
		}
		// The claim has read the ring before this clock: a key that was born within the horizon is
		// then in no segment that was retired.
		err := s.pool.QueryRow(
			ctx,
			`select bool_or(at + make_interval(secs => $2::float8 / 1000) <= clock_timestamp()) from born where n = any ($1)`,
			picked,
			lasting,
		).Scan(&late)
		if err != nil || late {
			return errors.Join(err, errUndone)
		}
		for i, o := range outcomes {
			if o == 0 {
				if _, err := tx.Exec(ctx, `insert into effects (n) values ($1)`, picked[i]); err != nil {
					return err
				}
				continue
			}
			var there bool
			if err := s.pool.QueryRow(ctx, `select exists (select from effects where n = $1)`, picked[i]).Scan(&there); err != nil {
				return err
			}
			if !there || o != 1 {
				return fmt.Errorf("key %d came to %d, and its effect is there: %v", picked[i], o, there)
			}
		}
		if rand.IntN(3) == 0 {
			if _, err := tx.Exec(ctx, `select pg_sleep($1)`, rand.Float64()*0.03); err != nil {
				return err
			}
		}
		if !settle {
			return errUndone
		}
		return nil
	})
	switch {
	case late:
		s.late.Add(1)
		return nil
	case errors.Is(err, errUndone):
		s.undone.Add(1)
		return nil
	case guard.SQLState(err) == "40001" || guard.SQLState(err) == "40P01":
		s.refused.Add(1)
		return nil
	case guard.SQLState(err) == "23505" && form == 1:
		s.duplicate.Add(1)
		return nil
	case err != nil:
		return err
	}
	for _, o := range outcomes {
		if o == 0 {
			s.fresh.Add(1)
		} else {
			s.duplicate.Add(1)
		}
	}
	return nil
}

// ask claims by the form that returns outcomes, or by the one that raises.
func (s *keyStress) ask(ctx context.Context, tx pgx.Tx, form int, keys []uuid.UUID, outcomes *[]int16) error {
	prints := make([]int64, len(keys))
	for i := range prints {
		prints[i] = 7
	}
	if s.ring.Name == "standard_keys" {
		return tx.QueryRow(ctx, `select onlyonce.claim($1, $2)`, keys, prints).Scan(outcomes)
	}
	claim := "onlyonce.claim_" + strings.TrimSuffix(s.ring.Name, "_keys")
	if form == 0 || !ring.OfConsumers(s.ring.Name) {
		return tx.QueryRow(ctx, `select `+claim+`($1, $2)`, keys, prints).Scan(outcomes)
	}
	*outcomes = make([]int16, len(keys))
	_, err := tx.Exec(ctx, `select `+claim+`_fresh($1, $2)`, keys, prints)
	return err
}
