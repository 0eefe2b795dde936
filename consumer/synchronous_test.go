package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// T5: while COMMIT waits for a synchronous standby the consumer is stopped, and its drain time
// passes. A COMMIT that is cancelled there becomes a local one: the server answers COMMIT, with a
// warning, and a failover loses what was reported as committed. pgx sends a cancel request when a
// statement's context ends, so COMMIT must not get the caller's context.
func TestT5CommitOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	standby := pgtest.NewStandbyAway(t)
	r := &rig{t: t, pool: standby.Admin, log: memlog.NewLog("orders", 1)}
	r.src = &memlog.Source{Log: r.log, GroupID: "stock"}
	r.exec(scenario.EffectsSQL)
	values := r.numbered(0, 5)

	var notices atomic.Int32
	cfg, err := pgxpool.ParseConfig(standby.URL + "&application_name=engine")
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { t.Log(n.Message); notices.Add(1) }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)

	entered := make(chan struct{})
	resume := make(chan struct{})
	drained := make(chan struct{})
	ccfg := testConfig()
	ccfg.BatchSize = len(values)
	ccfg.DrainTimeout = time.Millisecond
	stop := r.startOn(r.src, pool, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 0 {
			context.AfterFunc(ctx, func() { close(drained) })
			close(entered)
			<-resume
		}
		return queued(ctx, tx, m)
	}, ccfg)
	pgtest.Receive(t, patience, "the handler is entered", entered)
	standby.Leave()
	close(resume)
	until(t, "the engine's COMMIT waits for the standby", func() bool { return standby.Waits("engine") })
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	pgtest.Receive(t, patience, "drained", drained) // DrainTimeout has passed: the handler's context has ended
	standby.CancelAnother()
	if !standby.Waits("engine") {
		t.Error("COMMIT no longer waits for the standby: it was cancelled, and is on this server alone")
	}
	standby.Return()
	pgtest.Receive(t, patience, "it has stopped", stopped)
	if n := notices.Load(); n != 0 {
		t.Errorf("%d warnings of the server, want none", n)
	}
	if r.position(0) != 5 || len(r.reasons()) > 0 {
		t.Errorf("position %d, parked %v", r.position(0), r.reasons())
	}
	r.once(values...)
}
