package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// forwarderTopic is the topic that holds what is to be forwarded.
const forwarderTopic = "forward"

// forwarderRate keeps the backlog small: Watermill sorts all of it for each batch.
const forwarderRate = 10_000

var forwarderSchema = watermillsql.DefaultPostgreSQLSchema{SubscribeBatchSize: fillBatch}

// forwarderEnvelope is what forwarder.Publisher writes, which has no name for it outside.
type forwarderEnvelope struct {
	DestinationTopic string            `json:"destination_topic"`
	UUID             string            `json:"uuid"`
	Payload          []byte            `json:"payload"`
	Metadata         map[string]string `json:"metadata"`
}

// nowhere is the destination to which Watermill forwards.
type nowhere struct{ m *meter }

func (n nowhere) Publish(_ string, messages ...*message.Message) error {
	n.m.done(len(messages))
	return nil
}
func (nowhere) Close() error { return nil }

// forwarderDrain is Watermill's outbox: a topic in Postgres whose messages a forwarder publishes
// elsewhere.
func forwarderDrain() drain {
	return drain{
		connections: 4,
		fill: func(ctx context.Context, pool *pgxpool.Pool, rows int) error {
			sub, err := forwarderSubscriber(pool)
			if err != nil {
				return err
			}
			if err := errors.Join(sub.SubscribeInitialize(forwarderTopic), sub.Close()); err != nil {
				return err
			}
			insert := fmt.Sprintf(
				`insert into %s (uuid, payload, metadata, transaction_id)
				select gen_random_uuid(), p, '{}', pg_current_xact_id() from unnest($1::json[]) p`,
				forwarderSchema.MessagesTable(forwarderTopic),
			)
			return inBatches(rows, func(bodies [][]byte) error {
				envelopes := make([]json.RawMessage, len(bodies))
				for i, b := range bodies {
					var err error
					if envelopes[i], err = json.Marshal(forwarderEnvelope{
						DestinationTopic: "event",
						UUID:             uuid.NewString(),
						Payload:          b,
						Metadata:         map[string]string{},
					}); err != nil {
						return err
					}
				}
				_, err := pool.Exec(ctx, insert, envelopes)
				return err
			})
		},
		run: func(ctx context.Context, pool *pgxpool.Pool, m *meter) error {
			sub, err := forwarderSubscriber(pool)
			if err != nil {
				return err
			}
			f, err := forwarder.NewForwarder(sub, nowhere{m}, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: forwarderTopic})
			if err != nil {
				return err
			}
			ended := make(chan error, 1)
			go func() { ended <- f.Run(ctx) }()
			err = m.wait(ctx, ended)
			return errors.Join(err, f.Close(), sub.Close())
		},
	}
}

func forwarderSubscriber(pool *pgxpool.Pool) (*watermillsql.Subscriber, error) {
	return watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(pool), watermillsql.SubscriberConfig{
		SchemaAdapter: forwarderSchema, OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{}, PollInterval: 10 * time.Millisecond,
	}, watermill.NopLogger{})
}

// callArgs is a call as a job.
type callArgs struct {
	Key    string `json:"key"`
	Target string `json:"target"`
	Body   []byte `json:"body"`
}

func (callArgs) Kind() string { return "call" }

const (
	riverDrainRate        = 15_000
	riverDrainWorkers     = 2000
	riverDrainConnections = 16
)

// riverDrain works jobs that do nothing. A job counts when its worker has returned; the clock stops
// when all are completed in the table.
func riverDrain() drain {
	return drain{
		connections: riverDrainConnections,
		fill: func(ctx context.Context, pool *pgxpool.Pool, rows int) error {
			if err := migrateRiver(ctx, pool); err != nil {
				return err
			}
			client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				return err
			}
			return inBatches(rows, func(bodies [][]byte) error {
				jobs := make([]river.InsertManyParams, len(bodies))
				for i, b := range bodies {
					jobs[i].Args = callArgs{Key: uuid.NewString(), Target: "/event", Body: b}
				}
				_, err := client.InsertManyFast(ctx, jobs)
				return err
			})
		},
		run: func(ctx context.Context, pool *pgxpool.Pool, m *meter) error {
			workers := river.NewWorkers()
			river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[callArgs]) error {
				m.done(1)
				return nil
			}))
			client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
				Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverDrainWorkers}},
				FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
				Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				return err
			}
			if err := client.Start(ctx); err != nil {
				return err
			}
			err = m.wait(ctx, nil)
			err = errors.Join(err, client.Stop(context.WithoutCancel(ctx)))
			m.end = time.Now()
			return err
		},
		check: func(ctx context.Context, pool *pgxpool.Pool, rows int) error {
			var n int
			if err := pool.QueryRow(ctx, `select count(*) from river_job where state = 'completed'`).Scan(&n); err != nil {
				return err
			}
			if n != rows {
				return fmt.Errorf("%d jobs are completed, there were %d", n, rows)
			}
			return nil
		},
	}
}

// migrateRiver makes River's tables.
func migrateRiver(ctx context.Context, pool *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}
