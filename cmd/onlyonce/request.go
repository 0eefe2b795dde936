package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"

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

// requestChange holds the operator's flags of the commands that change a request.
type requestChange struct {
	consent
	id                *string
	tenant, scope     string
	key               *string
	step, result      *string
	applied, opposite bool
	close             bool
	keysFile          *string
	sealer            *seal.Sealer // of keysFile
}

func (c *requestChange) write(a *app, d *ops.RequestChange) {
	_ = a.writeRequests([]ops.Request{d.Request}, false, 0, false)
	switch {
	case c.close:
		_, _ = fmt.Fprintln(a.out, "Close the request: copies of it get 410 and do not run. Whatever its steps did at the provider stands, and what the handler would have written does not.")
	case c.step == nil:
		_, _ = fmt.Fprintln(a.out, "Erase the answer. It cannot be brought back; copies of the request get 410 and do not run.")
		for _, o := range d.Operations {
			_, _ = fmt.Fprintf(a.out, "Erase the result and the input of its operation %s (%s).\n", o.ID, o.State)
		}
	case c.applied:
		_, _ = fmt.Fprintf(a.out, "Step %s: it had its effect. The next copy of the request goes on behind it.\n", cell(*c.step))
	default:
		_, _ = fmt.Fprintf(a.out, "Step %s: it had no effect. The next copy of the request calls the provider again, under the same key.\n", cell(*c.step))
	}
}

func (c *requestChange) carryOut(ctx context.Context, a *app, address string) error {
	return decide(ctx, a, address, c.consent, "waiting for the request", decision[ops.RequestChange]{act: c.act, write: c.write, after: func(_ context.Context, _ *database, done *ops.RequestChange) error {
		_, _ = fmt.Fprintf(a.out, "Done; audit row %d.\n", done.AuditID)
		return nil
	}})
}

func (c *requestChange) act(ctx context.Context, db *database, by ops.By, shown *ops.RequestChange) (*ops.RequestChange, error) {
	switch {
	case c.close:
		return ops.CloseRequest(ctx, db, by, ops.CloseRequestInput{ID: given0(c.id), Shown: shown})
	case c.step == nil:
		return ops.EraseRequest(ctx, db, by, ops.EraseRequestInput{ID: given0(c.id), Tenant: c.tenant, Scope: c.scope, Key: given0(c.key), Shown: shown})
	case c.applied:
		return ops.ResolveRequest(ctx, db, by, ops.ResolveRequestInput{ID: given0(c.id), Step: *c.step, Outcome: ops.StepApplied, Result: []byte(*c.result), Sealer: c.sealer, Shown: shown})
	}
	return ops.ResolveRequest(ctx, db, by, ops.ResolveRequestInput{ID: given0(c.id), Step: *c.step, Outcome: ops.StepNotApplied, Shown: shown})
}

// parseID checks -id.
func (c *requestChange) parseID() error {
	if c.id == nil {
		return nil
	}
	id, err := uuid.Parse(*c.id)
	if err != nil {
		return usagef("-id: %q is no UUID", *c.id)
	}
	*c.id = id.String()
	return nil
}

