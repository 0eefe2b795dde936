package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/seal"
)

func requestListCommand() command {
	return command{
		name:    "request list",
		args:    "[-postgres URL] [-all] [-tenant T] [-scope S] [-limit N] [-json]",
		summary: "list HTTP requests that are not completed",
		help: `
Lists requests of the HTTP layer that are not completed: those in lease mode, because nobody sees one in transactional mode. With -all
completed ones too, until they are purged. Keys, fingerprints and answers are not shown: ID is what the key is kept as. It changes nothing.

States: running; left, by a process that died or a handler that answered 5xx, until the client comes back; abandoned, for an operator, because
its steps had their effect and no client has come back for as long as its answer would be kept: the next copy of it goes on, or "onlyonce request
close" ends it; reconcile, for an operator, because a step's outcome is unknown and too old to ask about ("onlyonce request resolve"); completed.

With -json, one object a line:
  id, state, tenant, scope
  created_at, completed_at, expires_at, erased_at   times or null
  bytes                    what is stored of the answer, null: nothing
  unknown, unknown_since   names of steps without a result, and since when the provider may know the first one's key
  done                     names of steps with a result

Example:
  onlyonce request list -tenant acct_17`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var tenant, scope *string
			var limit *int64
			all := fs.Bool("all", false, "completed ones too")
			textVar(fs, &tenant, "tenant", "only those of the tenant `T`")
			textVar(fs, &scope, "scope", "only those of the scope `S`, such as \"http POST /v1/charges\"")
			numberVar(fs, &limit, "limit", fmt.Sprintf("at most `N` requests (default %d)", ops.DefaultLimit), 1, ops.MostLimit)
			return func(ctx context.Context, a *app) error {
				var rows []ops.Request
				var more bool
				f := ops.RequestFilter{All: *all, Tenant: text(tenant), Scope: text(scope), Limit: limitOf(limit)}
				err := a.ask(ctx, *address, "reading requests", func(ctx context.Context, db ops.DB) (err error) {
					rows, more, err = ops.Requests(ctx, db, f)
					return err
				})
				if err != nil {
					return err
				}
				if err := a.writeRequests(rows, more, f.Limit, *asJSON); err != nil || *asJSON {
					return err
				}
				a.writeNextRequests(rows)
				return nil
			}
		},
	}
}

func (a *app) writeRequests(rows []ops.Request, more bool, limit int, asJSON bool) error {
	var cells [][]string
	for i := range rows {
		r := &rows[i]
		if asJSON {
			if err := a.writeJSON(r); err != nil {
				return err
			}
			continue
		}
		expires := ""
		if r.ExpiresAt != nil {
			expires = show.Instant(*r.ExpiresAt)
		}
		cells = append(cells, []string{r.ID, r.State, r.Tenant, r.Scope, show.Instant(r.CreatedAt), expires, strings.Join(r.Done, ", "), strings.Join(r.Unknown, ", ")})
	}
	switch {
	case asJSON:
	case len(rows) == 0:
		_, _ = fmt.Fprintln(a.out, "No requests.")
	default:
		a.table([]string{"ID", "STATE", "TENANT", "SCOPE", "SINCE", "EXPIRES", "STEPS DONE", "STEPS OF UNKNOWN OUTCOME"}, cells)
	}
	if more {
		return a.thereAreMore(limit)
	}
	return nil
}

// mostNextRequests is for how many requests a list says what an operator can do.
const mostNextRequests = 3

func (a *app) writeNextRequests(rows []ops.Request) {
	said := 0
	for i := range rows {
		steps := rows[i].Next()
		if len(steps) == 0 {
			continue
		}
		if said++; said > mostNextRequests {
			a.say("\nMore of them wait for an operator: the commands are the same, with their IDs.")
			return
		}
		a.say("\nRequest %s (%s)", rows[i].ID, rows[i].State)
		a.writeSteps(steps)
	}
}

// readSealKeys reads the keys that a layer seals with; the first one seals.
func readSealKeys(file string, env func(string) string) (*seal.Sealer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, usagef("-seal-keys: %v", err)
	}
	var faults []error
	top := parseSection("", data, &faults, env)
	s := top.sealer()
	top.unknown()
	if s == nil && len(faults) == 0 {
		faults = append(faults, errors.New("seal_keys: holds no key"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, usagef("-seal-keys: %s: %s", file, oneLine(err.Error()))
	}
	return s, nil
}
