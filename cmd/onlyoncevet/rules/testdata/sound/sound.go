// Package sound has functions in which there is nothing to find.
package sound

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/sqltx"
)

type orders struct {
	pool *pgxpool.Pool
	log  *slog.Logger
}

// Times for logs, ids for rows and the earliest time of a call may differ, and reads may go past
// the transaction.
func (o *orders) handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	began := time.Now()
	var price int64
	if err := o.pool.QueryRow(ctx, `
-- update prices with onlyonce's own tool
select price from prices where sku = $1`, m.Value).Scan(&price); err != nil {
		return err
	}
	row, at := uuid.New(), time.Now()
	if _, err := tx.Exec(ctx, `insert into orders values ($1, $2, $3)`, row, at, price); err != nil {
		return err
	}
	defer func() { o.log.Info("handled", "took", time.Since(began)) }()
	return outbox.Enqueue(ctx, tx, outbox.Call{
		Sink: "payments", Name: "charge", ID: m.ID(), OrderingKey: string(m.Key), NotBefore: time.Now().Add(time.Minute),
		Header: http.Header{"Date": {m.Time.UTC().Format(time.RFC1123)}}, Body: m.Value,
	})
}

// A pool may be passed where no transaction would fit, and where no statement can be sent.
func passed(ctx context.Context, tx consumer.Tx, m *consumer.Message, pool *pgxpool.Pool, db *sql.DB) error {
	slog.InfoContext(ctx, "handled", "pool", pool)
	if err := ping(ctx, pool); err != nil {
		return err
	}
	return audited(ctx, db, m.ID())
}

func ping(ctx context.Context, db interface{ Ping(context.Context) error }) error {
	return db.Ping(ctx)
}

func audited(ctx context.Context, db interface {
	PingContext(context.Context) error
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, id string) error {
	return db.PingContext(ctx)
}

// through connects to the transaction itself, as package sqltx does.
type through struct{ tx consumer.Tx }

func (t *through) Connect(context.Context) (driver.Conn, error) { return nil, driver.ErrBadConn }
func (t *through) Driver() driver.Driver                        { return nil }

func within(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	c := &through{tx: tx}
	db := sql.OpenDB(c)
	defer func() { _ = db.Close() }()
	_, err := db.ExecContext(ctx, `insert into orders values ($1)`, m.Value)
	return err
}

type receipt struct {
	Order string
	Read  time.Time
}

func read(m *consumer.Message) (receipt, error) {
	r := receipt{Order: m.ID(), Read: time.Now()}
	if len(m.Value) == 0 {
		return r, fmt.Errorf("empty at %v", time.Now())
	}
	return r, nil
}

// Only another field of the struct is a time, and only the error names one.
func fields(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	r, err := read(m)
	if err != nil {
		return err
	}
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", ID: r.Order})
}

type line struct {
	SKU    string
	Seen   time.Time `json:"-"`
	parsed time.Time
}

// The body has neither of the times.
func hidden(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	l := line{SKU: string(m.Value), Seen: time.Now()}
	l.parsed = time.Now()
	body, err := json.Marshal(&l)
	if err != nil {
		return err
	}
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "hold", Body: body})
}

// A random value that decides is no part of the call. A seed from the message gives the same value
// each time, and so does an id that is a hash.
func decided(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if rand.IntN(100) == 0 {
		slog.InfoContext(ctx, "a sample", "id", m.ID())
	}
	seeded := rand.New(rand.NewPCG(uint64(m.Offset), 0))
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d", seeded.IntN(16))
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", ID: uuid.NewSHA1(uuid.NameSpaceURL, m.Value).String(), Body: b.Bytes()})
}

// Goroutines that do not have the transaction may compute.
func parallel(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
	parsed := make(chan receipt, len(msgs))
	for _, m := range msgs {
		go func() { r, _ := read(m); parsed <- r }()
	}
	for range msgs {
		r := <-parsed
		tx.Queue(`insert into receipts values ($1)`, r.Order)
	}
	return nil
}

// A *sql.Tx over the handler's transaction.
func overSQL(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
		_, err := sqlTx.ExecContext(ctx, `insert into orders values ($1)`, m.Value)
		return err
	})
}

// The result of a Step is remembered.
func lease(w http.ResponseWriter, r *http.Request) {
	charge, err := idempotency.Step(r.Context(), "charge", func(ctx context.Context, key string) ([]byte, error) {
		return json.Marshal(uuid.New())
	})
	if err != nil {
		return
	}
	tx, err := idempotency.TxOf(r)
	if err != nil {
		return
	}
	_ = outbox.Enqueue(r.Context(), tx, outbox.Call{Sink: "mail", Name: "receipt", Body: charge})
}

// No handler: a program may use its pool, and an id of its own in a transaction of its own.
func start(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, `create table orders ()`); err != nil {
		return err
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	order := uuid.NewString()
	if _, err := tx.Exec(ctx, `insert into orders values ($1)`, order); err != nil {
		return err
	}
	if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Scope: "shop", ID: order}); err != nil {
		return err
	}
	go func() { _, _ = http.Get("https://example.com/started") }()
	return tx.Commit(ctx)
}

func loop(ctx context.Context, pool *pgxpool.Pool, id string, value []byte) (dedupe.Outcome, error) {
	return dedupe.Do(ctx, pool, dedupe.Key{Scope: "stock", ID: id, Fingerprint: dedupe.FingerprintOf(value)},
		func(ctx context.Context, tx dedupe.GuardedTx) error {
			tx.Queue(`insert into stock values ($1, now())`, value)
			return nil
		})
}
