package main

import (
	"context"
	"flag"
	"reflect"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// listCommand makes the command of a list. after writes the lines behind its table; nil: none.
func listCommand[F, T any](
	l *operate.List[F, T],
	after func(a *app, f *F, rows []T, sums *reports.ParkedTotals),
) command {
	return command{name: l.Name, args: l.Synopsis(), summary: l.Summary, help: l.Help, lines: true,
		json: []reflect.Type{reflect.TypeFor[T]()},
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			asJSON := jsonVar(fs)
			q := l.Begin()
			fieldsVar(fs, q.Form)
			return func(ctx context.Context, a *app) error {
				var rows operate.Rows[T]
				var sums *reports.ParkedTotals
				err := a.ask(ctx, *address, "reading the list", func(ctx context.Context, db ops.DB) (err error) {
					if rows, err = q.Read(ctx, db, a.countLimit); err == nil && !*asJSON {
						sums, err = q.Sums(ctx, db, a.countLimit)
					}
					return err
				})
				if err != nil {
					return err
				}
				switch {
				case *asJSON:
					for i := range rows.All {
						if err := a.writeJSON(&rows.All[i]); err != nil {
							return err
						}
					}
				case len(rows.All) == 0 && l.None != "":
					a.say("%s", l.None)
				default:
					writeRows(a, l.Columns, rows.All)
					if l.After != "" {
						a.say("%s", l.After)
					}
					if after != nil {
						after(a, q.Filter, rows.All, sums)
					}
				}
				if !rows.More {
					return nil
				}
				if err := a.out.Flush(); err != nil {
					return err
				}
				a.complain("there are more: -limit %d was reached", len(rows.All))
				return nil
			}
		}}
}

// reading is how a command reads a report, after check, and shows it without -json.
type reading[R any] struct {
	check func(a *app) error // nil: of nothing
	read  func(ctx context.Context, a *app, db ops.DB) (*R, error)
	write func(a *app, r *R)
}

// report completes the command of a report. what says what it does while it takes long.
func report[R any](c command, what string, setup func(fs *flag.FlagSet) reading[R]) command {
	c.json = []reflect.Type{reflect.TypeFor[R]()}
	c.setup = func(fs *flag.FlagSet) func(context.Context, *app) error {
		address := postgresVar(fs)
		asJSON := jsonVar(fs)
		of := setup(fs)
		return func(ctx context.Context, a *app) error {
			if of.check != nil {
				if err := of.check(a); err != nil {
					return err
				}
			}
			var r *R
			err := a.ask(ctx, *address, what, func(ctx context.Context, db ops.DB) (err error) {
				r, err = of.read(ctx, a, db)
				return err
			})
			switch {
			case err != nil:
				return err
			case *asJSON:
				return a.writeJSON(r)
			}
			of.write(a, r)
			return nil
		}
	}
	return c
}
