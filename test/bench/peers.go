package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

// against compares the consumer with a peer that does the same work: each message takes effect
// once, an effect is one row.
func against(peer func(o options) side) func(context.Context, *server, options) (side, side, error) {
	return func(ctx context.Context, srv *server, o options) (wrapped, plain side, err error) {
		wrapped, _, err = work{connections: 4, batch: 100, id: randomID, onePlain: applyPipelined}.open(ctx, srv, o)
		return wrapped, peer(o), err
	}
}

const (
	// A consumer group reads a topic with one subscriber at a time, which holds the lock on the
	// group's offset: more of them need more topics, and the publishers must know.
	watermillTopics = 1
	watermillRate   = 12_000 // messages a second and topic that a run must last for
)

// watermillFillSQL puts messages into a topic's table, a hundred in each transaction, as its
// publisher would. No parameters, because a DO block takes none: the table's name and the number of
// transactions are formatted in.
const watermillFillSQL = `
do $$ begin
  for i in 1..%[2]d loop
    insert into %[1]s (uuid, payload, metadata, transaction_id)
      select gen_random_uuid(), decode(repeat(md5(i::text || g::text), 19) , 'hex'), '{}', pg_current_xact_id()
        from generate_series(1, 100) g;
    commit;
  end loop;
end $$`

// watermillSide reads topics that are in the database already, which is less than the consumer's
// side does. Watermill moves the offset in the transaction in which the handler works; keys are not
// deduped.
func watermillSide(o options) side {
	batches := int(watermillRate*(o.window+settle).Seconds())/100 + 1
	schema := watermillsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 100, GeneratePayloadType: func(string) string { return "BYTEA" }}
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		pool, err := db.open(ctx, watermillTopics+1)
		if err != nil {
			return sample{}, err
		}
		sub, err := watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(pool), watermillsql.SubscriberConfig{
			SchemaAdapter: schema, OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{},
			PollInterval: 10 * time.Millisecond, InitializeSchema: true,
		}, watermill.NopLogger{})
		if err != nil {
			return sample{}, err
		}
		defer func() { _ = sub.Close() }() // before the pool is
		topics := make([]string, watermillTopics)
		for i := range topics {
			topics[i] = fmt.Sprintf("%s_%d", topic, i)
			if err := sub.SubscribeInitialize(topics[i]); err != nil {
				return sample{}, err
			}
			if _, err := pool.Exec(ctx, fmt.Sprintf(watermillFillSQL, schema.MessagesTable(topics[i]), batches)); err != nil {
				return sample{}, err
			}
			if _, err := pool.Exec(ctx, "vacuum analyze "+schema.MessagesTable(topics[i])); err != nil {
				return sample{}, err
			}
		}
		var count atomic.Int64
		dry, failed := make(chan struct{}), make(chan error, watermillTopics)
		var drained sync.Once
		reading, stop := context.WithCancel(ctx)
		defer stop()
		var handlers sync.WaitGroup
		var busy sync.RWMutex // a subscriber that is stopped uses its transaction at once, beside a handler
		stopped := false
		for _, name := range topics {
			messages, err := sub.Subscribe(reading, name)
			if err != nil {
				return sample{}, err
			}
			handlers.Go(func() {
				done := 0
				for m := range messages {
					busy.RLock()
					if stopped {
						busy.RUnlock()
						return
					}
					err := watermillHandle(m, int64(done))
					busy.RUnlock()
					if err != nil {
						failed <- err
						return
					}
					m.Ack()
					count.Add(1)
					if done++; done == batches*100 {
						drained.Do(func() { close(dry) })
					}
				}
			})
		}
		got, err := w.watch(ctx, db, count.Load, dry, failed)
		busy.Lock()
		stopped = true
		busy.Unlock()
		stop()
		closeErr := sub.Close()
		handlers.Wait()
		if err != nil {
			return got, err
		}
		if closeErr != nil {
			return got, closeErr
		}
		// The batches that were in hand have rolled back.
		return got, db.verifyWithin(ctx, count.Load(), watermillTopics*100)
	}
}

func watermillHandle(m *message.Message, n int64) error {
	tx, ok := watermillsql.TxFromContext(m.Context())
	if !ok {
		return fmt.Errorf("message %s came without its transaction", m.UUID)
	}
	_, err := tx.ExecContext(m.Context(), effectSQL, n, []byte(m.Payload))
	return err
}

// riverArgs is a message as a job; its id is what makes it unique.
type riverArgs struct {
	ID      string `json:"id" river:"unique"`
	Account int64  `json:"account"`
	Payload []byte `json:"payload"`
}

func (riverArgs) Kind() string { return "message" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	pool  *pgxpool.Pool
	count *atomic.Int64
}

// Work writes the effect and completes the job in one transaction.
func (r *riverWorker) Work(ctx context.Context, job *river.Job[riverArgs]) error {
	err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, effectSQL, job.Args.Account, job.Args.Payload); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		r.count.Add(1)
	}
	return err
}

const (
	riverConnections = 16
	riverWorkers     = 100
	riverAhead       = 4000 // jobs inserted and not done
)

// riverSide inserts messages as unique jobs, a hundred at a time, and works them.
func riverSide(options) side {
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		pool, err := db.open(ctx, riverConnections)
		if err != nil {
			return sample{}, err
		}
		if err := migrateRiver(ctx, pool); err != nil {
			return sample{}, err
		}
		var count atomic.Int64
		workers := river.NewWorkers()
		river.AddWorker(workers, &riverWorker{pool: pool, count: &count})
		client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
			Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
			FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return sample{}, err
		}
		if err := client.Start(ctx); err != nil {
			return sample{}, err
		}
		failed := make(chan error, 1)
		inserting, stop := context.WithCancel(ctx)
		defer stop()
		var producer sync.WaitGroup
		producer.Go(func() {
			if err := riverInsert(inserting, client, &count); inserting.Err() == nil { // it ends with an error always
				failed <- err
			}
		})
		got, err := w.watch(ctx, db, count.Load, nil, failed)
		stop()
		producer.Wait()
		if stopErr := client.Stop(ctx); err == nil {
			err = stopErr
		}
		if err != nil {
			return got, err
		}
		return got, db.verify(ctx, count.Load())
	}
}

func riverInsert(ctx context.Context, client *river.Client[pgx.Tx], done *atomic.Int64) error {
	r := rand.NewChaCha8([32]byte{4})
	bodies := newBodies(r)
	opts := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}} // by default completed jobs count too
	jobs := make([]river.InsertManyParams, 100)
	for inserted := 0; ; {
		for int64(inserted)-done.Load() > riverAhead {
			if err := until(ctx, time.Now().Add(time.Millisecond)); err != nil {
				return err
			}
		}
		for i := range jobs {
			jobs[i] = river.InsertManyParams{InsertOpts: opts, Args: riverArgs{
				ID: randomID(r, inserted+i).String(), Account: int64(inserted + i), Payload: bodies[(inserted+i)%len(bodies)]}}
		}
		if _, err := client.InsertMany(ctx, jobs); err != nil {
			return err
		}
		inserted += len(jobs)
	}
}
