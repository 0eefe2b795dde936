package consumer

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/imagined"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/poolcheck"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/shard"
)

// AnyHandler is a [Handler], or a [BatchHandler].
type AnyHandler interface {
	~func(context.Context, Tx, *Message) error | ~func(context.Context, Tx, []*Message) error
}

// either returns a handler as the one type or as the other, also if it is of a type of the user's
// own.
func either[H AnyHandler](handler H) (Handler, BatchHandler) {
	v := reflect.ValueOf(handler)
	if single := reflect.TypeFor[Handler](); v.CanConvert(single) {
		return v.Convert(single).Interface().(Handler), nil
	}
	return nil, v.Convert(reflect.TypeFor[BatchHandler]()).Interface().(BatchHandler)
}

// New makes a Consumer. The handler is a function of one message ([Handler]) or of a batch
// ([BatchHandler]). db is where its effects live: a *pgxpool.Pool, or a *[shard.Set] of several
// databases, each with the effects of its own partitions. New checks everything it can without a
// server, and returns all faults at once, each naming its field.
//
// The pool needs one connection for each partition that this process works on at the same time, one
// more for each partition whose parked messages are retried meanwhile, and two for background work
// (rotation and filters of the inbox).
func New[D shard.Databases, H AnyHandler](db D, source Source, handler H, cfg Config) (*Consumer, error) {
	c := &Consumer{source: source, cfg: cfg}
	c.handler, c.batch = either(handler)
	pool, _ := any(db).(*pgxpool.Pool)
	set, sharded := any(db).(*shard.Set)
	return c.made(pool, set, sharded)
}

// made checks and completes a Consumer.
func (c *Consumer) made(pool *pgxpool.Pool, set *shard.Set, sharded bool) (*Consumer, error) {
	source := c.source
	_, c.events = source.(claimed.Source)
	c.shares, _ = source.(sharedSource)
	faults := []error{c.cfg.faults(c.events), c.sharedFaults(sharded)}
	if sharded {
		faults = append(faults, setFault(set, c.events))
	} else {
		faults = append(faults, poolcheck.One(ErrConfig, pool))
	}
	faults = append(faults, c.cfg.copiesFault(c.events, sourceTopics(source)))
	if source == nil {
		faults = append(faults, fmt.Errorf("%w: source: must not be nil", ErrConfig))
	} else if v, ok := source.(interface{ Validate() error }); ok {
		faults = append(faults, v.Validate())
	}
	if c.handler == nil && c.batch == nil {
		faults = append(faults, fmt.Errorf("%w: handler: must not be nil", ErrConfig))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	c.cfg.Logger = imagined.Logger(pool, c.cfg.Logger)
	c.cfg = c.cfg.withDefaults()
	c.cfg.Hooks = c.cfg.Hooks.guarded(c.cfg.Logger)
	c.shared = &shared{}
	c.budget.Limit = int64(c.cfg.PrefetchBytes)
	if sharded {
		c.makeShards(set)
	} else {
		c.setPool(pool)
	}
	return c, nil
}

// setPool sets the database, and what is made for it.
func (c *Consumer) setPool(pool *pgxpool.Pool) {
	c.pool = primary.Of(pool, c.cfg.Logger)
	c.filters = c.filtersOf(pool)
	c.poller = newPoller(c)
}

// makeShards makes a consumer's shards: each is the consumer with one database.
func (c *Consumer) makeShards(set *shard.Set) {
	c.set = set
	c.poller = newPoller(c) // for partitions of no shard: it has nothing to ask, and never runs
	for _, db := range set.Databases() {
		one := *c
		one.shard = db.Name
		one.setPool(db.Pool)
		c.shards = append(c.shards, &one)
	}
	for _, one := range c.shards {
		one.shards = c.shards
	}
}

// filtersOf returns the filters of the ring that Config.Horizon names. While the scope's class
// changes, the other ring is asked by SQL alone.
func (c *Consumer) filtersOf(pool *pgxpool.Pool) *inbox.Filters {
	f := inbox.NewFilters(pool, ring.ConsumerClass(c.cfg.Horizon.class()).Name, c.cfg.Logger)
	f.Timeout = c.cfg.Timeouts.Lock + c.cfg.Timeouts.Statement
	return f
}
