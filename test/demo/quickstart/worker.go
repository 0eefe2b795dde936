package quickstart

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/fleet"
)

// Service is the service under attack.
type Service struct {
	Schema string // SQL that makes its table onlyonce_quickstart.effects (run, order_id, ...)
	// Serve is the work of one process, until ctx ends.
	Serve func(ctx context.Context, w *Worker) error
}

// workerConfig is all that a worker process needs to know.
type workerConfig struct {
	Postgres    string
	Kafka       servers.KafkaAddress
	Session     time.Duration
	Run         string // scope, group, topic and sink
	Pointer     string // where the id is in the user's own messages; empty: in the header message-id
	Payments    string // base URL
	BatchSize   int
	Connections int32
}

// Worker is one process of the service. It has the servers, and reports what the service does, so
// that kills can be aimed.
type Worker struct {
	workerConfig
	Pool, RelayPool *pgxpool.Pool
	Source          consumer.Source
	child           *fleet.Child
}

// workerMain is main in a worker process.
func workerMain(s Service) int {
	w := &Worker{}
	return fleet.Serve(&w.workerConfig, func(ctx context.Context, c *fleet.Child) (err error) {
		w.child = c
		if w.Pool, err = servers.OpenPool(ctx, w.Postgres, w.Connections); err != nil {
			return err
		}
		defer w.Pool.Close()
		if w.RelayPool, err = servers.OpenPool(ctx, w.Postgres, 2); err != nil {
			return err
		}
		defer w.RelayPool.Close()
		config, mechanism, err := w.Kafka.Security()
		if err != nil {
			return err
		}
		w.Source = kafkasource.New(kafkasource.Config{
			Brokers: w.Kafka.Brokers, TLS: config, SASL: mechanism, GroupID: w.Run, Topics: []string{w.Run},
			SessionTimeout: w.Session, HeartbeatInterval: w.Session / 5, RebalanceTimeout: 15 * time.Second,
			FetchMaxWait: 100 * time.Millisecond,
		})
		return s.Serve(ctx, w)
	})
}

// Own reports whether the messages are the user's own.
func (w *Worker) Own() bool { return w.Pointer != "" }

// Key is where a message's id is.
func (w *Worker) Key() consumer.KeyFunc {
	if w.Own() {
		return consumer.JSONKey(w.Pointer)
	}
	return consumer.HeaderKey(idHeader)
}

// Watched reports that a message is handled, before handler applies it.
func (w *Worker) Watched(handler consumer.HandlerFunc) consumer.HandlerFunc {
	return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if err := w.child.Entered(m); err != nil {
			return err
		}
		return handler(ctx, tx, m)
	}
}

// ConsumerHooks report what the consumer does, and wake the relay after a commit.
func (w *Worker) ConsumerHooks(relay *outbox.Relay) consumer.Hooks {
	return w.child.Hooks(func(b consumer.BatchResult) {
		if b.Handled > 0 {
			relay.Wake()
		}
	})
}

// RelayHooks report what the relay does.
func (w *Worker) RelayHooks() outbox.Hooks {
	return outbox.Hooks{
		Settled: func(s outbox.SettledEvent) {
			if s.State == "rejected" || s.State == "reconcile" {
				w.child.Tell(fleet.Event{Kind: fleet.Rejected, Text: string(s.State) + ": " + s.Reason})
			}
		},
		Lease: func(c outbox.LeaseEvent) {
			if !c.Held && c.Err != nil {
				w.child.Tell(fleet.Event{Kind: fleet.Lease, Text: "the relay has lost its lease: " + c.Err.Error()})
			}
		},
		TransactionFailed: func(f outbox.TransactionFailedEvent) {
			w.child.Tell(fleet.Event{Kind: fleet.Trouble, Text: "relay: " + f.Err.Error()})
		},
	}
}
