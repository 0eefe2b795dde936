package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Plain database/sql: claim, effect and call are in one transaction, and the message is
// acknowledged only after its COMMIT.
func ExampleClaim() {
	db, end := exampleDatabase(`create table stock (sku text primary key, held int); insert into stock values ('tea', 0)`)
	defer end()
	apply := func(ctx context.Context, id string, payload []byte) (outcome dedupe.Outcome, err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return 0, err
		}
		defer func() { _ = tx.Rollback() }()
		outcome, err = sqltx.Claim(ctx, tx, dedupe.Key{Scope: "stock", ID: id, Fingerprint: dedupe.FingerprintOf(payload)})
		switch {
		case err != nil:
			return 0, err
		case outcome == dedupe.Conflict:
			return outcome, fmt.Errorf("message %q came with another payload before: set it aside, and alert an operator", id)
		case outcome == dedupe.Duplicate:
			return outcome, nil
		}
		if _, err := tx.ExecContext(ctx, `update stock set held = held + 1 where sku = $1`, string(payload)); err != nil {
			return 0, err
		}
		call := outbox.Call{Sink: "payments", Name: "charge", Scope: "stock", ID: id, Target: "/charges", Body: payload}
		if err := sqltx.Enqueue(ctx, tx, call); err != nil {
			return 0, err
		}
		return outcome, tx.Commit()
	}
	for range 2 {
		fmt.Println(apply(context.Background(), "order-1", []byte("tea")))
	}
	printRows(db, `select sku || ': ' || held from stock`)
	printRows(db, `select 'calls: ' || count(*) from onlyonce.outbox_log`)
	// Output:
	// fresh <nil>
	// duplicate <nil>
	// tea: 1
	// calls: 1
}

func hold(ctx context.Context, db *sql.DB, queries *Queries, id, sku string) error {
	key := dedupe.Key{Scope: "stock", ID: id, Fingerprint: dedupe.FingerprintOf([]byte(sku))}
	_, err := sqltx.Do(ctx, db, key, func(ctx context.Context, tx *sql.Tx) error {
		return queries.WithTx(tx).HoldStock(ctx, sku)
	})
	return err // nil: acknowledge the message, it is applied now or was before
}

// The same message is delivered twice, and another one under its id once. Queries is what sqlc
// generates; GORM, ent and plain database/sql get the same *sql.Tx.
func ExampleDo() {
	db, end := exampleDatabase(`create table stock (sku text primary key, held int); insert into stock values ('tea', 0), ('milk', 0)`)
	defer end()
	queries := New(db)
	for _, m := range []struct{ id, sku string }{{"order-1", "tea"}, {"order-1", "tea"}, {"order-1", "milk"}} {
		err := hold(context.Background(), db, queries, m.id, m.sku)
		fmt.Println(err == nil, errors.Is(err, dedupe.ErrConflict))
	}
	printRows(db, `select sku || ': ' || held from stock order by sku`)
	// Output:
	// true false
	// true false
	// false true
	// milk: 0
	// tea: 1
}

// DBTX is what sqlc generates for database/sql.
type DBTX interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	PrepareContext(context.Context, string) (*sql.Stmt, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// Queries is what sqlc generates from a file of queries.
type Queries struct{ db DBTX }

// New is generated too.
func New(db DBTX) *Queries { return &Queries{db} }

// WithTx is generated too.
func (q *Queries) WithTx(tx *sql.Tx) *Queries { return &Queries{tx} }

// HoldStock is one of the queries.
func (q *Queries) HoldStock(ctx context.Context, sku string) error {
	_, err := q.db.ExecContext(ctx, `update stock set held = held + 1 where sku = $1`, sku)
	return err
}

// handle is a consumer's handler whose effects are queries of sqlc.
func handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
		return new(Queries).WithTx(sqlTx).HoldStock(ctx, string(m.Value))
	}); err != nil {
		return err
	}
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges", Body: m.Value})
}

// A consumer's handler writes with sqlc's queries: they commit with the message's id and position.
// The producer sends one order twice.
func ExampleWithin() {
	db, end := exampleDatabase(`create table stock (sku text primary key, held int); insert into stock values ('tea', 0)`)
	defer end()
	pool, err := pgxpool.New(context.Background(), exampleAddress)
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	orders := memlog.NewLog("orders", 1) // in a program: kafkasource.New
	for range 2 {
		orders.Append(0, "tea", consumer.Header{Name: "message-id", Value: []byte("order-1")})
	}
	c, err := consumer.New(pool, &memlog.Source{Log: orders, GroupID: "stock"}, consumer.HandlerFunc(handle), consumer.Config{
		Scope: "stock",
		Key:   consumer.HeaderKey("message-id"),
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		if all, err := c.Status(ctx); err == nil && len(all) > 0 && all[0].Position == 2 {
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		panic(err)
	}
	printRows(db, `select sku || ': ' || held from stock`)
	printRows(db, `select 'calls: ' || count(*) from onlyonce.outbox_log`)
	// Output:
	// tea: 1
	// calls: 1
}

// exampleAddress is where the example's database is.
var exampleAddress string

// exampleDatabase is a database with the schema of package migrations and the example's own tables.
func exampleDatabase(schema string) (db *sql.DB, end func()) {
	s := &stage{}
	exampleAddress = pgtest.DB(s).Config().ConnString()
	db, err := sql.Open("pgx", exampleAddress)
	if err != nil {
		panic(err)
	}
	if _, err := db.ExecContext(context.Background(), schema); err != nil {
		panic(err)
	}
	return db, func() {
		_ = db.Close()
		for i := len(s.ends) - 1; i >= 0; i-- {
			s.ends[i]()
		}
	}
}

func printRows(db *sql.DB, query string) {
	rows, err := db.QueryContext(context.Background(), query)
	if err != nil {
		panic(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			panic(err)
		}
		fmt.Println(line)
	}
	if err := rows.Err(); err != nil {
		panic(err)
	}
}

// stage is what package pgtest needs of a test, for examples, which have none.
type stage struct {
	testing.TB
	ends []func()
}

func (s *stage) Cleanup(f func())          { s.ends = append(s.ends, f) }
func (*stage) Helper()                     {}
func (*stage) Name() string                { return "example" }
func (*stage) Failed() bool                { return false }
func (*stage) Logf(string, ...any)         {}
func (*stage) Fatalf(f string, a ...any)   { panic(fmt.Sprintf(f, a...)) }
func (s *stage) Errorf(f string, a ...any) { s.Fatalf(f, a...) }
func (s *stage) Fatal(a ...any)            { panic(fmt.Sprint(a...)) }
