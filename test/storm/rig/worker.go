package rig

import (
	"context"
	"fmt"

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
