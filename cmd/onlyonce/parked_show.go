package main

import (
	"context"
	"flag"
	"math"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/seal"
)

func parkedShowCommand() command {
	return report(command{
		name:    "parked show",
		args:    "[-postgres URL] (N | -id N) [-body [-seal-keys FILE]] [-json]",
		operand: true,
		summary: "show one parked row whole, with its next commands",
		help: `
Shows the parked row N without its body, which may be private; -body adds it. Values are
shown as text if they are UTF-8, and else as hexadecimal digits. A sealed body
is opened with the keys in FILE ("onlyonce help request resolve" has its form).
It ends with the commands for this row; fill in WHY. It changes nothing.

Example:
  onlyonce parked show 4711 -body`,
	}, "reading a parked row", func(fs *flag.FlagSet) reading[operate.ParkedDetail] {
		var id *int64
		numberVar(fs, &id, "id", "the row's id `N`, as `onlyonce parked list` shows it", 1, math.MaxInt64)
		body := fs.Bool("body", false, "show the body too")
		keys := fs.String("seal-keys", "", "open a sealed body with the keys in `FILE`")
		return reading[operate.ParkedDetail]{
			check: func(a *app) error { return a.rowID(&id) },
			read: func(ctx context.Context, a *app, db ops.DB) (*operate.ParkedDetail, error) {
				row, err := operate.ParkedByID(ctx, db, *id, *body)
				if err == nil && row != nil && *keys != "" {
					err = a.unseal(row, *keys)
				}
				if err == nil && row == nil {
					err = usagef("there is no parked row %d: `onlyonce parked list -all` lists them", *id)
				}
				return row, err
			},
			write: func(a *app, row *operate.ParkedDetail) {
				a.writeWhole(row.Whole(), operate.NextOfParked(row))
			},
		}
	})
}

// unseal opens the sealed body of a row with the keys in a file.
func (a *app) unseal(row interface{ Open(*seal.Sealer) error }, file string) error {
	sealer, err := readSealKeys(file, a.env)
	if err != nil {
		return err
	}
	return row.Open(sealer)
}

// rowID is the id of a row, which is given as a word or with -id.
func (a *app) rowID(id **int64) error {
	switch {
	case a.operand == nil:
		return missing(given{"N, the id of a row", *id != nil})
	case *id != nil:
		return usagef("%q and -id: give one of the two", *a.operand)
	}
	n, err := strconv.ParseInt(*a.operand, 10, 64)
	if err != nil || n < 1 {
		return usagef("%q is no id of a row: it must be a whole number from 1", *a.operand)
	}
	*id = &n
	return nil
}

// writeWhole writes everything of a row, and what an operator can do next.
func (a *app) writeWhole(row []operate.Labelled, steps []operate.Step) {
	for _, f := range row {
		a.say("%-15s %s", f.Name, cell(f.Value))
	}
	if len(steps) > 0 {
		a.say("\nNext:")
		a.writeSteps(steps)
	}
}

func (a *app) writeSteps(steps []operate.Step) {
	for _, s := range steps {
		a.say("  %s:", s.What)
		a.paste(cell(s.Command))
	}
}
