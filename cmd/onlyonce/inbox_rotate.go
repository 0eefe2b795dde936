package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/internal/ring"
)

func inboxRotateCommand() command {
	return command{
		name:    "inbox rotate",
		args:    "[-postgres URL]",
		summary: "rotate the inbox if no consumer, relay or receiver does",
		help: `
Rotates the rings of claimed keys, so that keys are forgotten when their horizon has passed, until
SIGTERM or SIGINT; then it exits with status 0. Any number may run: one works for each ring, the
others stand by.

Consumers, relays and webhook receivers do this in the background. It is for databases that have
none of them, where keys are claimed with dedupe.Claim or with the SQL function onlyonce.claim. It
needs the rights of the role onlyonce_rotator (docs/roles.sql), and logs to standard error.

Example:
  onlyonce inbox rotate -postgres postgres://rotator@db.example/app`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			return func(ctx context.Context, a *app) error { return a.rotateInbox(ctx, *address) }
		},
	}
}

func (a *app) rotateInbox(ctx context.Context, address string) error {
	err := a.withSchema(ctx, address, func(db *program.Database) error {
		var me string
		if err := db.QueryRow(ctx, `select current_user`).Scan(&me); err != nil {
			return err
		}
		for _, which := range ring.Keys() {
			may, err := ring.Rotators(ctx, db, which)
			if err != nil {
				return err
			}
			if !slices.Contains(may, me) {
				return fmt.Errorf("role %s lacks the rights to rotate ring %s: grant it onlyonce_rotator "+
					"(docs/roles.sql)", me, which.Name)
			}
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // stopped before it began
	}
	if err != nil {
		return err
	}
	pool, err := a.pool(ctx, address, "onlyonce inbox rotate")
	if err != nil {
		return err
	}
	defer pool.Close()
	inbox.Rotate(ctx, pool, slog.New(slog.NewTextHandler(a.stderr, nil)))
	return nil
}