func requestResolveCommand() command {
	return command{
		name:    "request resolve",
		args:    "[-postgres URL] -id ID -step NAME (-applied -result TEXT [-seal-keys FILE] | -not-applied) -reason WHY [-yes]",
		summary: "say what became of a step whose outcome is unknown",
		help: `
Says what became of an external call that a request in lease mode has begun, whose outcome nobody knows any more: ask the provider first. With
-applied the handler gets TEXT as the step's result when the request is sent again, and goes on: give what the step would have returned, mostly the
provider's answer (-result "" where it returns nothing). With -not-applied the call is made again, under the key that it had. It asks first, unless
-yes is given, and writes an audit row, without TEXT.

Where the layer seals results FILE must hold its keys, and the first one seals: {"seal_keys": [{"id": 1, "key": SECRET}]}, as in the configuration of
"onlyonce relay": 32 bytes in base64, as {"file": PATH} or {"env": NAME}.

Example:
  onlyonce request resolve -id 5f0c... -step charge -applied -result '{"id":"ch_1"}' -reason "found at the provider, ticket 812"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			c := &requestChange{}
			textVar(fs, &c.id, "id", "the request's `ID`, as `onlyonce request list` shows it")
			textVar(fs, &c.step, "step", "the step's `NAME`")
			fs.BoolVar(&c.applied, "applied", false, "it had its effect")
			fs.BoolVar(&c.opposite, "not-applied", false, "it had no effect")
			textVar(fs, &c.result, "result", "what the step returns, `TEXT`")
			textVar(fs, &c.keysFile, "seal-keys", "the layer's sealing keys, in `FILE`")
			c.consent.flags(fs)
			return func(ctx context.Context, a *app) error {
				if err := missing(given{"-id", c.id != nil}, given{"-step", c.step != nil}, given{"-applied or -not-applied", c.applied || c.opposite}, given{"-reason", c.reason != nil}); err != nil {
					return err
				}
				switch {
				case c.applied && c.opposite:
					return usagef("-not-applied: contradicts -applied")
				case c.opposite && c.result != nil:
					return usagef("-result: a call without an effect has none")
				case c.opposite && c.keysFile != nil:
					return usagef("-seal-keys: nothing is sealed with -not-applied")
				case c.applied && c.result == nil:
					return usagef("missing: -result, what the step returns to the handler (-result \"\" where that is nothing)")
				}
				if c.keysFile != nil {
					var err error
					if c.sealer, err = readSealKeys(*c.keysFile, a.env); err != nil {
						return err
					}
				}
				if err := c.parseID(); err != nil {
					return err
				}
				return c.carryOut(ctx, a, *address)
			}
		},
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

func requestCloseCommand() command {
	return command{
		name:    "request close",
		args:    "[-postgres URL] -id ID -reason WHY [-yes]",
		summary: "end a request that no client comes back for",
		help: `
Ends a request in lease mode that was never completed, without an answer: one that is left, abandoned or set aside. Nothing else ends one that has
a step, because a copy of it would make its calls again. Ask the provider first what its steps did, and set that right: what the handler would have
written is never written. Copies of the request get 410, until its record expires as a completed one does. It asks first, unless -yes is given, and
writes an audit row.

Example:
  onlyonce request close -id 5f0c... -reason "refunded by hand, ticket 812"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			c := &requestChange{close: true}
			textVar(fs, &c.id, "id", "the request's `ID`, as `onlyonce request list` shows it")
			c.consent.flags(fs)
			return func(ctx context.Context, a *app) error {
				if err := missing(given{"-id", c.id != nil}, given{"-reason", c.reason != nil}); err != nil {
					return err
				}
				if err := c.parseID(); err != nil {
					return err
				}
				return c.carryOut(ctx, a, *address)
			}
		},
	}
}

func requestEraseCommand() command {
	return command{
		name:    "request erase",
		args:    "[-postgres URL] (-id ID | -scope S -key KEY [-tenant T]) -reason WHY [-yes]",
		summary: "erase the stored answer to a request",
		help: `
Erases what is stored of the answer to a request, and what its steps have remembered: for a person who asks to be forgotten. Of an operation
that it has made, the result and the input are erased too, also if the record has expired before. The request must be completed, and its operation
must have ended. The record stays until it expires, so that copies get 410 and do not run again. A cache of the layer may serve the answer until
its entries expire (Config.CacheTTL); backups, and standbys that lag, hold it longer.

KEY is the idempotency key, S the scope: "http POST /v1/charges", and the principal, URL-escaped, behind another space. It asks first, unless
-yes is given, and writes an audit row. What is erased already stays so: status 0, nothing is written.

Example:
  onlyonce request erase -tenant acct_17 -scope "http POST /v1/charges" -key order-118 -reason "GDPR request 118"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			c := &requestChange{}
			var tenant, scope *string
			textVar(fs, &c.id, "id", "the request's `ID`, as `onlyonce request list` shows it")
			textVar(fs, &tenant, "tenant", "the tenant `T` (default: none)")
			textVar(fs, &scope, "scope", "the scope `S`")
			textVar(fs, &c.key, "key", "the idempotency key, `KEY`")
			c.consent.flags(fs)
			return func(ctx context.Context, a *app) error {
				named := scope != nil && c.key != nil
				if err := missing(given{"-id, or -scope and -key", c.id != nil || named}, given{"-reason", c.reason != nil}); err != nil {
					return err
				}
				if c.id != nil && (scope != nil || c.key != nil || tenant != nil) {
					return usagef("-id: names the request by itself")
				}
				if tenant != nil {
					c.tenant = *tenant
				}
				if scope != nil {
					c.scope = *scope
				}
				if err := c.parseID(); err != nil {
					return err
				}
				return c.carryOut(ctx, a, *address)
			}
		},
	}
}
