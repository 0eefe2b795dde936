package idempotency

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
)

// OperationsConfig configures [Operations]. The zero value of a field is the default that its
// comment names; a value out of range is an error of [NewOperations] and never adjusted.
type OperationsConfig struct {
	// Path is the path under which the Operations are served, with a slash at both ends. Defaults
	// to "/operations/".
	Path string
	// Stream names the stream of work, and the scope of its consumer: at most 200 of A-Z a-z 0-9 .
	// _ -. It must not begin with "webhook." or "queue.". Defaults to "operations".
	Stream string
	// Partitions is how many operations all processes together run at once, from 1 to 1,024. It is
	// fixed when the stream is created. Each running operation holds a connection of the layer's
	// pool, and one process may run them all. So the pool must have at least 4 connections more
	// (pool_max_conns), or operations keep requests out. Defaults to 16.
	Partitions int
	// TenantPartitions is how many operations of one tenant all processes together run at once,
	// from 1 to Partitions. A tenant's operations always wait for the same partitions, so they do
	// not block all others. It must be the same in all processes: while they differ, operations of
	// one OrderingKey may run concurrently. Operations without a tenant use all partitions.
	// Defaults to a quarter of Partitions, at least 1.
	TenantPartitions int
	// TenantRunning is how many operations of one tenant may run or wait in the stream at once,
	// from 1 to 1,000,000. Accept answers 429 to requests for more. Requests accepted at the
	// same time may exceed it. Operations without a tenant are not counted. Defaults to 100.
	TenantRunning int
	// HandlerTimeout bounds one run of a Work, from 1 ms to 24 hours. Its transaction stays open
	// for that long, which keeps vacuum from removing old row versions in the whole database: split
	// longer work into successive operations. Defaults to 10 minutes.
	HandlerTimeout time.Duration
	// MaxAttempts is the most attempts at a Work, from 1 to 1,000. Defaults to 5.
	MaxAttempts int
	// Backoff is the wait between two attempts, as in consumer.Config. Defaults to 100 ms and 10 s.
	Backoff dedupe.Backoff
	// TTL is how long clients can ask for an operation after its end, from 1 s to 400 days.
	// Defaults to 7 days.
	TTL time.Duration
	// RetryAfter is the Retry-After of an operation that is running, from 1 s to 1 hour. Defaults
	// to 2 s.
	RetryAfter time.Duration
	// MaxResult is the most bytes of a result, up to 32 MiB. Defaults to 1 MiB.
	MaxResult int
	// PollInterval is how often a process looks for work and cancellations from other processes,
	// from 10 ms to 1 minute. Defaults to 500 ms.
	PollInterval time.Duration
	// LeaseTTL is how long the operations of a dead process wait for another one, at least 1 s.
	// Defaults to 15 s.
	LeaseTTL time.Duration
	// Hooks are the consumer's hooks, see consumer.Config.Hooks. Defaults to none.
	Hooks consumer.Hooks

	// Logger is the consumer's logger. Defaults to slog.Default(), at WARN and above.
	Logger *slog.Logger
}

