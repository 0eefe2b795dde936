package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/migrations"
)

func migrateCommand() command {
	return command{
		name:    "migrate",
		args:    "[-postgres URL] [-print | -version]",
		summary: "bring the schema onlyonce up to date",
		help: `
Brings the schema onlyonce in the database to the version that this program was written for, in one
transaction, and says which versions that took. Any number of processes may do it at once: they take turns.
Needs the right to create schemas. Old code goes on working with the new schema, so migrate first and deploy after.

-print needs no database: it writes every version as SQL for psql or for a migration tool of your own, in
which each version must be run in one transaction:

  onlyonce migrate -print | psql -1 -v ON_ERROR_STOP=1

-version writes the version of the schema in the database, a number alone, 0 where there is none.`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			print := fs.Bool("print", false, "write the SQL to standard output, without a database")
			version := fs.Bool("version", false, "write the version of the schema in the database, and change nothing")
			return func(ctx context.Context, a *app) error {
				switch {
				case *print && *version:
					return usagef("-print and -version exclude each other")
				case *print:
					a.whole()
					return migrations.Print(a.out, 0)
				case *version:
					return a.schemaVersion(ctx, *address)
				}
				return a.migrate(ctx, *address)
			}
		},
	}
}

func (a *app) schemaVersion(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, program.ConnectTimeout+program.ReadTimeout)
	defer cancel()
	return a.withDatabase(ctx, address, func(db *program.Database) error {
		v, err := migrations.Version(ctx, db)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.out, v)
		return err
	})
}

func (a *app) migrate(ctx context.Context, address string) error {
	return a.withDatabase(ctx, address, func(db *program.Database) error {
		var applied []int
		err := a.watch("migrating; it may be waiting for another migration or for a lock", func() (err error) {
			applied, err = migrations.Apply(ctx, db.Conn)
			return err
		})
		if err != nil {
			return err
		}
		for _, v := range applied {
			_, _ = fmt.Fprintf(a.out, "applied version %d\n", v)
		}
		if err := db.Check(ctx); err != nil {
			return err
		}
		v, err := migrations.Version(ctx, db)
		if err != nil {
			return err
		}
		if len(applied) == 0 {
			_, _ = fmt.Fprintf(a.out, "nothing to do: ")
		}
		_, _ = fmt.Fprintf(a.out, "the schema is at version %d (this program was written for %d) in %s\n",
			v, migrations.Latest, db.Name)
		return nil
	})
}
