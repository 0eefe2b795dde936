package idempotency

import (
	"errors"
	"fmt"
	"maps"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/bodies"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/watch"
	"github.com/onlyonce/onlyonce/shard"
)

// New checks the configuration without connecting. If it is wrong, the error lists every fault,
// each with its field, and wraps [ErrConfig].
//
// The pool needs one connection for each concurrent handler in transactional mode, and one more to
// look up records. In lease mode the layer renews its leases on one connection beside the pool.
func New(pool *pgxpool.Pool, cfg Config) (*Layer, error) {
	cfg.Logger = process.Logger(pool, cfg.Logger)
	cfg, err := cfg.withDefaults()
	if err = errors.Join(err, primary.CheckPool(ErrConfig, pool)); err != nil {
		return nil, err
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	l := &Layer{pool: primary.Of(pool, cfg.Logger), cfg: cfg, portions: newPortions(purgedAtOnce)}
	l.timeoutArgs = []any{
		guard.Millis(cfg.Timeouts.Lock),
		guard.Millis(cfg.Timeouts.Statement),
		guard.Millis(cfg.Timeouts.Idle),
	}
	if l.fingerprints, err = newFingerprinter(cfg.FingerprintKeys); err != nil {
		return nil, err
	}
	if cfg.Cache != nil {
		l.cache = newResponseCache(&cfg)
		l.cachePuts = make(chan struct{}, maxCachePuts)
	}
	l.watched = watch.New(l.pool, min(cfg.PurgeInterval, watch.Often))
	l.flights.byKey = make(map[[16]byte]*flight)
	l.flights.waiting = make(map[[16]byte]int)
	l.flights.tenants = make(map[string]*tenantLoad)
	l.unscoped = bodies.NewRoom(int64(cfg.TenantBytes))
	l.leases.layer = l
	return l, nil
}

// NewSharded is [New] for several databases. The layer serves a request in the database of its
// tenant: its record, the handler's writes ([TxOf]) and the calls that it enqueues are there, and
// commit together. The set's function gets Scope.Tenant as the place. A request gets 503 without
// effect if its tenant is moving, or if the function names a database where the tenant does not
// live. The first request of a new tenant queries all databases, and gets 503 while one of them is
// down.
func NewSharded(set *shard.Set, cfg Config) (*Layer, error) {
	if set == nil {
		return nil, fmt.Errorf("%w: set: must not be nil", ErrConfig)
	}
	if places, _ := set.Routes(); !places {
		return nil, fmt.Errorf("%w: set: shard.Config.OfPlace: must not be nil: it names the database of a tenant",
			ErrConfig)
	}
	all := &Layer{set: set, shards: map[string]*Layer{}}
	for _, db := range set.Databases() {
		one, err := New(db.Pool, cfg)
		if err != nil {
			return nil, err // the same for each database
		}
		one.set = set
		all.shards[db.Name] = one
		all.cfg = one.cfg
		all.fingerprints = one.fingerprints
		all.unscoped = one.unscoped
	}
	return all, nil
}

// Handle wraps a handler. If the route is wrong, the error lists every fault, each with its field,
// and wraps [ErrConfig].
func (l *Layer) Handle(r Route, next http.Handler) (http.Handler, error) {
	profileErr := l.cfg.Profile.setRoute(&r)
	r, err := r.withDefaults()
	err = errors.Join(profileErr, err)
	if least := bodies.LeastRoom(int64(r.MaxBody)); int64(l.cfg.TenantBytes) < least {
		err = errors.Join(
			err,
			fmt.Errorf("%w: Route.MaxBody: is %d: must be at most three quarters of Config.TenantBytes, which is %d",
				ErrConfig, r.MaxBody, l.cfg.TenantBytes),
		)
	}
	if next == nil {
		err = errors.Join(err, fmt.Errorf("%w: Handle: the handler must not be nil", ErrConfig))
	}
	if err != nil {
		return nil, err
	}
	return &routeHandler{
		layer:   l,
		route:   r,
		next:    next,
		keyRule: keyRule{headers: l.cfg.Headers, pointer: r.KeyPointer},
	}, nil
}

// MustHandle is Handle for routes that are constant in the program. It panics if the route is
// wrong.
func (l *Layer) MustHandle(r Route, next http.Handler) http.Handler {
	h, err := l.Handle(r, next)
	if err != nil {
		panic(err)
	}
	return h
}

// Shards returns the layers of the databases, by their names, for example for their operations. It
// is empty if the layer has one database.
func (l *Layer) Shards() map[string]*Layer { return maps.Clone(l.shards) }
