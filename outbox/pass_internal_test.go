package outbox

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
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
	sink := &relaySink{cfg: cfg, pool: primary.Of(pool, cfg.Logger), dbTimeout: 10 * time.Second, gate: gate.New(8, time.Second)}
	p := newLaneOwner(t.Context(), sink, &lease.Lease{Sent: time.Now()}, 0).pass
	sink.gate.Hold(gate.All, time.Hour, true, "")
	p.reader.state = passListed
	p.reader.refs = []batchRef{{id: 2048, calls: 1}}
	p.chunk = &chunk{
		rows: []*callAttempt{{state: attemptReturned, attemptResult: attemptResult{result: Result{Outcome: Delivered}}}},
		next: 1,
		gate: sink.gate,
	}
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

// O14: a chunk of many tenants that are over their rates asks for their permits together, and not
// row by row: no other row of the lane is looked at meanwhile.
func TestO14ChunkOfTenantsOverTheirRates(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	asked := 0
	cfg := RelayConfig{Concurrency: 8, PollInterval: time.Second, LeaseTTL: 30 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	cfg.Hooks.TransactionFailed = func(TransactionFailedEvent) { asked++ } // the database gives none
	sink := &relaySink{
		cfg:       cfg,
		pool:      primary.Of(pool, cfg.Logger),
		dbTimeout: 10 * time.Second,
		gate:      gate.New(8, time.Second),
		emit:      emitter{hooks: cfg.Hooks, log: cfg.Logger},
	}
	sink.gate.SetLimits([]gate.Limit{{Key: gate.Key{Each: true}, Rated: true}}, time.Now())
	p := newLaneOwner(t.Context(), sink, &lease.Lease{Sent: time.Now()}, 0).pass
	rows := make([]*callAttempt, 640)
	for i := range rows {
		rows[i] = &callAttempt{Attempt: Attempt{Tenant: fmt.Sprint("t", i)}}
	}
	p.chunk = &chunk{rows: rows, gate: sink.gate}
	p.startRows(sink.gate.Take(1))
	if err := sink.gate.Close(); err != nil {
		t.Error(err)
	}
	if n := len(p.chunk.rowsToPark()); n != len(rows) || asked != 10 {
		t.Errorf("%d of %d rows wait, after %d questions: want 10", n, len(rows), asked)
	}
}

// O4: of more places than are held in memory, those with the lowest ids are kept, whichever portion
// they come with, and without batches that the cursor has passed.
func TestO4PlacesThatAreKept(t *testing.T) {
	t.Parallel()
	const last, n = 1500, 3 * maxRefs
	var l refList
	for from := n; from > 0; from -= refsAtOnce {
		l.portion = nil
		for i := max(from-refsAtOnce, 0); i < from; i++ {
			l.portion = append(l.portion, batchRef{xid: int64(n - from), id: int64(i) * 1024, calls: 1000})
		}
		l.whole = from <= refsAtOnce
		if l.add(last) != l.whole {
			t.Fatal("the list ends before its last portion")
		}
	}
	good := len(l.refs) == maxRefs &&
		l.cut &&
		l.refs[0].id == 1024 &&
		l.refs[maxRefs-1].id == maxRefs*1024
	if !good {
		t.Errorf("%d places from %d to %d, cut %v: want %d from 1024 to %d",
			len(l.refs), l.refs[0].id, l.refs[len(l.refs)-1].id, l.cut, maxRefs, maxRefs*1024)
	}
}
