package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/rediscache"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv"
)

// replaysByRedis compares replays that a Redis on this machine answers with those that the database
// does.
func replaysByRedis(ctx context.Context, _ *server, _ options) (wrapped, plain side, err error) {
	srv, err := devenv.StartRedis(ctx, devenv.Options{})
	if err != nil {
		return nil, nil, fmt.Errorf("P21 needs redis-server (Debian: apt-get install redis-server): %w", err)
	}
	client := redis.NewClient(&redis.Options{Addr: srv.Addr, ContextTimeoutEnabled: true})
	return requestSide(cachedService(client), true, false), requestSide(layeredService, true, false), nil
}

func cachedService(client *redis.Client) served {
	return func(_ context.Context, pool *pgxpool.Pool) (http.Handler, error) {
		sealer, err := seal.New(seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}})
		if err != nil {
			return nil, err
		}
		cache, err := rediscache.New(client, "bench:")
		if err != nil {
			return nil, err
		}
		return layered(pool, idempotency.Config{Sealer: sealer, Cache: cache})
	}
}
