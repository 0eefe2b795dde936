package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

var callColumns = []string{"KEY", "SINK", "NAME", "SCOPE", "TENANT", "AGE", "SIZE", "STATE"}

func outboxListCommand() command {
	return command{
		name:    "outbox list",
		args:    "[-postgres URL] [-sink S] [-scope S] [-name N] [-limit N] [-json]",
		summary: "list calls that are to be sent, oldest first",
		help: `
Lists the calls of the log that are to be sent, oldest first. KEY is the idempotency key that the remote sees, AGE the time since the call was enqueued.
Bodies and headers are not shown. Calls that have failed are parked: "onlyonce parked list -kind call" lists them. It changes nothing.

STATE is empty, or "no relay" if no relay has ever listed the sink, or the time before which the call is not sent.

With -json, one object a line:
  id, key, sink, lane, name, tenant, scope, method, target
  listed                   a relay has listed the sink
  created_at, not_before   times; not_before is null if it may be sent at once
  bytes                    size of its body

Example:
  onlyonce outbox list -sink payments`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var sink, scope, name *string
			var limit *int64
			textVar(fs, &sink, "sink", "only calls to the sink `S`")
			textVar(fs, &scope, "scope", "only calls of the scope `S`")
			textVar(fs, &name, "name", "only calls of the name `N`")
			numberVar(fs, &limit, "limit", fmt.Sprintf("at most `N` calls, from 1 to %d (default %d)", ops.MostLimit, ops.DefaultLimit), 1, ops.MostLimit)
			return func(ctx context.Context, a *app) error {
				f := ops.CallFilter{Sink: text(sink), Scope: text(scope), Name: text(name), Limit: limitOf(limit)}
				var calls []ops.PendingCall
				var more bool
				err := a.ask(ctx, *address, "reading calls", func(ctx context.Context, db ops.DB) (err error) {
					calls, more, err = ops.PendingCallList(ctx, db, f)
					return err
				})
				if err != nil {
					return err
				}
				if err := a.writeCalls(calls, *asJSON); err != nil || !more {
					return err
				}
				return a.thereAreMore(f.Limit)
			}
		},
	}
}

func (a *app) writeCalls(calls []ops.PendingCall, asJSON bool) error {
	var rows [][]string
	for i := range calls {
		c := &calls[i]
		if asJSON {
			if err := a.writeJSON(c); err != nil {
				return err
			}
			continue
		}
		state := ""
		switch {
		case !c.Listed:
			state = "no relay"
		case c.NotBefore != nil:
			state = "not before " + show.Instant(*c.NotBefore)
		}
		rows = append(rows, []string{c.Key, c.Sink, c.Name, c.Scope, c.Tenant, show.Ago(time.Since(c.CreatedAt).Seconds()), show.Size(float64(c.Bytes)), state})
	}
	switch {
	case asJSON:
	case len(calls) == 0:
		a.say("No matching calls are to be sent.")
	default:
		a.table(callColumns, rows)
		a.say("One call whole: onlyonce outbox show KEY")
	}
	return nil
}

func outboxShowCommand() command {
	return command{
		name:    "outbox show",
		args:    "[-postgres URL] KEY [-body] [-json]",
		operand: true,
		summary: "show one call whole, sent or not",
		help: `
Shows what the log of the outbox has of the call with the idempotency key KEY, but its body, which may be private: -body adds that. A call that was
sent stays in the log until its segment is emptied. It ends with the commands for this call. It changes nothing.

With -json, one object:
  id, key, sink, lane, name, tenant, scope, method, target, trace, order_key (as stored)
  state                                      pending, delivered, waiting, retrying, blocked, reconcile or discarded
  listed                                     a relay has listed the sink
  headers                                    a line for each
  created_at, not_before, erased_at          times or null
  capture, sealed                            the answer is kept; the body is encrypted
  bytes, body                                body with -body only: {"text": ...} or {"hex": ...}, or null
  parked_id, attempts, error, settled_at     of the row that is parked, else null
  paused_at, paused_by, pause_reason         of its sink, else null

Example:
  onlyonce outbox show 6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			body := fs.Bool("body", false, "show the body too")
			return func(ctx context.Context, a *app) error {
				if a.operand == nil {
					return missing(given{"KEY, the idempotency key of a call", false})
				}
				var c *ops.Call
				err := a.ask(ctx, *address, "reading a call", func(ctx context.Context, db ops.DB) (err error) {
					c, err = ops.CallByKey(ctx, db, *a.operand, *body)
					return err
				})
				switch {
				case err != nil:
					return err
				case c == nil:
					return usagef("the log has no call with the key %s: `onlyonce explain %s` says what else is known of it", *a.operand, show.Quote(*a.operand))
				case *asJSON:
					return a.writeJSON(c)
				}
				a.writeCall(c, *body)
				a.writeNext(c.Next())
				return nil
			}
		},
	}
}

// field writes a line of what is shown whole, unless it has no value.
func (a *app) field(name, value string) {
	if value != "" {
		a.say("%-15s %s", name, cell(value))
	}
}

// moment is field for a time that may be missing.
func (a *app) moment(name string, t *time.Time) {
	if t != nil {
		a.field(name, show.Instant(*t))
	}
}

func (a *app) writeCall(c *ops.Call, body bool) {
	a.field("key", c.Key)
	a.field("state", c.State)
	a.field("sink", c.Sink)
	if c.PausedAt != nil {
		p := ops.Sink{Name: c.Sink, PausedAt: c.PausedAt, PausedBy: c.PausedBy, PauseReason: c.PauseReason}
		a.field("paused", p.Paused())
	}
	if !c.Listed {
		a.field("relay", "no relay has listed the sink")
	}
	a.field("name", c.Name)
	a.field("method", c.Method)
	a.field("target", c.Target)
	a.field("scope", c.Scope)
	a.field("tenant", c.Tenant)
	a.field("log id", number(c.ID))
	a.field("lane", strconv.Itoa(int(c.Lane)))
	a.field("ordering key", text(c.OrderKey))
	a.field("trace", text(c.Trace))
	a.moment("enqueued at", &c.CreatedAt)
	a.moment("not before", c.NotBefore)
	a.moment("settled at", c.SettledAt)
	a.moment("erased at", c.ErasedAt)
	for line := range strings.Lines(c.Headers) {
		a.field("header", strings.TrimRight(line, "\r\n"))
	}
	if c.Attempts != nil {
		a.field("attempts", strconv.Itoa(int(*c.Attempts)))
	}
	for line := range strings.Lines(text(c.Error)) {
		a.field("error", strings.TrimRight(line, "\r\n"))
	}
	a.field("body", bodyText(c.Body, c.Bytes, c.ErasedAt != nil, body))
}

// bodyText shows a body, or why it is not shown.
func bodyText(b ops.Octets, bytes int64, erased, asked bool) string {
	switch {
	case erased:
		return "erased"
	case !asked:
		return show.Size(float64(bytes)) + "; -body shows it"
	}
	return b.String()
}
