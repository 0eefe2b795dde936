package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/seal"
)

// requestsSQL lists requests of the HTTP layer. In: whether completed ones too, tenant, scope (null: any), how many rows, id (null: any). Open ones by
// http_records_open, one by its id; completed ones walk http_records_expired backwards.
const requestsSQL = `
select r.id::text as id, case when r.state = 'running' and coalesce(l.until > clock_timestamp() and l.until <= clock_timestamp() + interval '1 hour', false) then 'running'
                              when r.state = 'running' then case when r.abandoned_at is null then 'left' else 'abandoned' end else r.state end as state,
       r.tenant, r.scope, r.created_at, r.completed_at, r.expires_at, r.erased_at, octet_length(r.response)::bigint as bytes,
       array(select s.name from onlyonce.http_steps s where s.record_id = r.id and s.done_at is null order by s.first_at) as unknown,
       array(select s.name from onlyonce.http_steps s where s.record_id = r.id and s.done_at is not null order by s.first_at) as done,
       (select min(s.first_at) from onlyonce.http_steps s where s.record_id = r.id and s.done_at is null) as unknown_since
  from onlyonce.http_records r left join onlyonce.leases l on l.id = r.lease_id
 where ($1 or r.completed_at is null) and ($2::text is null or r.tenant = $2) and ($3::text is null or r.scope = $3)
   and ($5::uuid is null or r.id = $5)
 order by r.expires_at desc nulls first, r.created_at desc limit $4`

type requestRow = ops.Request

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
				return a.writeRequests(rows, more, f.Limit, *asJSON)
			}
		},
	}
}

func (a *app) writeRequests(rows []ops.Request, more bool, limit int, asJSON bool) error {
	var cells [][]string
	for i := range rows {
		r := &rows[i]
		if asJSON {
			if err := writeJSON(a.out, r); err != nil {
				return err
			}
			continue
		}
		expires := ""
		if r.ExpiresAt != nil {
			expires = instant(*r.ExpiresAt)
		}
		cells = append(cells, []string{r.ID, r.State, r.Tenant, r.Scope, instant(r.CreatedAt), expires, strings.Join(r.Done, ", "), strings.Join(r.Unknown, ", ")})
	}
	switch {
	case asJSON:
	case len(rows) == 0:
		_, _ = fmt.Fprintln(a.out, "No requests.")
	default:
		writeTable(a.out, []string{"ID", "STATE", "TENANT", "SCOPE", "SINCE", "EXPIRES", "STEPS DONE", "STEPS OF UNKNOWN OUTCOME"}, cells)
	}
	if more {
		return a.thereAreMore(limit)
	}
	return nil
}

// requestChange is what the commands that change a request ask for.
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

// keySQL is the id of a request. In: tenant, scope, key.
const keySQL = `select onlyonce.key($1, $2, $3)::text`

// lockRequestSQL locks a record, and lockRequestLeaseSQL its lease: whoever completes the request or takes it over waits. In: id.
const lockRequestSQL = `
select r.id from onlyonce.http_records r where r.id = $1 for update`

const lockRequestLeaseSQL = `
select l.id from onlyonce.leases l where l.id = (select r.lease_id from onlyonce.http_records r where r.id = $1) for update`

// eraseRequestSQL and eraseStepsSQL forget an answer and what its steps have remembered; the record stays, so that the request
// does not run again. In: id.
const (
	eraseRequestSQL = `update onlyonce.http_records set response = null, erased_at = clock_timestamp() where id = $1 and erased_at is null`
	eraseStepsSQL   = `update onlyonce.http_steps set result = null where record_id = $1`
)

