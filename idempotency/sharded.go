package idempotency

import (
	"context"
	"fmt"
	"maps"

	"github.com/onlyonce/onlyonce/shard"
)

// newSharded makes a layer of several databases.
func newSharded(set *shard.Set, cfg Config) (*Layer, error) {
	if set == nil {
		return nil, fmt.Errorf("%w: db: must not be nil", ErrConfig)
	}
	if places, _ := set.Routes(); !places {
		return nil, fmt.Errorf("%w: db: shard.Config.OfPlace: must not be nil: it names the database of a tenant", ErrConfig)
	}
	all := &Layer{set: set, shards: map[string]*Layer{}}
	for _, db := range set.Databases() {
		one, err := newLayer(db.Pool, cfg)
		if err != nil {
			return nil, err // the same for each database
		}
		one.set = set
		all.shards[db.Name] = one
		all.cfg, all.fingerprints = one.cfg, one.fingerprints
	}
	return all, nil
}

// Shards returns the layers of the databases, by their names, for example for their operations. It
// is empty if the layer has one database.
func (l *Layer) Shards() map[string]*Layer { return maps.Clone(l.shards) }

// ofTenant returns the layer of the database that a tenant lives in.
func (l *Layer) ofTenant(ctx context.Context, tenant string) (*Layer, error) {
	if l.shards == nil {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AcquireTimeout)
	defer cancel()
	db, err := l.set.Find(ctx, tenant)
	if err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	return l.shards[db.Name], nil
}

// forgetPlace makes the next request of a tenant ask for its shard again, if an error says that the
// database does not know the tenant.
func (l *Layer) forgetPlace(tenant string, err error) {
	if _, unknown := shard.Refused(err); unknown {
		l.set.Forget(tenant)
	}
}
