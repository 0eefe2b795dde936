package main

import (
	"context"
	"flag"
	"strconv"
	"strings"
	"time"

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
Shows what the log of the outbox has of the call with the idempotency key KEY, but its body, which may be private: -body adds that. A call that was
sent stays in the log until its segment is emptied. It ends with the commands for this call. It changes nothing.

Example:
  onlyonce outbox show 6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a`,
	}, "reading a call", func(fs *flag.FlagSet) reading[reports.Call] {
		body := fs.Bool("body", false, "show the body too")
		return reading[reports.Call]{
			check: func(a *app) error { return missing(given{"KEY, the idempotency key of a call", a.operand != nil}) },
			read: func(ctx context.Context, a *app, db ops.DB) (*reports.Call, error) {
				c, err := operate.CallByKey(ctx, db, *a.operand, *body)
				if err == nil && c == nil {
					err = usagef("the log has no call with the key %s: `onlyonce explain %s` says what else is known of it", *a.operand, show.Quote(*a.operand))
				}
				return c, err
			},
			write: func(a *app, c *reports.Call) {
				a.writeCall(c, *body)
				a.writeNext(operate.Next(c))
			},
		}
	})
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

func (a *app) writeCall(c *reports.Call, body bool) {
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
func bodyText(b reports.Octets, bytes int64, erased, asked bool) string {
	switch {
	case erased:
		return "erased"
	case !asked:
		return show.Size(float64(bytes)) + "; -body shows it"
	}
	return b.String()
}
