package rig

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/onlyonce/onlyonce/test/fleet"
)

// Serve is main in a worker process, as [fleet.Serve]. It notes a breach if after a stop in order a
// goroutine is left, and so a connection (I14).
func Serve(cfg any, run func(ctx context.Context, c *fleet.Child) error) int {
	return fleet.Serve(cfg, func(ctx context.Context, c *fleet.Child) error {
		before := goleak.IgnoreCurrent()
		if err := run(ctx, c); err != nil {
			return err
		}
		if err := goleak.Find(before); err != nil {
			c.Tell(fleet.Event{Kind: fleet.Breach, Text: fmt.Sprintf("I14 goroutines are left after a stop in order: %v", err)})
		}
		return nil
	})
}

// Pool opens a pool with at most so many connections, which does not wait for long for a server
// that a blow has taken away. change may be nil.
func Pool(ctx context.Context, address string, most int32, change func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = most
	cfg.ConnConfig.ConnectTimeout = 2 * time.Second
	if change != nil {
		change(cfg)
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}
