package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/presence"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ready"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// Queue receives messages from a broker and is the source of the stored ones for a consumer. It is
// for one consumer.
type Queue struct {
	*eventsource.Source
	pool    *primary.Pool
	broker  Broker
	cfg     Config
	running atomic.Bool
	state   ready.Link // of the receiver
	full    ready.Link // whether the broker's queue takes messages
}

var (
	_ consumer.Source = (*Queue)(nil)
	_ claimed.Source  = (*Queue)(nil)
)

// New checks the configuration and returns every fault of it at once. It does not connect. If
// broker is nil, the Queue is only the source of messages that other processes have stored.
func New(pool *pgxpool.Pool, broker Broker, cfg Config) (*Queue, error) {
	cfg.Logger = process.Logger(pool, cfg.Logger)
	cfg, err := cfg.withDefaults(pool, broker)
	l := &fields.List{}
	l.Join(err)
	events, err := eventsource.NewSourceFor(pool, eventsource.Config{
		Group:        cfg.Group,
		Topics:       []string{Topic(cfg.Name)},
		Partitions:   cfg.Partitions,
		PollInterval: cfg.PollInterval,
		LeaseTTL:     cfg.LeaseTTL,
		Retention:    cfg.Retention,
		Logger:       cfg.Logger,
	}, ErrConfig, "Config", nil)
	l.Join(err)
	if err := l.Err(); err != nil {
		return nil, err
	}
	return &Queue{Source: events, pool: primary.Of(pool, cfg.Logger), broker: broker, cfg: cfg}, nil
}

// Topic returns the stream of a queue, for example "queue.orders".
func Topic(name string) string { return names.QueueStream(name) }

// Scope returns the scope in which a queue's ids are claimed, for example "queue/orders".
func Scope(name string) string { return names.QueueScope(name) }

// Run implements consumer.Source: it receives, and hands over partitions of the stored messages.
// It ends with an error if [Queue.Receive] does.
func (q *Queue) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	if q.broker == nil {
		return q.Source.Run(ctx, own)
	}
	return process.Beside(ctx, q.Receive, func(ctx context.Context) error { return q.Source.Run(ctx, own) })
}

// Receive only receives: it stores messages until ctx ends, stores and acknowledges those that it
// holds by then, and returns nil. Use it for a process that does not apply them; [Queue.Run] does
// both.
//
// While the broker or the database is away it tries again, with waits of up to 30 s; see
// [Queue.Healthy]. It returns an error if the schema does not fit, if the database cannot be
// reached at the start, if the inbox remembers ids for less than Config.CopiesWithin, or if the
// broker's queue is set up such that messages would be lost.
func (q *Queue) Receive(ctx context.Context) error {
	if q.broker == nil {
		return fmt.Errorf("%w: broker: must not be nil for a Queue that receives", ErrConfig)
	}
	if !q.running.CompareAndSwap(false, true) {
		return errors.New("queue: this Queue is receiving already")
	}
	defer q.running.Store(false)
	need := inbox.Need{
		Ring:   ring.StandardKeys().Name,
		Scope:  Scope(q.cfg.Name),
		Copies: q.cfg.CopiesWithin,
		Whose:  "queue " + q.cfg.Name + ": Config.CopiesWithin",
	}
	if err := q.check(ctx, need); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("queue: %s: %w", q.cfg.Name, err)
	}
	rotate, stop := context.WithCancel(ctx)
	var rotating sync.WaitGroup
	defer func() { stop(); rotating.Wait() }()
	rotating.Go(func() { inbox.Rotate(rotate, q.pool.Raw(), q.cfg.Logger, need) })
	rotating.Go(func() { q.reporter().Run(rotate) })
	rotating.Go(func() { q.watchFull(rotate) })
	if err := newReceiver(q).run(ctx); err != nil {
		return fmt.Errorf("queue: %s: %w", q.cfg.Name, err)
	}
	return nil
}

// check checks the database before the first message is received (Q6).
func (q *Queue) check(ctx context.Context, need inbox.Need) error {
	ctx, cancel := process.AtStart(ctx)
	defer cancel()
	if _, err := preflight.Check(ctx, q.pool.Raw(), preflight.Receiver); err != nil {
		return err
	}
	return inbox.CheckHorizon(ctx, q.pool.Raw(), need)
}

// receivePatience is how long nothing may be received before that is reported: a session that is
// begun anew takes a moment.
const receivePatience = 2 * time.Second

// reporter reports the receiver (S3).
func (q *Queue) reporter() *presence.Reporter {
	return &presence.Reporter{
		Pool:   q.pool,
		Part:   presence.Receiver,
		Scopes: []string{q.cfg.Name},
		Faults: func(string) []presence.Fault {
			var all []presence.Fault
			if since, err := q.state.Trouble(); err != nil && time.Since(since) >= receivePatience {
				all = presence.Since(faultReceive, since, err)
			}
			since, err := q.full.Trouble()
			return append(all, presence.Since(faultFull, since, err)...)
		},
		Logger: q.cfg.Logger,
	}
}

// faultReceive is the kind of a receiver's faults, as onlyonce.owners.faults has it.
const faultReceive = "receive"

// Healthy returns nil while the receiver works or stands by for another process, and otherwise what
// it waits for: the broker, the database, or a message that cannot be stored. Messages that are
// stored are applied meanwhile.
func (q *Queue) Healthy() error {
	if err := q.state.Err(); err != nil {
		return fmt.Errorf("queue: %s: not receiving: %w", q.cfg.Name, err)
	}
	return nil
}

// aside is the scope of what was parked, so that a copy of it is not parked again.
func (q *Queue) aside() string { return names.QueueAside(q.cfg.Name) }
