package webhook

import (
	"context"
	"fmt"
	"maps"

	"github.com/onlyonce/onlyonce/shard"
)

// NewSharded is [New] for events that live in several databases. The place that the set's function
// gets is the event's tenant (Config.Tenant), or the endpoint's name if it has none. An event is
// stored and handled in the database of its place.
//
// An event whose place is moving, or that the function sends to a database where the place does not
// live, is not stored: its sender gets 503 and sends it again (N1, N2). Config.Sources must be
// empty. With Config.Reconcile each database lists the sender's events, and takes those of its
// places.
func NewSharded(set *shard.Set, cfg Config) (*Endpoint, error) {
	switch {
	case set == nil:
		return nil, fmt.Errorf("%w: set: must not be nil", ErrConfig)
	case len(cfg.Sources) > 0:
		return nil, fmt.Errorf("%w: Config.Sources: must be empty: each database has events of its own", ErrConfig)
	}
	var all *Endpoint
	shards := map[string]*Endpoint{}
	for _, db := range set.Databases() {
		one, err := New(db.Pool, cfg)
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
