package consumer_test

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// With a Concurrency of 1 a batch runs the statements of testdata/batch.wire, one a line: those of
// the time before there were slots.
func TestC1ConcurrencyOneOnTheWire(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	var mu sync.Mutex
	open := map[int][]string{} // transactions under way, by connection
	var last []string          // of messages that committed
	w := &wire.Wire{At: func(m wire.Message) wire.Action {
		mu.Lock()
		defer mu.Unlock()
		if m.Kind != wire.Bind && m.Kind != wire.Query {
			return wire.Pass
		}
		if m.SQL == "begin" || open[m.Conn] != nil {
			open[m.Conn] = append(open[m.Conn], string(m.Kind)+" "+strings.Join(strings.Fields(m.SQL), " "))
		}
		if m.SQL == "commit" {
			if strings.Contains(strings.Join(open[m.Conn], "\n"), "effects") {
				last = open[m.Conn]
			}
			delete(open, m.Conn)
		}
		return wire.Pass
	}}
	cfg := r.pool.Config().Copy()
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	cfg.ConnConfig.DialFunc = w.Dial(cfg.ConnConfig.DialFunc)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close(); w.Close() })
	values := r.numbered(0, 3)
	ccfg := testConfig()
	// all three in one batch
	ccfg.BatchSize = 3
	ccfg.Linger = patience
	stop := r.startOn(r.src, pool, queued, ccfg)
	r.reaches(0, 3)
	stop()
	r.once(values...)
	want, err := os.ReadFile("testdata/batch.wire")
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(last, "\n") + "\n"; got != string(want) {
		t.Errorf("a batch sends:\n%s\nwant:\n%s", got, want)
	}
	if n := r.count(`select count(*) from onlyonce.done`); n != 0 {
		t.Errorf("%d rows of onlyonce.done", n)
	}
}
