package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/onlyonce/onlyonce/internal/bodies"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/ready"
	"github.com/onlyonce/onlyonce/internal/watch"
	"github.com/onlyonce/onlyonce/shard"
)

// maxCachePuts bounds how many records are being put into the cache at once. Further ones are not
// put; a later copy of the request tries again.
const maxCachePuts = 64

// Layer answers a copy of a request with the first request's answer. Make one with [New], wrap
// handlers with [Layer.Handle], and run [Layer.Run] to purge expired records. It is safe for
// concurrent use.
type Layer struct {
	pool         *primary.Pool
	cfg          Config
	timeoutArgs  []any // what bounds a handler's transaction, as the server reads it
	fingerprints *fingerprinter
	keysChecked  atomic.Bool    // the database knows the keys of fingerprints (H30)
	cache        *responseCache // nil if there is no Config.Cache
	cachePuts    chan struct{}  // a place for each record that is being put into it
	flights      flights
	unscoped     *bodies.Room // of bodies that Config.Scope reads
	recentKeys   recentKeys
	leases       leaseKeeper
	serverLevel  atomic.Value // pgx.TxIsoLevel of a transaction that sets none, once it was asked for
	begun        ready.Run
	watched      *watch.Clock // of Run
	portions     portions     // of the statements that delete old records and operations

	set    *shard.Set        // nil if there is one database
	shards map[string]*Layer // of a layer of several databases: one for each; it has no pool itself

	operations sync.Map // *Operations by their stream: to answer copies of requests that made an operation
}

// ofTenant returns the layer of the database that a tenant lives in (N2).
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

// reportError reports an error that cannot be returned to a caller.
func (l *Layer) reportError(err error) {
	l.cfg.Logger.Error("onlyonce: the HTTP layer met an error whose text no client gets", "error", err)
	if l.cfg.Hooks.StoreFailed != nil {
		l.cfg.Hooks.StoreFailed(err)
	}
}

// forgetPlace makes the next request of a tenant ask for its shard again, if an error says that the
// database does not know the tenant.
func (l *Layer) forgetPlace(tenant string, err error) {
	if errors.Is(shard.Classify(err), shard.ErrUnknown) {
		l.set.Forget(tenant)
	}
}