// stepAppliedSQL keeps what an operator has found out as a step's result, stepAbsentSQL forgets that it was begun, and reopenSQL lets the
// next request go on. stepSealedSQL says whether the layer that began a step seals. In: id, and the step's name, and its result, and whether that is sealed.
const (
	stepAppliedSQL = `
update onlyonce.http_steps set done_at = clock_timestamp(), result = $3, sealed = $4 where record_id = $1 and name = $2 and done_at is null`
	stepAbsentSQL = `delete from onlyonce.http_steps where record_id = $1 and name = $2 and done_at is null`
	reopenSQL     = `update onlyonce.http_records set state = 'running' where id = $1 and state = 'reconcile'`
	stepSealedSQL = `select sealed from onlyonce.http_steps where record_id = $1 and name = $2 and done_at is null`
	freeSQL       = `update onlyonce.leases set until = clock_timestamp(), nonce = null where id = (select r.lease_id from onlyonce.http_records r where r.id = $1)`
)

// openSealSQL, closeSQL and closeSealSQL complete a request without an answer: a record that becomes completed needs the seal. fenceOffSQL is for who has
// just read that the request may be taken over: it does not find the epoch that it has read. In: id.
const (
	openSealSQL = `select onlyonce.http_open('10s', '30s', '30s')`
	fenceOffSQL = `update onlyonce.leases set epoch = epoch + 1, nonce = null, until = clock_timestamp() where id = (select r.lease_id from onlyonce.http_records r where r.id = $1)`
	closeSQL    = `
update onlyonce.http_records set state = 'completed', response = null, completed_at = clock_timestamp(), erased_at = clock_timestamp(), expires_at = clock_timestamp() + keep
 where id = $1 and state in ('running', 'reconcile')`
	closeSealSQL = `select onlyonce.seal()`
)

// requestDone is what came of it, and the detail of its audit row.
type requestDone struct {
	requestRow
	Step    *string `json:"step,omitempty"`
	Applied *bool   `json:"applied,omitempty"`
}

func (c *requestChange) lock(ctx context.Context, tx pgx.Tx) error {
	id, err := c.identify(ctx, tx)
	if err != nil {
		return err
	}
	for _, sql := range []string{lockRequestSQL, lockRequestLeaseSQL} {
		if _, err := tx.Exec(ctx, sql, id); err != nil {
			return err
		}
	}
	return nil
}

func (c *requestChange) identify(ctx context.Context, tx pgx.Tx) (string, error) {
	if c.id != nil {
		return *c.id, nil
	}
	var id string
	err := tx.QueryRow(ctx, keySQL, c.tenant, c.scope, *c.key).Scan(&id)
	return id, err
}

func (c *requestChange) read(ctx context.Context, tx pgx.Tx) (*requestDone, error) {
	id, err := c.identify(ctx, tx)
	if err != nil {
		return nil, err
	}
	rows, err := collect[requestRow](ctx, tx, requestsSQL, true, nil, nil, 1, id)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, usagef("there is no request %s: it was never made, or is purged", id)
	}
	d := &requestDone{requestRow: rows[0], Step: c.step}
	if c.close {
		if !slices.Contains([]string{"left", "abandoned", "reconcile"}, d.State) {
			return nil, &refusal{fmt.Sprintf("the request is %s, and nothing was done: only one that is left, abandoned or set aside can be closed", d.State)}
		}
		return d, nil
	}
	if c.step == nil {
		switch {
		case d.State != "completed":
			return nil, &refusal{fmt.Sprintf("the request is not completed (%s), and nothing was done: what is kept of it is needed to end it", d.State)}
		case d.ErasedAt != nil:
			return nil, &nothing{fmt.Sprintf("The answer to request %s was erased already: nothing was changed.", d.ID)}
		}
		return d, nil
	}
	d.Applied = &c.applied
	switch {
	case d.State != "reconcile" && d.State != "left" && d.State != "abandoned":
		return nil, &refusal{fmt.Sprintf("the request is %s, and nothing was done: only one that is set aside, or left, can be resolved", d.State)}
	case !slices.Contains(d.Unknown, *c.step):
		return nil, usagef("-step: the request has no step %q of unknown outcome, but: %s", *c.step, oneLine(strings.Join(d.Unknown, ", ")))
	case c.applied && c.sealer == nil:
		var sealed bool
		if err := tx.QueryRow(ctx, stepSealedSQL, id, *c.step).Scan(&sealed); err != nil {
			return nil, err
		}
		if sealed {
			return nil, usagef("-seal-keys: must be given, because the layer that began the step seals results: TEXT would lie in the table as it is, and a layer with RequireSealed would not read it")
		}
	}
	return d, nil
}

