package ops

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// heldSQL lists the pauses, and how many cursors in use each one holds. Reads onlyonce.pauses,
// which is small, and cursors by the unique index on (scope, topic, partition).
const heldSQL = `
select u.scope,
       u.topic,
       u.partition,
       u.paused_at,
       u.actor,
       u.reason,
       (select count(*) from onlyonce.cursors c
         where c.scope = u.scope
           and u.topic in ('', c.topic)
           and u.partition in (-1, c.partition)
           and c.retired_at is null) as cursors
  from onlyonce.pauses u order by 1, 2, 3`

type heldRow struct {
	Pause
	Cursors int64
}

// outbox looks for calls that no relay sends.
func (d *examiner) outbox(ctx context.Context, tx pgx.Tx) error {
	const check = "outbox"
	r, err := reports.ReadOutbox(ctx, tx, reports.OutboxQuestion{CountLimit: d.limit()})
	if err != nil {
		return err
	}
	for i := range r.Sinks {
		s := &r.Sinks[i]
		held := 0
		for _, l := range s.Lanes {
			if l.Held {
				held++
			}
		}
		pending := s.Pending != nil && *s.Pending > 0
		switch {
		case s.PausedAt != nil:
			d.add(
				levelInfo,
				check,
				"onlyonce outbox resume -sink "+show.Quote(s.Sink)+" -reason WHY",
				"sink %s is paused since %s by %s: %s",
				s.Sink,
				show.Instant(*s.PausedAt),
				show.OrDash(s.PausedBy),
				show.OneLine(show.OrDash(s.PauseReason)),
			)
		case !s.Listed && pending:
			d.add(levelWarn, check, "list the sink in a relay, or discard its calls",
				"no relay lists sink %s, which has calls to send: they wait, and their segments of the log are kept",
				s.Sink)
		case held == 0 && pending:
			d.add(levelWarn, check, "start a relay that lists it",
				"no relay holds sink %s, which has calls to send, the oldest %s old",
				s.Sink,
				show.Seconds(*s.Age))
		case s.Unheld != nil:
			d.add(
				levelWarn,
				check,
				lanesRemedy,
				"sink %s: %v; relays hold %d of %d lanes",
				s.Sink,
				s.Unheld,
				held,
				len(s.Lanes),
			)
		}
	}
	for i := range r.Sinks {
		for j := range r.Sinks[i].Rates {
			rate := &r.Sinks[i].Rates[j]
			if rate.Waiting > 0 || rate.HeldUntil != nil {
				d.add(levelInfo, check, "onlyonce outbox status -sink "+show.Quote(rate.Sink),
					"calls of sink %s%s wait for their rate: %s",
					rate.Sink,
					rate.Of(),
					show.OneLine(rate.String()))
			}
		}
	}
	if !r.Counted {
		d.add(levelInfo, check, "", "how many calls are pending is not known: counting took over %s", d.limit())
	}
	d.unless(check, "%d sinks; relays hold all that have calls to send", len(r.Sinks))
	return nil
}

// events looks for streams that no consumer reads: their segments are kept.
func (d *examiner) events(ctx context.Context, tx pgx.Tx) error {
	const check = "events"
	streams, err := reports.Collect[reports.Stream](ctx, tx, reports.StreamsSQL, nil)
	if err != nil {
		return err
	}
	for _, s := range streams {
		if s.Scope == nil && s.Kept > 0 {
			d.add(levelWarn, check, "start a consumer of it",
				"no consumer has begun to read stream %s, which has %d events: they are kept, and so is "+
					"everything in their segments",
				s.Topic,
				s.Kept)
		}
	}
	d.unless(check, "%d streams; each that has events has a reader", len(streams))
	return nil
}

// faults looks for what keeps consumers from their work now.
func (d *examiner) faults(ctx context.Context, tx pgx.Tx) error {
	const check = "faults"
	var r StatusReport
	if err := r.readProcesses(ctx, tx); err != nil {
		return err
	}
	for _, n := range needsOf(r.Faults) {
		d.add(levelWarn, check, n.Remedy, "%s", n.Text)
	}
	d.unless(check, "no living process reports a fault")
	return nil
}

