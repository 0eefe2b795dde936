package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func parkedShowCommand() command {
	return report(command{
		name:    "parked show",
		args:    "[-postgres URL] (N | -id N) [-body] [-json]",
		operand: true,
		summary: "show one parked row whole, with its next commands",
		help: `
Shows everything of the parked row N but its body, which may be private: -body adds that. Values are shown as text if they are
UTF-8, and else as hexadecimal digits. It ends with the commands for this row; fill in WHY. It changes nothing.

Example:
  onlyonce parked show 4711 -body`,
	}, "reading a parked row", func(fs *flag.FlagSet) reading[operate.ParkedDetail] {
		var id *int64
		numberVar(fs, &id, "id", "the row's id `N`, as `onlyonce parked list` shows it", 1, math.MaxInt64)
		body := fs.Bool("body", false, "show the body too")
		return reading[operate.ParkedDetail]{
			check: func(a *app) error { return a.rowID(&id) },
			read: func(ctx context.Context, _ *app, db ops.DB) (*operate.ParkedDetail, error) {
				row, err := operate.ParkedByID(ctx, db, *id, *body)
				if err == nil && row == nil {
					err = usagef("there is no parked row %d: `onlyonce parked list -all` lists them", *id)
				}
				return row, err
			},
			write: func(a *app, row *operate.ParkedDetail) {
				a.writeParkedRow(row, *body)
				a.writeNext(operate.Next(row))
			},
		}
	})
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

// writeNext writes what an operator can do next.
func (a *app) writeNext(steps []operate.Step) {
	if len(steps) > 0 {
		a.say("\nNext:")
	}
	a.writeSteps(steps)
}

func (a *app) writeSteps(steps []operate.Step) {
	for _, s := range steps {
		a.say("  %s:", s.What)
		a.paste(cell(s.Command))
	}
}

func (a *app) writeParkedRow(d *operate.ParkedDetail, body bool) {
	a.field("id", number(d.ID))
	a.field("kind", d.Kind)
	a.field("state", d.State)
	a.field("reason", d.Reason)
	a.field("attempts", strconv.Itoa(int(d.Attempts)))
	a.moment("next attempt", d.NextAttemptAt)
	for _, r := range d.Decisions {
		a.field(strings.TrimPrefix(r.Action, "parked "), fmt.Sprintf("%s by %s, audit row %d: %s", show.Instant(r.At), r.Actor, r.AuditID, r.Reason))
	}
	a.field("since then", d.Since())
	a.writeParkedOrigin(d)
	a.writeParkedCall(d)
	a.moment("first attempt", d.FirstAttempt)
	a.writeParkedResponse(d.Response)
	if d.Replay > 0 {
		a.field("replay", fmt.Sprintf("%d, calls under keys of their own: %s", d.Replay, yesNo(d.ReplayResend)))
	}
	if d.OrderKey != nil {
		place := fmt.Sprintf("%s: %d unsettled before it, %d after it", *d.OrderKey, d.Ahead, d.Behind)
		if d.Head != nil {
			place += fmt.Sprintf("; first is row %d", *d.Head)
		}
		a.field("ordering key", place)
	}
	a.field("parked at", show.Instant(d.ParkedAt))
	a.moment("settled at", d.SettledAt)
	a.moment("erased at", d.ErasedAt)
	for _, h := range d.Headers {
		a.field("header", h.Name+": "+h.Value.String())
	}
	for line := range strings.Lines(d.Error) {
		a.field("error", strings.TrimRight(line, "\r\n"))
	}
	if d.BodyBytes == nil {
		a.field("body", "none")
	} else {
		a.field("body", bodyText(d.Body, int64(*d.BodyBytes), d.ErasedAt != nil, body))
	}
}

// writeParkedOrigin writes whose row it is, and where its message or event came from.
func (a *app) writeParkedOrigin(d *operate.ParkedDetail) {
	a.field("scope", d.Scope)
	a.field("tenant", d.Tenant)
	if d.Topic != nil && d.Partition != nil && d.Offset != nil {
		a.field("origin", fmt.Sprintf("%s/%d@%d", *d.Topic, *d.Partition, *d.Offset))
	}
	a.fieldIfSet("cluster", d.ClusterID)
	a.fieldIfSet("topic id", d.TopicID)
	a.moment("record time", d.RecordTime)
	if d.Kind == "message" {
		a.field("record key", d.RecordKey.String())
	}
	if d.Kind == "event" && d.EventID != nil && d.Topic != nil && strings.HasPrefix(*d.Topic, "webhook.") {
		if part := strings.SplitN(*d.EventID, "/", 3); len(part) == 3 { // endpoint, provider, and the id as its sender knows it
			a.field("provider", part[1])
			a.field("event id", part[2])
		}
	} else {
		a.fieldIfSet("event id", d.EventID)
	}
}

// writeParkedCall writes where a call goes, and its place in the log.
func (a *app) writeParkedCall(d *operate.ParkedDetail) {
	a.fieldIfSet("sink", d.Sink)
	a.fieldIfSet("name", d.Name)
	a.fieldIfSet("method", d.Method)
	a.fieldIfSet("target", d.Target)
	a.fieldIfSet("key", d.Key)
	a.fieldIfSet("first key", d.FirstKey)
	if d.Lane != nil {
		a.field("lane", strconv.Itoa(int(*d.Lane)))
	}
	if d.RowID != nil {
		a.field("log id", number(*d.RowID))
	}
}

func (a *app) writeParkedResponse(r *operate.ParkedResponse) {
	if r == nil {
		return
	}
	a.field("response", fmt.Sprintf("status %s, %s bytes", numberOf(r.Status), numberOf(r.Bytes)))
	if r.Headers != nil {
		for line := range strings.Lines(*r.Headers) {
			a.field("response header", strings.TrimRight(line, "\r\n"))
		}
	}
	if r.Body != nil {
		a.field("response body", r.Body.String())
	}
}

func (a *app) fieldIfSet(name string, text *string) {
	if text != nil {
		a.field(name, *text)
	}
}

func numberOf(n *int32) string {
	if n == nil {
		return "-"
	}
	return number(int64(*n))
}
