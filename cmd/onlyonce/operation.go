package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func operationListCommand() command {
	return command{
		name:    "operation list",
		args:    "[-postgres URL] [-all] [-tenant T] [-name NAME] [-limit N] [-json]",
		summary: "list operations that were answered 202 and have not ended",
		help: `
Lists operations of the HTTP layer that have not ended. With -all ended ones too, until they are purged. Results are not shown. It changes
nothing.

States: running, also while it waits to begin; suspended, if its work is parked and waits for an operator ("onlyonce parked show"); succeeded;
failed; cancelled.

With -json, one object a line:
  id, state, tenant, principal, name
  created_at, completed_at, expires_at   times or null
  bytes                                  what is stored of the result, null: nothing
  error_code                             of a failed one, or null
  percent, progress, updated_at          the latest progress, or null
  cancel_at                              when its client asked to cancel it, or null
  parked_id                              the parked row of a suspended one, or null

Example:
  onlyonce operation list -tenant acct_17`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var tenant, name *string
			var limit *int64
			all := fs.Bool("all", false, "those that have ended too")
			textVar(fs, &tenant, "tenant", "only those of the tenant `T`")
			textVar(fs, &name, "name", "only those of the operation `NAME`, such as \"export\"")
			numberVar(fs, &limit, "limit", fmt.Sprintf("at most `N` operations (default %d)", ops.DefaultLimit), 1, ops.MostLimit)
			return func(ctx context.Context, a *app) error {
				var rows []ops.Operation
				var more bool
				f := ops.OperationFilter{All: *all, Tenant: text(tenant), Name: text(name), Limit: limitOf(limit)}
				err := a.ask(ctx, *address, "reading operations", func(ctx context.Context, db ops.DB) (err error) {
					rows, more, err = ops.OperationList(ctx, db, f)
					return err
				})
				if err != nil {
					return err
				}
				return a.writeOperations(rows, more, f.Limit, *asJSON)
			}
		},
	}
}

func (a *app) writeOperations(rows []ops.Operation, more bool, limit int, asJSON bool) error {
	var cells [][]string
	for i := range rows {
		o := &rows[i]
		if asJSON {
			if err := a.writeJSON(o); err != nil {
				return err
			}
			continue
		}
		progress, parked := "", ""
		if o.Percent != nil {
			progress = strconv.Itoa(int(*o.Percent)) + " %"
		}
		if o.ParkedID != nil {
			parked = strconv.FormatInt(*o.ParkedID, 10)
		}
		cells = append(cells, []string{o.ID, o.State, o.Tenant, o.Name, show.Instant(o.CreatedAt), progress, text(o.ErrorCode), parked})
	}
	switch {
	case asJSON:
	case len(rows) == 0:
		_, _ = fmt.Fprintln(a.out, "No operations.")
	default:
		a.table([]string{"ID", "STATE", "TENANT", "NAME", "SINCE", "PROGRESS", "ERROR", "PARKED"}, cells)
	}
	if more {
		return a.thereAreMore(limit)
	}
	return nil
}