// operators looks for work that waits for an operator.
func (d *examiner) operators(ctx context.Context, tx pgx.Tx) error {
	for _, look := range []func(context.Context, pgx.Tx) error{
		d.parked, d.openRequests, d.fingerprintKeys, d.pauses, d.places,
	} {
		if err := look(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

func (d *examiner) parked(ctx context.Context, tx pgx.Tx) error {
	parked, err := reports.CountParked(ctx, tx, reports.ParkedFilter{}, false, 0)
	if err != nil {
		return err
	}
	for i := range parked.Groups {
		if p := &parked.Groups[i]; p.NeedsOperator() {
			d.add(
				levelWarn,
				"parked",
				decideAbout(p),
				"%d of kind %s wait for an operator (scope %s, %s, %s), the oldest since %s",
				p.Count,
				p.Kind,
				p.Scope,
				p.State,
				p.Reason,
				show.Instant(p.Oldest),
			)
		}
	}
	if !parked.Counted {
		d.add(levelWarn, "parked",
			"onlyonce parked list", "what is parked was not counted: that took over %v", reports.CountLimit)
	}
	d.unless("parked", "nothing that is parked waits for an operator")
	return nil
}

// openRequests looks for HTTP requests whose steps have an unknown outcome, or that nobody
// completes.
func (d *examiner) openRequests(ctx context.Context, tx pgx.Tx) error {
	requests, _, err := reports.Requests[Request](ctx, tx, reports.RequestFilter{Limit: reports.MostLimit})
	if err != nil {
		return err
	}
	aside := 0
	abandoned := 0
	for _, r := range requests {
		switch r.State {
		case "reconcile":
			aside++
		case "abandoned":
			abandoned++
		}
	}
	if aside > 0 {
		d.add(levelWarn, "requests",
			"onlyonce request list; then ask the provider, and onlyonce request resolve -id ID -step NAME "+
				"-applied -result TEXT -reason WHY, or with -not-applied",
			"%d HTTP requests have a step of unknown outcome",
			aside)
	}
	if abandoned > 0 {
		d.add(
			levelWarn,
			"requests",
			"onlyonce request list; then have the client send the request again, or ask the provider, and "+
				"onlyonce request close -id ID -reason WHY",
			"%d HTTP requests were never completed although their steps had their effect, and no client has come back",
			abandoned,
		)
	}
	d.unless("requests",
		"no HTTP request has a step of unknown outcome that is too old to ask about, and none was abandoned "+
			"behind a step")
	return nil
}

func (d *examiner) pauses(ctx context.Context, tx pgx.Tx) error {
	pauses, err := reports.Collect[heldRow](ctx, tx, heldSQL)
	if err != nil {
		return err
	}
	for i := range pauses {
		p := &pauses[i]
		d.add(levelInfo, "pauses",
			p.change(),
			"%s is paused since %s by %s, %d cursors in use: %s",
			p.String(),
			show.Instant(p.PausedAt),
			p.Actor,
			p.Cursors,
			show.OneLine(p.Reason))
	}
	d.unless("pauses", "no scope and no partition is paused")
	return nil
}

// fingerprintKeys looks for processes of the HTTP layer that have another secret than those before.
func (d *examiner) fingerprintKeys(ctx context.Context, tx pgx.Tx) error {
	const check = "fingerprint-keys"
	found, err := secretFaults(ctx, tx)
	if err != nil {
		return err
	}
	for _, f := range found {
		d.add(levelFail, check, faultRemedies[f.Kind], "%s", f.Text)
	}
	d.unless(check, "no process of the HTTP layer was refused because of its secrets")
	return nil
}

// stalledPlacesSQL lists places that have been between two databases for an hour. Out: place,
// state, where it goes, since when. Reads onlyonce.places.
const stalledPlacesSQL = `
select place,
       state,
       moves,
       coalesce(other, '') as other,
       changed_at
  from onlyonce.places
 where state in ('claimed', 'leaving') and changed_at < clock_timestamp() - interval '1 hour'
 order by changed_at limit 20`

// places looks for tenants whose move was begun and did not end.
func (d *examiner) places(ctx context.Context, tx pgx.Tx) error {
	const check = "places"
	stalled, err := reports.Collect[reports.Place](ctx, tx, stalledPlacesSQL)
	if err != nil {
		return err
	}
	for i := range stalled {
		h := &stalled[i]
		if h.State == "claimed" {
			d.add(
				levelInfo,
				check,
				"onlyonce place list -place "+show.Quote(h.Place)+", in each database",
				"%s was claimed at %s and not confirmed: a process died meanwhile, or another database has "+
					"it; its next request decides",
				show.OneLine(h.Place),
				show.Instant(h.ChangedAt),
			)
			continue
		}
		d.add(
			levelWarn,
			check,
			fmt.Sprintf("onlyonce place leave -place %s -to %s -reason WHY; or keep it: onlyonce place "+
				"adopt -place %[1]s -reason WHY", show.Quote(h.Place), show.Quote(h.Other)),
			"%s has been leaving for %s since %s: its requests get 503",
			show.OneLine(h.Place),
			show.OneLine(h.Other),
			show.Instant(h.ChangedAt),
		)
	}
	d.unless(check, "no tenant is between two databases")
	return nil
}

// decideAbout returns the command for rows that wait for an operator.
func decideAbout(c *reports.ParkedCount) string {
	list := fmt.Sprintf("onlyonce parked list -kind %s -state %s -scope %s; then ",
		c.Kind, c.State, show.Quote(c.Scope))
	if c.State == "reconcile" {
		return list + "ask the remote, and onlyonce parked redrive -id ID -verified-applied -reason WHY, or " +
			"with -verified-not-applied"
	}
	return list + "onlyonce parked redrive -id ID -reason WHY, or onlyonce parked discard -id ID -reason WHY"
}

// change is the command that ends the pause: of the whole scope, or of the partition by its name.
func (p *heldRow) change() string {
	s := "onlyonce cursor resume -scope " + show.Quote(p.Scope)
	if p.Topic != "" {
		s += fmt.Sprintf(" -topic %s -partition %d", show.Quote(p.Topic), p.Partition)
	}
	return s + " -reason WHY"
}
