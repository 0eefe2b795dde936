package kafkasink_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// effects creates the table of a service's effects. It has no unique constraint, so that an effect
// applied twice would show.
func effects(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.DB(t)
	if _, err := pool.Exec(t.Context(), `create table effects (id text not null, key text)`); err != nil {
		t.Fatal(err)
	}
	return pool
}

func count(t *testing.T, pool *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// started runs a function until stop, which fails the test unless the function returns nil.
func started(t *testing.T, what string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(patience):
			pgtest.GaveUp(t, patience, "the end of "+what)
		}
	}
}

// O10: service A consumes commands and emits an event for each through its outbox. Service B, with
// a database of its own, consumes the events by their message-id. Meanwhile A's workers are killed,
// B's are restarted, the broker is killed and comes back, and every fifth acknowledgement is lost,
// so that the relay sends written records again. B must have one effect for each call that A
// committed.
func TestO10TwoServices(t *testing.T) {
	if testing.Short() {
		t.Skip("a long test: make long plays it")
	}
	kafkatest.Brokers(t) // skips without a real broker; this test kills one of its own
	k, err := devenv.StartKafka(t.Context(), devenv.Options{Force: devenv.KindLocal, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			t.Error(err)
		}
	})
	const n = 400
	commands := kafkatest.Topic(t, k.Brokers, 3, nil)
	event := kafkatest.Topic(t, k.Brokers, 3, nil)
	dbA := effects(t)
	dbB := effects(t)
	a := service{Postgres: dbA.Config().ConnString(), Brokers: k.Brokers, Commands: commands, Event: event}
	b := a
	b.Postgres = dbB.Config().ConnString()

	cl := kafkatest.Client(t, k.Brokers)
	produced := 0
	produce := func(upTo int) {
		t.Helper()
		var recs []*kgo.Record
		for ; produced < upTo; produced++ {
			id := fmt.Sprint(produced)
			recs = append(recs, &kgo.Record{
				Topic:     commands,
				Partition: int32(produced % 3),
				Headers:   []kgo.RecordHeader{{Key: "message-id", Value: []byte(id)}},
			})
		}
		if err := cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	applied := func(least int) {
		t.Helper()
		until(t, fmt.Sprintf("B has %d effects", least), func() bool {
			return count(t, dbB, `select count(distinct id) from effects`) >= least
		})
	}

	worker := a.startChild(t)
	stopB := started(t, "B", b.runB)
	for round := 1; round <= 4; round++ {
		produce(round * n / 4)
		applied(round*n/4 - 60)
		switch round {
		case 1, 3:
			kill(worker)
			worker = a.startChild(t)
		case 2:
			if err := k.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			stopB() // it also stops in order without a broker
			if err := k.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			stopB = started(t, "B", b.runB)
		case 4:
			stopB()
			stopB = started(t, "B", b.runB)
		}
	}
	applied(n)
	until(t, "nothing is pending", func() bool {
		return count(t, dbA, `select count(*) from onlyonce.calls where state <> 'delivered'`) == 0
	})
	ends, err := kafkatest.Admin(t, k.Brokers).ListEndOffsets(t.Context(), event)
	if err != nil {
		t.Fatal(err)
	}
	written := 0
	for p := range int32(3) {
		o, _ := ends.Lookup(event, p)
		written += int(o.Offset)
	}
	// B has handled all records, copies included, once its positions are at the ends.
	until(t, "B has passed every record", func() bool {
		return count(t, dbB, `select coalesce(sum(next_offset), 0)::int from onlyonce.positions`) == written
	})
	stopB()
	if calls := count(t, dbA, `select count(*) from onlyonce.calls`); calls != n {
		t.Errorf("A committed %d calls, want %d", calls, n)
	}
	if got := count(t, dbB, `select count(*) from effects`); got != n {
		t.Errorf("B has %d effects, want %d", got, n)
	}
	if written <= n {
		t.Errorf("%d records: nothing was sent again, and nothing was shown", written)
	}
	keys := map[string]bool{}
	rows, err := dbA.Query(t.Context(), `select key::text from onlyonce.calls`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			t.Fatal(err)
		}
		keys[key] = true
	}
	rows, err = dbB.Query(t.Context(), `select key from effects`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			t.Fatal(err)
		}
		if !keys[key] {
			t.Errorf("an effect under %s, which is no call's key", key)
		}
		delete(keys, key)
	}
	if len(keys) > 0 || rows.Err() != nil {
		t.Errorf("%d calls without an effect (%v)", len(keys), rows.Err())
	}
	t.Logf("%d calls, %d records, %d effects", n, written, n)
}