// NewOperations checks the configuration without connecting. It uses the layer's pool, scopes and
// sealer; if the layer has several databases, an operation is in its tenant's. work maps the names
// for Accept to their functions. If an argument is wrong, the error lists every fault and wraps
// [ErrConfig].
func NewOperations(layer *Layer, cfg OperationsConfig, work map[string]Work) (*Operations, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "OperationsConfig"}
	cfg.Path = cmp.Or(cfg.Path, "/operations/")
	if !strings.HasPrefix(cfg.Path, "/") || !strings.HasSuffix(cfg.Path, "/") {
		l.Add("Path", "%q must begin and end with a slash", cfg.Path)
	}
	cfg.Stream = cmp.Or(cfg.Stream, "operations")
	if names.IsReceived(cfg.Stream) {
		l.Add("Stream", "is %q: the streams of webhook endpoints and queues begin so", cfg.Stream)
	}
	l.Number("Partitions", &cfg.Partitions, 16, 1, 1024)
	l.Number("TenantPartitions", &cfg.TenantPartitions, max(1, cfg.Partitions/4), 1, max(1, cfg.Partitions))
	l.Number("TenantRunning", &cfg.TenantRunning, 100, 1, 1_000_000)
	l.Span("HandlerTimeout", &cfg.HandlerTimeout, 10*time.Minute, time.Millisecond, 24*time.Hour)
	l.Number("MaxAttempts", &cfg.MaxAttempts, 5, 1, 1000)
	l.Span("TTL", &cfg.TTL, 7*24*time.Hour, time.Second, 400*24*time.Hour)
	l.Span("RetryAfter", &cfg.RetryAfter, 2*time.Second, time.Second, time.Hour)
	l.Number("MaxResult", &cfg.MaxResult, 1<<20, 1, maxStored)
	l.Span("PollInterval", &cfg.PollInterval, 500*time.Millisecond, 10*time.Millisecond, time.Minute)
	if layer == nil {
		l.Join(fmt.Errorf("%w: layer: must not be nil", ErrConfig))
	} else {
		layer.checkOperationConns(&l, cfg.Partitions)
	}
	if len(work) == 0 {
		l.Join(fmt.Errorf("%w: work: must not be empty: it has a Work for each name that Accept gets", ErrConfig))
	}
	for name, w := range work {
		if w == nil || name == "" || len(name) > maxStepName {
			l.Join(fmt.Errorf("%w: work: %q must have a name of 1 to %d bytes, and a function",
				ErrConfig, name, maxStepName))
		}
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	if layer.shards == nil {
		return newOperations(layer, cfg, work)
	}
	all := &Operations{layer: layer, cfg: cfg, work: work, shards: map[*Layer]*Operations{}}
	for _, one := range layer.shards {
		var err error
		if all.shards[one], err = newOperations(one, cfg, work); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// checkOperationConns notes a pool that so many operations could use up.
func (l *Layer) checkOperationConns(faults *fields.List, partitions int) {
	check := func(whose string, pool *primary.Pool) {
		if most := pool.MaxConns(); most < partitions+preflight.SparedConns {
			faults.Add(
				"Partitions",
				"%d operations hold a connection each, and %s has %d: it needs at least %d "+
					"(pool_max_conns), or fewer Partitions",
				partitions,
				whose,
				most,
				partitions+preflight.SparedConns,
			)
		}
	}
	for name, one := range l.shards {
		check(fmt.Sprintf("the pool of database %q", name), one.pool)
	}
	if l.pool != nil {
		check("the layer's pool", l.pool)
	}
}

// newOperations makes the Operations of one database.
func newOperations(layer *Layer, cfg OperationsConfig, work map[string]Work) (*Operations, error) {
	o := &Operations{layer: layer, cfg: cfg, work: work}
	var err error
	if o.source, err = eventsource.NewSource(layer.pool.Raw(), eventsource.Config{
		Topics:       []string{cfg.Stream},
		Partitions:   cfg.Partitions,
		PollInterval: cfg.PollInterval,
		LeaseTTL:     cfg.LeaseTTL,
		Logger:       cfg.Logger,
	}); err != nil {
		return nil, fmt.Errorf("%w: OperationsConfig: %w", ErrConfig, err)
	}
	if o.worker, err = consumer.New(layer.pool.Raw(), o.source, consumer.HandlerFunc(o.applyEvent), consumer.Config{
		Scope:          cfg.Stream,
		BatchSize:      1,
		MaxAttempts:    cfg.MaxAttempts,
		Backoff:        cfg.Backoff,
		HandlerTimeout: cfg.HandlerTimeout,
		BatchTimeout:   cfg.HandlerTimeout,
		Timeouts:       dedupe.Timeouts{Statement: cfg.HandlerTimeout, Idle: cfg.HandlerTimeout},
		Hooks:          cfg.Hooks,
		Logger:         cfg.Logger,
	}); err != nil {
		return nil, fmt.Errorf("%w: OperationsConfig: %w", ErrConfig, err)
	}
	if _, taken := layer.operations.LoadOrStore(cfg.Stream, o); taken {
		return nil, fmt.Errorf("%w: OperationsConfig.Stream: %q: the layer has Operations of this stream already",
			ErrConfig, cfg.Stream)
	}
	return o, nil
}

// Run creates the stream if necessary, runs operations, and deletes expired ones, until ctx ends.
// It then lets running operations finish, within the bounds of a consumer, and returns nil.
func (o *Operations) Run(ctx context.Context) error {
	if o.shards != nil {
		return process.Together(ctx, o.layer.shards, func(ctx context.Context, one *Layer) error {
			return o.shards[one].Run(ctx)
		})
	}
	if err := o.check(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx ended before the check
		}
		return fmt.Errorf("idempotency: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	purged := make(chan struct{})
	go func() {
		defer close(purged)
		o.purge(ctx)
	}()
	err := o.worker.Run(ctx)
	cancel()
	<-purged
	return err
}

// check checks the database before the first operation runs.
func (o *Operations) check(ctx context.Context) error {
	ctx, cancel := process.AtStart(ctx)
	defer cancel()
	_, err := preflight.Check(ctx, o.layer.pool.Raw(), preflight.Operations)
	return err
}

// purgeOperationsSQL deletes expired operations. In: how many at most. The clock, read in a
// subquery, bounds the scan of the index operations_expired.
const purgeOperationsSQL = `
with old as (
  select id
    from onlyonce.operations
   where expires_at <= (select clock_timestamp()) and onlyonce.has_expired(expires_at, watched_at, keep)
   order by expires_at limit $1 for update skip locked)
delete from onlyonce.operations o
 using old where o.id = old.id and onlyonce.has_expired(o.expires_at, o.watched_at, o.keep)`

func (o *Operations) purge(ctx context.Context) {
	tick := time.NewTicker(o.layer.cfg.PurgeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_, err := o.layer.portions.operations.Run(func(most int) (int, error) {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.layer.cfg.Timeouts.Statement)
			defer cancel()
			tag, err := o.layer.pool.Exec(bounded, purgeOperationsSQL, most)
			return int(tag.RowsAffected()), err
		})
		if err != nil && ctx.Err() == nil {
			o.layer.reportError(fmt.Errorf("idempotency: purging operations: %w", err))
		}
	}
}

// parkedKey returns the key by which an operation's parked row is found.
func (o *Operations) parkedKey(tenant, id string) uuid.UUID {
	return dedupe.Key{Tenant: tenant, Scope: o.cfg.Stream, ID: id}.Hash()
}
