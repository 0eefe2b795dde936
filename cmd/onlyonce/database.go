package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/ops"
)

// postgresVar declares -postgres.
func postgresVar(fs *flag.FlagSet) *string {
	return fs.String("postgres",
		"", "the database, as a `URL`: postgres://user@host:5432/name (default: $"+program.EnvPostgres+")")
}

// databases connects to the databases of the command line.
func (a *app) databases() program.Connector {
	return program.Connector{Env: a.env, Notice: a.notice, Timeout: a.connectTimeout}
}

// pool makes the connections of a command that runs until it is stopped. It does not connect.
func (a *app) pool(ctx context.Context, address, name string) (*pgxpool.Pool, error) {
	return a.databases().Pool(ctx, address, name)
}

// withDatabase connects, runs f and closes. The context of f is ctx.
func (a *app) withDatabase(ctx context.Context, address string, f func(db *program.Database) error) error {
	return a.databases().With(ctx, address, func(db *program.Database) error { return explainedBy(db, f(db)) })
}

// withSchema is withDatabase on a database whose schema fits this program.
func (a *app) withSchema(ctx context.Context, address string, f func(db *program.Database) error) error {
	return a.withDatabase(ctx, address, func(db *program.Database) error {
		if err := db.Check(ctx); err != nil {
			return err
		}
		return f(db)
	})
}

// ask runs a question to a database, and prints a line if it takes long. f must not write to
// standard error.
func (a *app) ask(ctx context.Context, address, what string, f func(ctx context.Context, db ops.DB) error) error {
	ctx, cancel := context.WithTimeout(ctx, program.ConnectTimeout+program.ReadTimeout)
	defer cancel()
	return a.watch(what, func() error {
		return a.withDatabase(ctx, address, func(db *program.Database) error { return decided(f(ctx, db)) })
	})
}

// explainedBy adds to an error of a statement the server's name and what to do. The program's own
// errors stay as they are.
func explainedBy(db *program.Database, err error) error {
	var wrong *usageError
	var refused *refusal
	if errors.As(err, &wrong) || errors.As(err, &refused) {
		return err
	}
	return db.Explain(err)
}

// explainedOrigin is explainedBy for an adoption's error, if it is db's as the origin. Others stay
// as they are.
func explainedOrigin(db *program.Database, err error) error {
	var there *ops.OriginError
	if !errors.As(err, &there) {
		return err
	}
	return fmt.Errorf("%w. Nothing was done, here or there: run the command again when that database answers",
		explainedBy(db, there.Err))
}
