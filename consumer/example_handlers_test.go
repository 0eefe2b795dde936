package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/shard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A handler of messages. Its producer sends one order twice; the stock is held once.
func ExampleHandler() {
	pool, end := exampleDatabase(`create table stock (sku text primary key, held int); insert into stock values ('tea', 0), ('milk', 0)`)
	defer end()
	orders := memlog.NewLog("orders", 1) // in a program: kafkasource.New
	for _, o := range []struct{ id, sku string }{{"order-1", "tea"}, {"order-2", "milk"}, {"order-1", "tea"}} {
		orders.Append(0, o.sku, consumer.Header{Name: "message-id", Value: []byte(o.id)})
	}

	handle := func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(`update stock set held = held + 1 where sku = $1`, string(m.Value))
		return nil
	}
	c, err := consumer.New(pool, &memlog.Source{Log: orders, GroupID: "stock"}, consumer.HandlerFunc(handle), consumer.Config{
		Scope: "stock",
		Key:   consumer.HeaderKey("message-id"),
	})
	if err != nil {
		panic(err)
	}
	runTo(c, 3)
	printRows(pool, `select sku || ': ' || held from stock order by sku`)
	// Output:
	// milk: 1
	// tea: 1
}

// A handler of batches: one statement for all messages. It names the message that it cannot apply,
// which is set aside; the others are applied.
func ExampleBatchHandlerFunc() {
	pool, end := exampleDatabase(`create table payments (account text, amount int)`)
	defer end()
	payments := memlog.NewLog("payments", 1)
	for i, amount := range []string{"10", "a lot", "20"} {
		payments.AppendMessage(0, &consumer.Message{Key: []byte("acme"), Value: []byte(amount),
			Headers: []consumer.Header{{Name: "message-id", Value: fmt.Appendf(nil, "payment-%d", i)}}})
	}

	handle := func(_ context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
		var accounts []string
		var amounts []int
		for _, m := range msgs {
			var amount int
			if _, err := fmt.Sscan(string(m.Value), &amount); err != nil {
				return consumer.FailMessage(m, consumer.Permanent(err))
			}
			accounts = append(accounts, string(m.Key))
			amounts = append(amounts, amount)
		}
		tx.Queue(`insert into payments select * from unnest($1::text[], $2::int[])`, accounts, amounts)
		return nil
	}
	c, err := consumer.New(pool, &memlog.Source{Log: payments, GroupID: "ledger"}, consumer.BatchHandlerFunc(handle), consumer.Config{
		Scope: "ledger",
		Key:   consumer.HeaderKey("message-id"),
	})
	if err != nil {
		panic(err)
	}
	runTo(c, 3)
	printRows(pool, `select account || ' ' || amount from payments order by amount`)
	printRows(pool, `select 'parked at offset ' || "offset" || ': ' || reason from onlyonce.parked`)
	// Output:
	// acme 10
	// acme 20
	// parked at offset 1: permanent
}

// A message that fails holds up the later ones of the same account, and no others. They wait in the
// database, in order, and are tried again from there.
func ExampleFailurePolicy() {
	pool, end := exampleDatabase(`create table entries (n bigint generated always as identity, account text, entry text)`)
	defer end()
	entries := memlog.NewLog("entries", 1)
	for i, e := range []struct{ account, entry string }{{"alice", "open"}, {"bob", "open"}, {"alice", "close"}, {"bob", "close"}} {
		entries.AppendMessage(0, &consumer.Message{Key: []byte(e.account), Value: []byte(e.entry),
			Headers: []consumer.Header{{Name: "message-id", Value: fmt.Appendf(nil, "entry-%d", i)}}})
	}

	handle := func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		if string(m.Key) == "alice" && string(m.Value) == "open" && m.Attempt < 3 {
			return errors.New("alice's bank does not answer")
		}
		tx.Queue(`insert into entries (account, entry) values ($1, $2)`, string(m.Key), string(m.Value))
		return nil
	}
	c, err := consumer.New(pool, &memlog.Source{Log: entries, GroupID: "ledger"}, consumer.HandlerFunc(handle), consumer.Config{
		Scope: "ledger",
		Key:   consumer.HeaderKey("message-id"),
		// By the record key, unless Config.OrderingKey says otherwise.
		OnFailure: consumer.ParkOrderingKey,
		Backoff:   dedupe.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond},
	})
	if err != nil {
		panic(err)
	}
	runTo(c, 4)
	printRows(pool, `select account || ' ' || entry from entries order by account, n`)
	// Output:
	// alice open
	// alice close
	// bob open
	// bob close
}

