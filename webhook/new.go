package webhook

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/bodies"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/watch"
	"github.com/onlyonce/onlyonce/shard"
)

// New checks the configuration and returns every fault of it at once. It does not connect.
//
// With a [shard.Set] the endpoint stores and handles an event in the database of its place: its
// tenant (Config.Tenant), or the endpoint's name if it has none. If the place is moving, or if the
// set's function names a database where the place does not live, the endpoint does not store the
// event: its sender gets 503 and sends it again. Config.Sources must then be empty. With
// Config.Backfill each database lists the sender's events, and takes those of its places.
func New[D shard.Databases](db D, cfg Config) (*Endpoint, error) {
	if set, ok := any(db).(*shard.Set); ok {
		return newSharded(set, cfg)
	}
	pool, _ := any(db).(*pgxpool.Pool)
	return newEndpoint(pool, cfg)
}

// newEndpoint makes the endpoint of one database.
func newEndpoint(pool *pgxpool.Pool, cfg Config) (*Endpoint, error) {
	cfg.Logger = process.Logger(pool, cfg.Logger)
	cfg, err := cfg.withDefaults(pool)
	if err != nil {
		return nil, err
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	db := primary.Of(pool, cfg.Logger)
	e := &Endpoint{pool: db, cfg: cfg, slots: make(chan struct{}, cfg.MaxInFlight), bodies: bodies.NewRoom(cfg.MaxBytes), watched: watch.New(db, watch.Often)}
	e.intake = &intake.Intake{Pool: db, Topic: Topic(cfg.Name), Scope: Scope(cfg.Name), Partitions: cfg.Partitions, Sealer: cfg.Sealer,
		OnLate: e.reportLateStatement, CommitTimeout: 50 * time.Millisecond}
	if cfg.Mode != Stored || cfg.Handler == nil {
		return e, nil
	}
	work, read := cfg.Consumer, cfg.Source
	work.Scope = cmp.Or(work.Scope, Scope(cfg.Name))
	work.Logger = cmp.Or(work.Logger, cfg.Logger)
	read.Endpoints = []string{cfg.Name}
	read.Partitions = cmp.Or(read.Partitions, cfg.Partitions)
	read.Logger = cmp.Or(read.Logger, cfg.Logger)
	events, err := NewSource(pool, read)
	if err != nil {
		return nil, err
	}
	if e.worker, err = consumer.New(pool, events, consumer.Unsealed(cfg.Handler, cfg.Sealer), work); err != nil {
		return nil, fmt.Errorf("%w: Config.Consumer: %w", ErrConfig, err)
	}
	e.cfg.Sources = append(slices.Clone(cfg.Sources), events)
	return e, nil
}

// newSharded makes an endpoint of several databases.
func newSharded(set *shard.Set, cfg Config) (*Endpoint, error) {
	switch {
	case set == nil:
		return nil, fmt.Errorf("%w: db: must not be nil", ErrConfig)
	case len(cfg.Sources) > 0:
		return nil, fmt.Errorf("%w: Config.Sources: must be empty: each database has events of its own", ErrConfig)
	}
	if places, _ := set.Routes(); !places {
		return nil, fmt.Errorf("%w: db: shard.Config.OfPlace: must not be nil: it names the database of an event", ErrConfig)
	}
	var all *Endpoint
	shards := map[string]*Endpoint{}
	for _, db := range set.Databases() {
		one, err := newEndpoint(db.Pool, cfg)
		if err != nil {
			return nil, err // the same for each database
		}
		one.set, one.name = set, db.Name
		shards[db.Name] = one
		all = &Endpoint{cfg: one.cfg, slots: make(chan struct{}, one.cfg.MaxInFlight), bodies: bodies.NewRoom(one.cfg.MaxBytes), set: set, shards: shards}
	}
	return all, nil
}

// Shards returns the endpoints of the databases, by their names. It is empty if the endpoint has
// one database.
func (ep *Endpoint) Shards() map[string]*Endpoint { return maps.Clone(ep.shards) }
