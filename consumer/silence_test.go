package consumer_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// impatience bounds every wait for a server closely.
func impatience(cfg *consumer.Config) {
	cfg.Timeouts.Lock = 300 * time.Millisecond
	cfg.Timeouts.Statement = 700 * time.Millisecond
	cfg.Timeouts.Commit = time.Second
	cfg.Timeouts.Idle = time.Second
}

// silentRows: the server is gone without a word while a statement is under way, every fifth time.
func silentRows(step, statement string, variants map[string]func(*faults)) (rows []row) {
	for name, adjust := range variants {
		rows = append(rows, row{step, "server falls silent" + name, func(f *faults) {
			w := &pgtest.Wire{Statement: statement, At: func(n int32) pgtest.Cut {
				if n%5 == 0 {
					return pgtest.Silent
				}
				return pgtest.Pass
			}}
			f.begin(1, adjust, patient, func(f *faults) { impatience(&f.cfg); f.cfg.BatchSize = 5 })
			stop := f.startOn(f.src, pgtest.Wired(f.t, f.pool, pgx.QueryExecModeCacheStatement, w, nil), f.handle)
			f.done()
			for i := 0; w.Cuts.Load() < 2; i++ {
				f.mix.Add(0, "k0", "more-"+string(rune('a'+i)), "")
				f.done()
			}
			f.finish(stop)
			if !f.mix.Ordered {
				f.parkedAs(nil)
			}
		}})
	}
	return rows
}

func claimFirst(f *faults) { f.cfg.ClaimFirst = true }

// T7, T4: a server that falls silent holds up a partition no longer than the bounds, whichever
// statement that meets, and with each kind of handler. Meanwhile Healthy reports it, and no attempt
// counts against a message.
func TestT7SilentServer(t *testing.T) {
	start := func(r *rig, cfg consumer.Config) func() { return r.start(queued, cfg) }
	for _, test := range []struct {
		name, statement string
		adjust          func(*consumer.Config)
		start           func(r *rig, cfg consumer.Config) func()
	}{
		{"claim first", consumer.ClaimSQL, func(c *consumer.Config) { c.ClaimFirst = true }, start},
		{"alone", consumer.ClaimSQL, func(*consumer.Config) {}, func(r *rig, cfg consumer.Config) func() {
			return r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if m.Attempt == 0 {
					return errBoom
				}
				return queued(ctx, tx, m)
			}, cfg)
		}},
		{"batch handler", consumer.ClaimSQL, func(*consumer.Config) {}, func(r *rig, cfg consumer.Config) func() {
			return r.startBatch(func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				for _, m := range msgs {
					if err := queued(ctx, tx, m); err != nil {
						return err
					}
				}
				return nil
			}, cfg)
		}},
		{"ordering keys", consumer.BlockedSQL, func(c *consumer.Config) {
			c.ClaimFirst = true
			c.OnFailure = consumer.ParkOrderingKey
			c.OrderingKey = func(m *consumer.Message) []byte { return m.Value }
		}, start},
		{"OnBegin", "select 'begin'", func(c *consumer.Config) {
			c.OnBegin = func(ctx context.Context, tx consumer.Tx) error {
				_, err := tx.Exec(ctx, `select 'begin'`)
				return err
			}
		}, start},
		{"queued", "commit", func(*consumer.Config) {}, start},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			var silent atomic.Bool
			w := &pgtest.Wire{Statement: test.statement, At: func(int32) pgtest.Cut {
				if silent.Load() {
					return pgtest.Silent
				}
				return pgtest.Pass
			}}
			base := r.pool
			// What the silent server keeps must leave connections for the engine's other questions:
			// they would report the fault as well.
			wide := base.Config().Copy()
			wide.MaxConns = 60
			many, err := pgxpool.NewWithConfig(t.Context(), wide)
			if err != nil {
				t.Fatal(err)
			}
			defer many.Close()
			r.pool = pgtest.Wired(t, many, pgx.QueryExecModeCacheStatement, w, nil)
			values := r.numbered(0, 10)
			cfg := testConfig()
			cfg.BatchSize = 5
			cfg.MaxAttempts = 50
			impatience(&cfg)
			test.adjust(&cfg)
			stop := test.start(r, cfg)
			r.reaches(0, 10)
			silent.Store(true)
			for _, v := range []string{"a", "b", "c"} {
				r.log.Append(0, v, id(v))
				values = append(values, v)
			}
			until(t, "two attempts to be given up", func() bool { return w.Cuts.Load() >= 3 })
			until(t, "Healthy to say so", func() bool { return r.consumer.Healthy() != nil })
			if err := r.consumer.Healthy(); !strings.Contains(err.Error(), "orders/0 has failed since") {
				t.Errorf("Healthy: %v", err)
			}
			if err := r.consumer.Live(); err != nil {
				t.Errorf("Live: %v: no restart mends it", err)
			}
			all, err := r.consumer.Status(t.Context())
			good := err == nil &&
				len(all) == 1 &&
				all[0].Failing != nil &&
				!all[0].FailingSince.IsZero()
			if !good {
				t.Errorf("Status: %v, %v", all, err)
			}
			silent.Store(false)
			r.reaches(0, 13)
			until(t, "Healthy to be nil again", func() bool { return r.consumer.Healthy() == nil })
			stop()
			r.once(values...)
			if len(r.reasons()) > 0 {
				t.Errorf("parked: %v", r.reasons())
			}
		})
	}
}

// T7: so does the look at all blocked keys, before which pauses and lost commits are looked for.
func TestT7SilentServerAsAllArePromoted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	w := &pgtest.Wire{Statement: consumer.PromoteAllSQL, At: func(n int32) pgtest.Cut {
		if n == 1 {
			return pgtest.Silent
		}
		return pgtest.Pass
	}}
	base := r.pool
	r.pool = pgtest.Wired(t, base, pgx.QueryExecModeCacheStatement, w, nil)
	values := r.numbered(0, 3)
	cfg := testConfig()
	impatience(&cfg)
	stop := r.start(queued, cfg)
	r.reaches(0, 3)
	until(t, "another look", func() bool { return w.Seen.Load() >= 2 })
	if err := r.consumer.Pause(t.Context(), "orders", 0, "test"); err != nil {
		t.Fatal(err)
	}
	until(t, "the pause to be noticed", func() bool {
		all, err := r.consumer.Status(t.Context())
		return err == nil && len(all) == 1 && all[0].Paused
	})
	stop()
	r.once(values...)
}