// A team keeps its own loop and its own transaction, and uses one call of onlyonce. Before its
// effects, and in the same transaction, the loop claims the message's id. It acknowledges the
// message after the commit. See examples/own-loop for the whole loop.
func Example_ownLoop() {
	pool, end := exampleDatabase(`create table payments (id text, amount int)`)
	defer end()
	deliveries := []struct {
		id     string
		amount int
	}{{"payment-1", 10}, {"payment-2", 20}, {"payment-1", 10}, {"payment-2", 2000}}

	ctx := context.Background()
	for _, m := range deliveries {
		var outcome dedupe.Outcome
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			outcome, err = dedupe.Claim(ctx, tx, dedupe.Key{
				Scope:       "ledger",
				ID:          m.id,
				Fingerprint: dedupe.FingerprintOf(fmt.Append(nil, m.amount)),
			})
			if err == nil && outcome == dedupe.Fresh {
				_, err = tx.Exec(ctx, `insert into payments values ($1, $2)`, m.id, m.amount)
			}
			// For example a conflict, another payload under a used id: set it aside and alert an
			// operator.
			return err
		})
		if err != nil {
			panic(err) // in a loop: try again; the message is not acknowledged yet
		}
		fmt.Println(m.id, outcome)
	}
	printRows(pool, `select 'applied: ' || id || ' ' || amount from payments order by id`)
	// Output:
	// payment-1 fresh
	// payment-2 fresh
	// payment-1 duplicate
	// payment-2 conflict
	// applied: payment-1 10
	// applied: payment-2 20
}

// runTo runs a consumer until its first partition has reached an offset and no parked message is to
// be tried again.
func runTo(c *consumer.Consumer, offset int64) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		all, err := c.Status(ctx)
		there := err == nil && len(all) > 0 && all[0].Position == offset
		if there && all[0].ToRetry+all[0].Blocked == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			panic(fmt.Sprintf("%+v, %v", all, err))
		}
	}
	cancel()
	if err := <-ended; err != nil {
		panic(err)
	}
}

func printRows(pool *pgxpool.Pool, sql string) {
	rows, err := pool.Query(context.Background(), sql)
	if err != nil {
		panic(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		panic(err)
	}
	for _, l := range lines {
		fmt.Println(l)
	}
}

// exampleDatabase makes a database with the schema of package migrations and the example's own
// tables.
func exampleDatabase(sql string) (pool *pgxpool.Pool, end func()) {
	s := &stage{}
	pool = pgtest.DB(s)
	if _, err := pool.Exec(context.Background(), sql); err != nil {
		panic(err)
	}
	return pool, func() {
		for i := len(s.ends) - 1; i >= 0; i-- {
			s.ends[i]()
		}
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

// Partitions in several databases: each is whole in one.
func ExampleNewSharded() {
	consume := func(ctx context.Context, poolA, poolB *pgxpool.Pool, source consumer.Source, handle consumer.Handler) error {
		names := []string{"a", "b"}
		shards, err := shard.New(shard.Config{
			Pools:       map[string]*pgxpool.Pool{"a": poolA, "b": poolB},
			OfPartition: func(topic string, partition int32) string { return names[partition%2] },
		})
		if err != nil {
			return err
		}
		c, err := consumer.NewSharded(shards, source, handle, consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id")})
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}
	_ = consume
}