// stored is what is kept of -result.
func (c *requestChange) stored(id string) (result []byte, sealed bool, err error) {
	if c.sealer == nil {
		return []byte(*c.result), false, nil
	}
	record, err := uuid.Parse(id)
	if err != nil {
		return nil, false, err
	}
	result, err = c.sealer.Seal(codec.SealPlace(record, "step", *c.step), []byte(*c.result))
	return result, true, err
}

func (c *requestChange) differs(shown, now *requestDone) bool {
	return shown.State != now.State || !slices.Equal(shown.Unknown, now.Unknown)
}

func (c *requestChange) do(ctx context.Context, tx pgx.Tx, now *requestDone) (*requestDone, error) {
	exec := func(sql string, args ...any) func() error {
		return func() error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		}
	}
	var steps []func() error
	switch {
	case c.close:
		steps = append(steps, exec(openSealSQL), exec(fenceOffSQL, now.ID), exec(closeSQL, now.ID), exec(closeSealSQL))
	case c.step == nil:
		steps = append(steps, exec(eraseRequestSQL, now.ID), exec(eraseStepsSQL, now.ID))
	case c.applied:
		result, sealed, err := c.stored(now.ID)
		if err != nil {
			return nil, err
		}
		steps = append(steps, exec(stepAppliedSQL, now.ID, *c.step, result, sealed))
	default:
		steps = append(steps, exec(stepAbsentSQL, now.ID, *c.step))
	}
	if c.step != nil && len(now.Unknown) == 1 { // the last one
		steps = append(steps, exec(reopenSQL, now.ID), exec(freeSQL, now.ID))
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return now, nil
}

func (c *requestChange) write(a *app, d *requestDone) {
	_ = a.writeRequests([]ops.Request{d.requestRow}, false, 0, false)
	switch {
	case c.close:
		_, _ = fmt.Fprintln(a.out, "Close the request: copies of it get 410 and do not run. Whatever its steps did at the provider stands, and what the handler would have written does not.")
	case c.step == nil:
		_, _ = fmt.Fprintln(a.out, "Erase the answer. It cannot be brought back; copies of the request get 410 and do not run.")
	case c.applied:
		_, _ = fmt.Fprintf(a.out, "Step %s: it had its effect. The next copy of the request goes on behind it.\n", cell(*c.step))
	default:
		_, _ = fmt.Fprintf(a.out, "Step %s: it had no effect. The next copy of the request calls the provider again, under the same key.\n", cell(*c.step))
	}
}

func (c *requestChange) carryOut(ctx context.Context, a *app, address, action string) error {
	k := changeKind{action: action, subject: "the request", waiting: "waiting for the request", look: "onlyonce request list"}
	return change(ctx, a, address, k, c.consent, c, func(_ context.Context, _ *database, _ *requestDone, audit int64) error {
		_, _ = fmt.Fprintf(a.out, "Done; audit row %d.\n", audit)
		return nil
	})
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
				return c.carryOut(ctx, a, *address, "request resolve")
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
				return c.carryOut(ctx, a, *address, "request close")
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
Erases what is stored of the answer to a request, and what its steps have remembered: for a person who asks to be forgotten. The request
must be completed. Its record stays until it expires, so that copies get 410 and do not run again. A cache of the layer may serve the answer
until its entries expire (Config.CacheTTL); backups, and standbys that lag, hold it longer.

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
				return c.carryOut(ctx, a, *address, "request erase")
			}
		},
	}
}
