package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
)

// withOnlyonce passes the same handler a transaction.
func withOnlyonce(ctx context.Context, w *worker) error {
	source := kafkasource.New(kafkasource.Config{
		Brokers: w.brokers, GroupID: w.group, Topics: []string{w.topic}, SessionTimeout: w.session, HeartbeatInterval: w.session / 5,
	})
	handler := consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		return apply(ctx, tx, m.Value, recordOf(int(m.Partition), m.Offset))
	})
	c, err := consumer.New(w.pool, source, handler, consumer.Config{Scope: w.topic, Key: consumer.HeaderKey(idHeader)})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// watermillKafka is a router with the deduplicator, by the message's UUID. Its repository is
// Watermill's own, in memory, and remembers for an hour; by default it is a minute.
func watermillKafka(ctx context.Context, w *worker) error {
	cfg := wmkafka.DefaultSaramaSubscriberConfig()
	cfg.Version = sarama.V2_8_0_0 // the default is too old for brokers since 4.0
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	cfg.Consumer.Group.Session.Timeout = w.session
	cfg.Consumer.Group.Heartbeat.Interval = w.session / 5
	sub, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: w.brokers, ConsumerGroup: w.group, Unmarshaler: wmkafka.DefaultMarshaler{}, OverwriteSaramaConfig: cfg,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	remembered, err := middleware.NewMapExpiringKeyRepository(time.Hour)
	if err != nil {
		return err
	}
	deduplicator := &middleware.Deduplicator{
		KeyFactory: func(m *message.Message) (string, error) { return m.UUID, nil },
		Repository: remembered,
		Timeout:    time.Minute,
	}
	return w.route(ctx, sub, func(m *message.Message) error {
		partition, _ := wmkafka.MessagePartitionFromCtx(m.Context())
		offset, _ := wmkafka.MessagePartitionOffsetFromCtx(m.Context())
		return apply(m.Context(), w.pool, m.Payload, recordOf(int(partition), offset))
	}, deduplicator.Middleware)
}

func (w *worker) route(
	ctx context.Context, sub message.Subscriber, handle message.NoPublishHandlerFunc, middlewares ...message.HandlerMiddleware,
) error {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(middlewares...)
	router.AddConsumerHandler("apply", w.topic, sub, handle)
	return router.Run(ctx)
}

// recordMeta is the metadata that tells a row of Watermill's table from its copy.
const recordMeta = "record"

