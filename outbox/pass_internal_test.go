package outbox

import (
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// O2: a chunk ends while the sink is held, and the transaction that notes it fails. The batches of
// the pass that are not read yet are read once the sink takes calls again, and not skipped.
func TestO2RestOfAPassAfterAFailedTransaction(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	cfg := RelayConfig{Concurrency: 8, PollInterval: time.Second, LeaseTTL: 30 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	sink := &relaySink{cfg: cfg, pool: primary.Of(pool, cfg.Logger), dbTimeout: 10 * time.Second, rates: newRelayRates(8, time.Second)}
	p := newLaneOwner(t.Context(), sink, &lease.Lease{Sent: time.Now()}, 0).pass
	sink.rates.hold(allCalls, time.Hour, HoldsAll)
	p.reader.state, p.reader.refs = passListed, []batchRef{{id: 2048, calls: 1}}
	p.chunk = &chunk{rows: []*callAttempt{{state: attemptReturned, attemptResult: attemptResult{result: Result{Outcome: Delivered}}}}, next: 1, rates: sink.rates}
	if at := p.due(time.Now()); !at.IsZero() {
		t.Fatalf("the chunk's end is due at %v", at)
	}
	if err := p.run(); err == nil {
		t.Fatal("a transaction committed at a port that nothing listens to")
	}
	if p.chunk == nil || p.reader.exhausted() {
		t.Error("the rest of the pass is forgotten: the next transaction begins the next pass")
	}
}
