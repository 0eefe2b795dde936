package consumer_test

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// children are the scenarios that end in SIGKILL, or may.
var children = map[string]func(db string) error{
	"points":       func(db string) error { return playPoints(db, orderConfig(), process.Pace{}) },
	"points-slots": playSlotPoints,
	"before-commit": func(db string) error {
		return childRun(db, &memlog.Source{}, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if err := effect(ctx, tx, m); err != nil {
				return err
			}
			// In the middle of the second batch; its effects have been written, and not committed.
			if m.Offset == 14 {
				kill()
			}
			return nil
		})
	},
	"offset-unsent": func(db string) error {
		return childRun(db, &memlog.Source{Log: mixLog(true), OnCommit: func(_ int32, offset int64) error {
			if offset > 0 { // the first commit, at 0, is the proof of membership
				kill()
			}
			return nil
		}}, scenario.Handle, func(cfg *consumer.Config) {
			cfg.Key = nil
			cfg.PositionsOnly = true
		})
	},
	"poison": func(db string) error {
		return childRun(db, &memlog.Source{Log: mixLog(false)}, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if err := scenario.Handle(ctx, tx, m); err != nil {
				return err
			}
			if string(m.Value) == scenario.Plain {
				kill()
			}
			return nil
		})
	},
	"poison that blocks": func(db string) error {
		return childRun(db, &memlog.Source{}, poisoned, func(cfg *consumer.Config) { cfg.OnFailure = consumer.BlockPartition })
	},
}

func poisoned(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if m.Offset == 14 {
		kill()
	}
	return queued(ctx, tx, m)
}

func kill() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // not a step further
}

// crashLog is the same log in every process.
func crashLog() (log *memlog.Log, values []string) {
	log = memlog.NewLog("orders", 1)
	for i := range 30 {
		v := fmt.Sprintf("m%d", i)
		log.Append(0, v, id(v))
		values = append(values, v)
	}
	return log, values
}

// mixLog has the mix in it, the same in every process.
func mixLog(positionsOnly bool) *memlog.Log {
	log := memlog.NewLog("orders", 1)
	scenario.New(log, "stock", "orders").Fill(1, !positionsOnly)
	return log
}

func childRun(db string, src *memlog.Source, h consumer.HandlerFunc, tune ...func(*consumer.Config)) error {
	pool, err := pgxpool.New(context.Background(), db)
	if err != nil {
		return err
	}
	if src.Log == nil {
		src.Log, _ = crashLog()
	}
	src.GroupID = "stock"
	cfg := testConfig()
	for _, f := range tune {
		f(&cfg)
	}
	c, err := consumer.New(pool, src, h, cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.Run(ctx)
}

// crashed plays a scenario, expects it to die by SIGKILL, and returns a rig on the same database.
func crashed(t *testing.T, scenario string) (*rig, []string) {
	r := newRig(t, 1)
	var values []string
	r.log, values = crashLog()
	r.src.Log = r.log
	state := runChild(t, scenario, r.pool.Config().ConnString())
	if !killed(state) {
		t.Fatalf("the child ended with %v, not by SIGKILL", state)
	}
	return r, values
}

// T1, F7: effects without their COMMIT are gone, and the redelivery applies them.
func TestT1KilledBetweenEffectAndCommit(t *testing.T) {
	t.Parallel()
	r, values := crashed(t, "before-commit")
	if n := r.count(`select count(*) from effects`); n != 10 {
		t.Fatalf("%d effects after the kill, want those of the first batch", n)
	}
	stop := r.start(queued, testConfig())
	r.reaches(0, 30)
	stop()
	r.once(values...)
}
