package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// outbox looks for calls that nobody sends.
func (d *doctor) outbox(ctx context.Context, tx pgx.Tx) error {
	const check = "outbox"
	r, err := readOutbox(ctx, tx, nil, d.ask.limit)
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
		pending := s.Pending != nil && *s.Pending > 0 || s.Old > 0
		switch {
		case s.PausedAt != nil:
			p := sinkRow{s.Sink, s.PausedAt, s.PausedBy, s.PauseReason}
			d.add(levelInfo, check, "onlyonce outbox resume -sink "+shellQuote(s.Sink), "sink %s is paused %s", s.Sink, p.paused())
		case !s.Listed && pending:
			d.add(levelWarn, check, "list the sink in a relay, or discard its calls", "no relay lists sink %s, which has calls to send: they wait, and their segments of the log are kept", s.Sink)
		case held == 0 && pending:
			d.add(levelWarn, check, "start a relay that lists it", "no relay holds sink %s, which has calls to send, the oldest %s old", s.Sink, ageOf(s.Age))
		}
	}
	if !r.Counted {
		d.add(levelInfo, check, "", "how many calls are pending is not known: counting took over %s", d.ask.limit)
	}
	d.unless(check, "%d sinks; relays are at all that have something to send", len(r.Sinks))
	return nil
}

// events looks for streams that nobody reads: their segments are kept.
func (d *doctor) events(ctx context.Context, tx pgx.Tx) error {
	const check = "events"
	streams, err := collect[streamRow](ctx, tx, streamsSQL, nil)
	if err != nil {
		return err
	}
	for _, s := range streams {
		if s.Scope == nil && s.Kept > 0 {
			d.add(levelWarn, check, "start a consumer of it", "nobody has begun to read stream %s, which has %d events: they are kept, and all that was appended with them", s.Topic, s.Kept)
		}
	}
	d.unless(check, "%d streams; each that has events has a reader", len(streams))
	return nil
}

// operators looks for what waits for one.
func (d *doctor) operators(ctx context.Context, tx pgx.Tx) error {
	parked, err := collect[parkedCount](ctx, tx, parkedCountsSQL)
	if err != nil {
		return err
	}
	for _, p := range parked {
		if p.State == "waiting" || p.State == "reconcile" {
			d.add(levelWarn, "parked", fmt.Sprintf("onlyonce parked list -kind %s -state %s; then redrive or discard them", p.Kind, p.State),
				"%d of kind %s wait for an operator (%s, %s), the oldest since %s", p.Count, p.Kind, p.State, p.Reason, instant(p.Oldest))
		}
	}
	d.unless("parked", "nothing that is parked waits for an operator")

	requests, err := collect[requestRow](ctx, tx, requestsSQL, false, nil, nil, mostLimit, nil)
	if err != nil {
		return err
	}
	aside := 0
	for _, r := range requests {
		if r.State == "reconcile" {
			aside++
		}
	}
	if aside > 0 {
		d.add(levelWarn, "requests", "onlyonce request list; then onlyonce request resolve", "%d HTTP requests have a step of unknown outcome", aside)
	}
	d.unless("requests", "no HTTP request has a step of unknown outcome that is too old to ask about")

	cursors, err := readCursors(ctx, tx, cursorFilter{})
	if err != nil {
		return err
	}
	for i := range cursors {
		if c := &cursors[i]; c.Paused != nil && c.RetiredAt == nil {
			d.add(levelInfo, "pauses", fmt.Sprintf("onlyonce cursor resume -scope %s", shellQuote(c.Scope)), "scope %s, topic %s, partition %d is paused: %s", c.Scope, c.Topic, c.Partition, *c.Paused)
		}
	}
	d.unless("pauses", "%d cursors, none of which is paused", len(cursors))
	return nil
}