// publishWatermill puts the stream into Watermill's table, by its publisher. There is no Kafka.
func publishWatermill(ctx context.Context, p *play) error {
	sub, err := subscribeWatermill(p.pool, p.name)
	if err != nil {
		return err
	}
	if err := errors.Join(sub.SubscribeInitialize(p.name), sub.Close()); err != nil {
		return err
	}
	pub, err := wmsql.NewPublisher(wmsql.BeginnerFromPgx(p.pool), wmsql.PublisherConfig{
		SchemaAdapter: wmsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	for i, c := range p.stream.records {
		value, err := json.Marshal(c)
		if err != nil {
			return err
		}
		m := message.NewMessage(c.ID, value)
		m.SetContext(ctx)
		m.Metadata.Set(recordMeta, strconv.Itoa(i))
		if err := pub.Publish(p.name, m); err != nil {
			return err
		}
	}
	return pub.Close()
}

func subscribeWatermill(pool *pgxpool.Pool, group string) (*wmsql.Subscriber, error) {
	return wmsql.NewSubscriber(wmsql.BeginnerFromPgx(pool), wmsql.SubscriberConfig{
		ConsumerGroup: group, SchemaAdapter: wmsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wmsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
	}, watermill.NopLogger{})
}

// watermillSQL writes in the transaction that moves the subscriber's offset.
func watermillSQL(ctx context.Context, w *worker) error {
	sub, err := subscribeWatermill(w.pool, w.group)
	if err != nil {
		return err
	}
	return w.route(ctx, sub, func(m *message.Message) error {
		tx, ok := wmsql.TxFromContext(m.Context())
		if !ok {
			return errors.New("the message has no transaction")
		}
		_, err := tx.ExecContext(m.Context(), effectSQL, m.UUID, m.Metadata.Get(recordMeta))
		return err
	})
}

// riverArgs is a message as a job, unique by its id.
type riverArgs struct {
	ID     string `json:"id" river:"unique"`
	Record string `json:"record"`
}

func (riverArgs) Kind() string { return "apply" }

func (riverArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
}

func migrateRiver(ctx context.Context, p *play) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(p.pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// fromRiver inserts a unique job for each record, and completes it in the transaction of its
// effect. A job of a killed process is rescued after 10 seconds; by default it is an hour.
func fromRiver(ctx context.Context, w *worker) error {
	jobs := river.NewWorkers()
	river.AddWorker(jobs, river.WorkFunc(func(ctx context.Context, job *river.Job[riverArgs]) error {
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, effectSQL, job.Args.ID, job.Args.Record); err != nil {
				return err
			}
			_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
			return err
		})
	}))
	client, err := river.NewClient(riverpgxv5.New(w.pool), &river.Config{
		Workers: jobs, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		JobTimeout: 5 * time.Second, RescueStuckJobsAfter: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	err = w.each(ctx, func(ctx context.Context, m kafka.Message) error {
		_, err := client.Insert(ctx, riverArgs{ID: idOf(m), Record: recordOf(m.Partition, m.Offset)}, nil)
		return err
	})
	<-client.Stopped()
	return err
}

// dbosInput is a workflow's.
type dbosInput struct{ ID, Record string }

// withDBOS runs a workflow whose id is the message's. Its one step commits the effect with DBOS's
// record of it.
func withDBOS(ctx context.Context, w *worker) error {
	app, source, err := w.openDBOS(ctx)
	if err != nil {
		return err
	}
	apply := func(ctx dbos.Context, in dbosInput) (bool, error) {
		return dbos.RunAsTransaction(ctx, source, func(ctx context.Context, tx dbos.Tx) (bool, error) {
			_, err := tx.Exec(ctx, effectSQL, in.ID, in.Record)
			return true, err
		})
	}
	dbos.RegisterWorkflow(app, apply, dbos.WithWorkflowName("apply"))
	if err := dbos.Launch(app); err != nil {
		return err
	}
	defer func() { _ = dbos.Shutdown(app, time.Second) }() // at the end of the process
	return w.each(ctx, func(_ context.Context, m kafka.Message) error {
		in := dbosInput{ID: idOf(m), Record: recordOf(m.Partition, m.Offset)}
		running, err := dbos.RunWorkflow(app, apply, in, dbos.WithWorkflowID(in.ID))
		if err != nil {
			return err
		}
		_, err = running.GetResult()
		return err
	})
}

// migrateDBOS makes DBOS's tables before two workers would at once.
func migrateDBOS(ctx context.Context, p *play) error {
	pool, err := pgxpool.New(ctx, p.url)
	if err != nil {
		return err
	}
	defer pool.Close()
	app, _, err := (&worker{pool: pool, seat: "none"}).openDBOS(ctx)
	if err != nil {
		return err
	}
	return dbos.Shutdown(app, time.Second) // closes the pool too
}

// openDBOS gives each seat an executor's id of its own, so that a process recovers the workflows of
// the one that it replaces, and no others.
func (w *worker) openDBOS(ctx context.Context) (dbos.Context, *dbos.DataSource, error) {
	app, err := dbos.NewContext(ctx, dbos.Config{
		AppName: "doubles", SystemDBPool: w.pool, ExecutorID: "seat-" + w.seat, ApplicationVersion: "1",
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, nil, err
	}
	source, err := dbos.NewDataSource[*pgxpool.Pool](app, w.pool)
	return app, source, err
}
