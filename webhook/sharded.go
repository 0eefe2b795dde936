package webhook

import (
	"context"
	"fmt"
	"maps"

	"github.com/onlyonce/onlyonce/shard"
)

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
		all = &Endpoint{cfg: one.cfg, slots: make(chan struct{}, one.cfg.MaxInFlight), set: set, shards: shards}
	}
	return all, nil
}

// Shards returns the endpoints of the databases, by their names. It is empty if the endpoint has
// one database.
func (ep *Endpoint) Shards() map[string]*Endpoint { return maps.Clone(ep.shards) }

// place returns the place of an event.
func (ep *Endpoint) place(i *incomingEvent) string {
	if i.tenant != "" {
		return i.tenant
	}
	return ep.cfg.Name
}

// acceptInShard accepts an event in the database of its place.
func (ep *Endpoint) acceptInShard(ctx context.Context, i *incomingEvent) (Outcome, error) {
	if ep.set == nil {
		return ep.accept(ctx, i)
	}
	db, err := ep.set.Find(ctx, ep.place(i))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrStore, err)
	}
	if ep.shards != nil {
		return ep.shards[db.Name].accept(ctx, i)
	}
	return ep.accept(ctx, i)
}

// elsewhere reports whether the place of a listed event is in another database, which lists it too.
func (ep *Endpoint) elsewhere(i *incomingEvent) (bool, error) {
	if ep.set == nil {
		return false, nil
	}
	db, err := ep.set.Of(ep.place(i))
	return db.Name != ep.name, err
}
