package webhook

import (
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/bodies"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/watch"
	"github.com/onlyonce/onlyonce/shard"
)

// New checks the configuration and returns every fault of it at once. It does not connect.
func New(pool *pgxpool.Pool, cfg Config) (*Endpoint, error) {
	cfg.Logger = process.Logger(pool, cfg.Logger)
	cfg, err := cfg.withDefaults(pool)
	l := &fields.List{}
	l.Join(err)
	events, err := eventsource.NewSourceFor(pool, eventsource.Config{
		Group:        cfg.Group,
		Topics:       []string{Topic(cfg.Name)},
		Partitions:   cfg.Partitions,
		PollInterval: cfg.PollInterval,
		LeaseTTL:     cfg.LeaseTTL,
		Retention:    cfg.KeepEvents,
		Logger:       cfg.Logger,
	}, ErrConfig, "Config", map[string]string{"Retention": "KeepEvents"})
	l.Join(err)
	if err := l.Err(); err != nil {
		return nil, err
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	db := primary.Of(pool, cfg.Logger)
	e := &Endpoint{
		pool:      db,
		cfg:       cfg,
		slots:     make(chan struct{}, cfg.MaxInFlight),
		bodies:    bodies.NewRoom(cfg.MaxBytes),
		watched:   watch.New(db, watch.Often),
		oldIDs:    pace.NewPortion(forgottenAtOnce),
		oldBodies: pace.NewPortion(forgottenAtOnce),
	}
	if cfg.Mode == Stored {
		e.events = events
	}
	e.store = newStore(e)
	e.gather = &intake.Gather[*incomingEvent]{Store: e.store.Store, Storers: storers, Most: mostStored}
	return e, nil
}

// newStore returns what stores an endpoint's events.
func newStore(e *Endpoint) *intake.Store[*incomingEvent] {
	s := &intake.Store[*incomingEvent]{
		Intake: intake.New(intake.Intake{
			Pool:          e.pool,
			Topic:         Topic(e.cfg.Name),
			Scope:         Scope(e.cfg.Name),
			Partitions:    e.cfg.Partitions,
			Sealer:        e.cfg.Sealer,
			OnLate:        e.reportLateStatement,
			Logger:        e.cfg.Logger,
			CommitTimeout: 50 * time.Millisecond,
		}),
		Way:     way{e},
		Append:  e.cfg.Mode == Stored,
		Timeout: e.cfg.deadline,
		Wait:    copyTry,
	}
	if e.cfg.Mode == Inline {
		s.Wait = e.cfg.DuplicateWait // its request has the transaction to itself
	}
	return s
}

// NewSharded is [New] for several databases. The endpoint stores an event in the database of its
// place: its tenant (Config.Tenant), or the endpoint's name if it has none. If the place is moving,
// or if the set's function names a database where the place does not live, the endpoint does not
// store the event: its sender gets 503 and sends it again. Such an endpoint is not a consumer's
// source: consume the events of each database with a [Source]. With Config.Backfill each database
// lists the sender's events, and takes those of its places.
func NewSharded(set *shard.Set, cfg Config) (*Endpoint, error) {
	if set == nil {
		return nil, fmt.Errorf("%w: set: must not be nil", ErrConfig)
	}
	if places, _ := set.Routes(); !places {
		return nil, fmt.Errorf("%w: set: shard.Config.OfPlace: must not be nil: it names the database of an event",
			ErrConfig)
	}
	var all *Endpoint
	shards := map[string]*Endpoint{}
	for _, db := range set.Databases() {
		one, err := New(db.Pool, cfg)
		if err != nil {
			return nil, err // the same for each database
		}
		one.set = set
		one.name = db.Name
		one.events = nil
		shards[db.Name] = one
		all = &Endpoint{
			cfg:    one.cfg,
			slots:  make(chan struct{}, one.cfg.MaxInFlight),
			bodies: bodies.NewRoom(one.cfg.MaxBytes),
			set:    set,
			shards: shards,
		}
	}
	return all, nil
}

// Shards returns the endpoints of the databases, by their names. It is empty if the endpoint has
// one database.
func (ep *Endpoint) Shards() map[string]*Endpoint { return maps.Clone(ep.shards) }
