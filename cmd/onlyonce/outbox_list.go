package main

import (
	"context"
	"flag"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func outboxShowCommand() command {
	return report(command{
		name:    "outbox show",
		args:    "[-postgres URL] KEY [-body] [-json]",
		operand: true,
		summary: "show one call whole, sent or not",
		help: `
Shows the call with the idempotency key KEY in the outbox's log, without its
body, which may be private; -body adds it. A call that was sent stays in the log
until its segment is emptied. It ends with the commands for this call. It
changes nothing.

Example:
  onlyonce outbox show 6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a`,
	}, "reading a call", func(fs *flag.FlagSet) reading[reports.Call] {
		body := fs.Bool("body", false, "show the body too")
		return reading[reports.Call]{
			check: func(a *app) error { return missing(given{"KEY, the idempotency key of a call", a.operand != nil}) },
			read: func(ctx context.Context, a *app, db ops.DB) (*reports.Call, error) {
				c, err := operate.CallByKey(ctx, db, *a.operand, *body)
				if err == nil && c == nil {
					err = usagef("the log has no call with the key %s: `onlyonce explain %s` shows what else "+
						"is stored under it", *a.operand, show.Quote(*a.operand))
				}
				return c, err
			},
			write: func(a *app, c *reports.Call) { a.writeWhole(operate.WholeCall(c), operate.NextOfCall(c)) },
		}
	})
}
