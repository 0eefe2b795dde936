package main

import (
	"context"
	"flag"
	"reflect"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/ops"
)

// listCommand makes the command of a list. after writes what follows its table; nil: nothing.
func listCommand(l *operate.List, after func(a *app, rows any)) command {
	return command{name: l.Name, args: l.Synopsis(), summary: l.Summary, help: l.Help, lines: true, json: []reflect.Type{l.Row},
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			q := l.Begin()
			for i := range l.Fields {
				fieldVar(fs, &l.Fields[i], q.Set)
			}
			return func(ctx context.Context, a *app) error {
				var rows operate.Rows
				err := a.ask(ctx, *address, "reading the list", func(ctx context.Context, db ops.DB) (err error) {
					rows, err = q.Read(ctx, db, a.countLimit)
					return err
				})
				if err != nil {
					return err
				}
				return a.writeRows(l, rows, *asJSON, after)
			}
		}}
}

// writeRows writes the rows of a list.
func (a *app) writeRows(l *operate.List, rows operate.Rows, asJSON bool, after func(a *app, rows any)) error {
	columns, cells := operate.Table(rows.All)
	switch {
	case asJSON:
		if err := rows.Each(a.writeJSON); err != nil {
			return err
		}
	case len(cells) == 0:
		a.say("%s", l.None)
	default:
		a.table(columns, cells)
		if l.After != "" {
			a.say("%s", l.After)
		}
		if after != nil {
			after(a, rows.All)
		}
	}
	if rows.More {
		return a.thereAreMore(rows.Limit)
	}
	return nil
}
