package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// eventLog is a source of events whose ids are their values.
type eventLog struct{ consumer.Source }

func (eventLog) ServeScope(string, claimed.Mark) error { return nil }

func newEventLog(s consumer.Source) eventLog {
	return eventLog{fetching{s, func(f *source.Fetched[*consumer.Message], _ error) {
		for _, m := range f.Messages {
			claimed.Set(m, "", string(m.Value))
		}
	}}}
}

// T4: a batch whose fence, effects, seal and COMMIT reach the server long after its owner gave it
// up, made it again on another connection and committed hundreds more does not commit, whatever its
// isolation level and whatever claims its messages have: the row of progress that stops it outlives
// it. Behind it the rows go.
func TestT4LateBatchDoesNotCommit(t *testing.T) {
	const (
		heldUp = 10
		first  = 20
		more   = 280
	)
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		for name, choose := range map[string]func(*consumer.Config){
			"positions": func(c *consumer.Config) {
				c.Key = nil
				c.PositionsOnly = true
			},
			"events": func(c *consumer.Config) { c.Key = nil },
			"keys":   func(*consumer.Config) {},
		} {
			t.Run(level+", "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 1)
				var source consumer.Source = r.src
				if name == "events" {
					source = newEventLog(r.src)
				}
				var session, late atomic.Int32
				hold := make(chan struct{})
				w := &pgtest.Wire{Statement: consumer.FenceSQL, At: func(n int32) pgtest.Cut {
					if n != heldUp {
						return pgtest.Pass
					}
					late.Store(session.Load())
					return pgtest.Held
				}}
				pool := pgtest.Wired(t, r.pool, pgx.QueryExecModeCacheStatement, w, hold)
				cfg := testConfig()
				choose(&cfg)
				cfg.BatchSize = 1
				// Its answer comes with a snapshot.
				cfg.OnBegin = func(ctx context.Context, tx consumer.Tx) error {
					tx.Queue(`set transaction isolation level ` + level)
					var pid int32
					err := tx.QueryRow(
						ctx,
						`select pg_backend_pid() from onlyonce.progress union all select pg_backend_pid() limit 1`,
					).Scan(&pid)
					session.Store(pid)
					return err
				}
				values := r.numbered(0, first)
				stop := r.startOn(source, pool, queued, cfg)
				r.reaches(0, first)
				produce := func() {
					for range more {
						v := fmt.Sprint("m", len(values))
						r.log.Append(0, v, id(v))
						values = append(values, v)
					}
					r.reaches(0, int64(len(values)))
				}
				produce()
				if w.Cuts.Load() != 1 {
					t.Fatalf("%d transactions were held up", w.Cuts.Load())
				}
				close(hold)
				until(t, "the late batch is over", func() bool {
					return r.count(`select count(*) from pg_stat_activity where pid = $1`, late.Load()) == 0
				})
				left := func() int { return r.count(`select count(*) from onlyonce.progress`) }
				// Other transactions may be open when it looks.
				for n := 0; left() > more && n < 10; n++ {
					produce()
				}
				stop()
				r.once(values...)
				if n := left(); n > more {
					t.Errorf("%d rows of progress are left", n)
				}
			})
		}
	}
}

// F1: what is deleted is never the row that the position is read from, and a new owner's position
// is where the one before ended (T4).
func TestF1PruningKeepsThePosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := testConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	cfg.BatchSize = 1
	var values []string
	stop := r.start(queued, cfg)
	for range 3 {
		for range 250 {
			v := fmt.Sprint("m", len(values))
			r.log.Append(0, v)
			values = append(values, v)
		}
		r.reaches(0, int64(len(values)))
		stop()
		if p := r.position(0); p != int64(len(values)) {
			t.Fatalf("position %d of %d", p, len(values))
		}
		stop = r.start(queued, cfg)
	}
	stop()
	r.once(values...)
	if n := r.count(`select count(*) from onlyonce.progress`); n == 0 || n > 500 {
		t.Errorf("%d rows of progress are left", n)
	}
}
