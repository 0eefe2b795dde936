package idempotency

import (
	"context"
	"fmt"
	"maps"

	"github.com/onlyonce/onlyonce/shard"
)

// NewSharded is [New] for tenants that live in several databases. A request is served in the
// database of its tenant: its record, the handler's writes ([Tx]) and the calls that it enqueues
// are there, and commit together. The place that the set's function gets is Scope.Tenant.
//
// A request of a tenant that is moving, or that the function sends to a database where the tenant
// does not live, gets 503 and does nothing (N1, N2). The first request of a tenant that no process
// has met before asks all databases, and gets 503 while one of them is down.
func NewSharded(set *shard.Set, cfg Config) (*Layer, error) {
	if set == nil {
		return nil, fmt.Errorf("%w: set: must not be nil", ErrConfig)
	}
	all := &Layer{set: set, shards: map[string]*Layer{}}
	for _, db := range set.Databases() {
		one, err := New(db.Pool, cfg)
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
