package eventsource_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds what tests wait for; nothing is judged by how long it took.
var patience = pgtest.Patience(time.Minute)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// rig is a database with a stream "s".
type rig struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func newRig(t *testing.T, partitions int) *rig {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 24
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r := &rig{t: t, pool: pool}
	r.stream("s", partitions)
	return r
}

func (r *rig) stream(topic string, partitions int) {
	r.t.Helper()
	if _, err := eventsource.MakeStream(r.t.Context(), r.pool, topic, partitions); err != nil {
		r.t.Fatal(err)
	}
}

// quick is quick in everything.
func quick(group string, topics ...string) eventsource.Config {
	return eventsource.Config{Group: group, Topics: topics, PollInterval: 20 * time.Millisecond, LeaseTTL: 3 * time.Second}
}

func (r *rig) source(cfg eventsource.Config) *eventsource.Source {
	r.t.Helper()
	s, err := eventsource.NewSource(r.pool, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func one[T any](r *rig, sql string, args ...any) (v T) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), sql, args...).Scan(&v); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// begin opens a transaction that the test's end rolls back.
func (r *rig) begin(iso pgx.TxIsoLevel) pgx.Tx {
	r.t.Helper()
	tx, err := r.pool.BeginTx(r.t.Context(), pgx.TxOptions{IsoLevel: iso})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// appended appends events to partition 0 of "s" in a transaction, without an end.
func appended(t *testing.T, tx pgx.Tx, ids ...string) error {
	t.Helper()
	events := make([]eventsource.Event, len(ids))
	for i, id := range ids {
		events[i] = eventsource.Event{Topic: "s", ID: id, Body: []byte(id)}
	}
	return eventsource.AppendTo(t.Context(), tx, 0, events...)
}

// append appends and commits.
func (r *rig) append(ids ...string) {
	r.t.Helper()
	tx := r.begin(pgx.ReadCommitted)
	if err := appended(r.t, tx, ids...); err != nil {
		r.t.Fatal(err)
	}
	r.commit(tx)
}

func (r *rig) commit(tx pgx.Tx) {
	r.t.Helper()
	if err := tx.Commit(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// log is what partition 0 of "s" holds, as "offset:id".
func (r *rig) log() (all []string) {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), `select "offset", id from onlyonce.event_log where partition = 0 order by "offset"`)
	if err != nil {
		r.t.Fatal(err)
	}
	all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var offset int64
		var id string
		err := row.Scan(&offset, &id)
		return fmt.Sprintf("%d:%s", offset, id), err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}
