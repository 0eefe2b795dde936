package consumer_test

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/consumertest"
)

// children are the scenarios that end in SIGKILL, or may.
var children = map[string]func(db string) error{
	"points": playPoints,
	"before-commit": func(db string) error {
		return childRun(db, &consumertest.Source{}, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if err := effect(ctx, tx, m); err != nil {
				return err
			}
			if m.Offset == 14 { // in the middle of the second batch; its effects have been written, and not committed
				kill()
			}
			return nil
		})
	},
	"before-offset-commit": func(db string) error {
		return childRun(db, &consumertest.Source{OnCommit: func(_ int32, offset int64) error {
			if offset > 0 { // the first commit, at 0, is the proof of membership
				kill()
			}
			return nil
		}}, queued)
	},
	"poison": func(db string) error {
		return childRun(db, &consumertest.Source{}, poisoned)
	},
	"poison that blocks": func(db string) error {
		return childRun(db, &consumertest.Source{}, poisoned, func(cfg *consumer.Config) { cfg.OnFailure = consumer.BlockPartition })
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
func crashLog() (log *consumertest.Log, values []string) {
	log = consumertest.NewLog("orders", 1)
	for i := range 30 {
		v := fmt.Sprintf("m%d", i)
		log.Append(0, v, id(v))
		values = append(values, v)
	}
	return log, values
}

func childRun(db string, src *consumertest.Source, h consumer.Handler, tune ...func(*consumer.Config)) error {
	pool, err := pgxpool.New(context.Background(), db)
	if err != nil {
		return err
	}
	src.Log, _ = crashLog()
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
	if ws, ok := state.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
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

// F1: the database's position counts, not Kafka's, which was never written.
func TestF1KilledBetweenCommitAndOffsetCommit(t *testing.T) {
	t.Parallel()
	r, values := crashed(t, "before-offset-commit")
	before := r.position(0)
	if before < 10 {
		t.Fatalf("position %d after the kill, want a committed batch", before)
	}
	cfg := testConfig()
	cfg.Key, cfg.PositionsOnly = nil, true // the position alone has to do it
	stop := r.start(queued, cfg)
	r.reaches(0, 30)
	stop()
	r.once(values...)
}

// F1: whoever resets the group's offsets does not make messages run again.
func TestF1CommittedOffsetResetToZero(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 30)
	cfg := testConfig()
	cfg.Key, cfg.PositionsOnly = nil, true
	stop := r.start(queued, cfg)
	r.reaches(0, 30)
	stop()
	r.log.SetCommitted("stock", 0, 0, "")
	r.log.Append(0, "new", id("new"))
	stop = r.start(queued, cfg)
	r.reaches(0, 31)
	stop()
	r.once(append(values, "new")...)
	r.log.ClearCommitted("stock") // they expire, too
	r.log.Append(0, "newer", id("newer"))
	stop = r.start(queued, cfg)
	r.reaches(0, 32)
	stop()
	r.once(append(values, "new", "newer")...)
}

// F9, D2: a message that kills its process is found, because its attempts are counted before they run.
func TestF9MessageThatKillsTheProcessIsParkedAlone(t *testing.T) {
	t.Parallel()
	r, values := crashed(t, "poison") // in a batch: nothing is counted
	for range testConfig().MaxAttempts {
		runChild(t, "poison", r.pool.Config().ConnString())
	}
	stop := r.start(queued, testConfig())
	r.reaches(0, 30)
	stop()
	r.once(append(values[:14:14], values[15:]...)...)
	if got := fmt.Sprint(r.reasons()); got != "map[14:crashed]" {
		t.Errorf("parked: %s", got)
	}
}
