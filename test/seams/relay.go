package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// sinkName is the sink of all histories.
const sinkName = "remote"

// backoff is how long a relay waits between two attempts. It is long, so that a relay makes one
// attempt, and the history passes the time until the next one.
const backoff = time.Hour

// relay is a relay of the sink.
func (w *world) relay(ctx context.Context) error {
	sink, err := httpsink.New(httpsink.Config{Name: sinkName, BaseURL: w.remote.server.URL, KeyWindow: memory, Timeout: w.patience / 4,
		AllowPrivate: true, Transport: &http.Transport{}, Breaker: httpsink.Breaker{Off: true}})
	if err != nil {
		return err
	}
	defer sink.Close()
	relay, err := outbox.NewRelay(w.pool, outbox.RelayConfig{Sinks: []outbox.Sink{sink}, PollInterval: 10 * time.Millisecond,
		Backoff: dedupe.Backoff{Min: backoff, Max: backoff}, DrainTimeout: w.patience / 4, Logger: w.logger()})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

// quietSQL reports whether a relay has nothing to do for now: each call is settled, waits for its
// time or for an operator, or for another call that does. A call under way is due when its relay's
// lease has ended, which is soon.
const quietSQL = `
select not exists (select from onlyonce.calls c where c.state = 'pending')
   and not exists (select from onlyonce.parked p
                    where p.kind = 'call' and p.settled_at is null
                      and (p.state = 'retrying'
                           and (p.next_attempt_at is null
                                or p.next_attempt_at < clock_timestamp() + interval '20 minutes')
                           or p.state = 'blocked' and not exists (select from onlyonce.parked f
                                where f.order_key = p.order_key
                                  and f.settled_at is null
                                  and (f.partition, f."offset") < (p.partition, p."offset"))))`

// dueSQL returns how long it takes until a call is due that is to be tried again; null: none is.
const dueSQL = `
select extract(epoch from min(p.next_attempt_at) - clock_timestamp())::float8 from onlyonce.parked p
 where p.kind = 'call' and p.settled_at is null and p.state = 'retrying'`

// send lets a relay make what is due, which comes to what ways say. If nothing is due, time passes
// until something is.
func (w *world) send(ways ...string) error {
	quiet, err := one[bool](w, quietSQL)
	if err != nil {
		return err
	}
	due, err := one[*float64](w, dueSQL)
	if err != nil {
		return err
	}
	if quiet && due == nil {
		return nil
	}
	if quiet && *due > 0 {
		if err := w.pass(time.Duration(*due*float64(time.Second)) + time.Minute); err != nil {
			return err
		}
	}
	w.remote.next(ways...)
	defer w.remote.next()
	if err := w.work("all calls that are due were made", w.is(quietSQL), w.relay); err != nil {
		return err
	}
	return w.checkTold()
}

// parkedCall is a call that waits for an operator.
type parkedCall struct {
	ID                   int64
	State, Reason, Error string
	Token                string
	// Open means that an operator reads that the call may have been applied.
	Open bool
}

const waitingSQL = `
select p.id,
       p.state,
       p.reason,
       coalesce(p.error, ''),
       convert_from(p.body, 'UTF8'),
       ` + parked.CallOpen + `
  from onlyonce.parked p
 where p.kind = 'call' and p.settled_at is null and p.state in ('waiting', 'reconcile') order by p.id`

func (w *world) waiting() ([]parkedCall, error) {
	return all(w, pgx.RowToStructByPos[parkedCall], waitingSQL)
}

// deliveredSQL lists the calls that count as delivered.
const deliveredSQL = `
select convert_from(l.body, 'UTF8')
  from onlyonce.calls c join onlyonce.outbox_log l on l.id = c.id where c.state = 'delivered' and c.erased_at is null`

// checkTold compares what an operator reads of calls with what the remote has applied. After a
// failover that lost commits, what is read may be older than that (docs/guarantees.md).
func (w *world) checkTold() error {
	if w.promoted {
		return nil
	}
	applied, err := w.remote.counts()
	if err != nil {
		return err
	}
	calls, err := w.waiting()
	if err != nil {
		return err
	}
	for _, c := range calls {
		if !c.Open && c.Reason == parked.Rejected && applied[c.Token] > 0 {
			w.breach("an operator is told that the remote will not apply %q (%s, %s: %s), and it has", c.Token, c.State, c.Reason, c.Error)
		}
	}
	delivered, err := all(w, pgx.RowTo[string], deliveredSQL)
	if err != nil {
		return err
	}
	for _, token := range delivered {
		if applied[token] == 0 {
			w.breach("%q counts as delivered, and was never applied", token)
		}
	}
	return nil
}

// operator is how the operators of a history decide about calls that the remote has rejected.
type operator struct {
	newKey  bool // under a new key, as docs/operations/calls.md says for remotes that keep their rejections
	discard bool
	waits   time.Duration // before that
}

func drawOperator(d *dice) operator {
	return operator{newKey: d.once(4), discard: d.once(8), waits: of(d, 0, 2*time.Hour, 48*time.Hour)}
}

// decide decides about each call that waits for an operator, as docs/operations/calls.md shows: an
// operator who is asked whether a call was applied looks at the remote.
func (w *world) decide(o operator) (decided int, err error) {
	calls, err := w.waiting()
	if err != nil || len(calls) == 0 {
		return 0, err
	}
	if o.waits > 0 {
		if err := w.pass(o.waits); err != nil {
			return 0, err
		}
	}
	for _, c := range calls {
		if err := w.decideOne(o, &c); err != nil {
			return decided, err
		}
		decided++
	}
	return decided, nil
}

func (w *world) decideOne(o operator, c *parkedCall) error {
	applied, err := w.remote.counts()
	if err != nil {
		return err
	}
	truth := ops.ParkedInput{VerifiedApplied: applied[c.Token] > 0, VerifiedNotApplied: applied[c.Token] == 0}
	switch {
	case c.State == "reconcile":
		err = w.redrive(c.ID, truth)
	case w.promoted && applied[c.Token] > 0: // the failover has lost that it was redriven (docs/guarantees.md)
		err = w.discard(c.ID, "", true)
	case o.discard:
		err = w.discard(c.ID, c.Token, true)
	default:
		err = w.redrive(c.ID, ops.ParkedInput{NewKey: o.newKey})
	}
	if errors.Is(err, ops.ErrRefused) { // the command says what is needed
		err = w.redrive(c.ID, truth)
	}
	if errors.Is(err, ops.ErrRefused) { // of a rejected call nothing can be verified
		err = w.redrive(c.ID, ops.ParkedInput{})
	}
	if errors.Is(err, ops.ErrRefused) {
		w.breach("%q waits for an operator (%s, %s), and each decision is refused: %v", c.Token, c.State, c.Reason, err)
		return errStands
	}
	return err
}

// redrive is the command parked redrive -id.
func (w *world) redrive(id int64, how ops.ParkedInput) error {
	how.ID = id
	_, err := ops.Redrive(w.ctx, w.pool, ops.By{Reason: "INC-8"}, how)
	w.say("operator: redrive -id %d%s: %v", id, flags(how), err)
	return err
}

func flags(how ops.ParkedInput) (s string) {
	for _, f := range []struct {
		set  bool
		name string
	}{{how.NewKey, "new-key"}, {how.VerifiedApplied, "verified-applied"}, {how.VerifiedNotApplied, "verified-not-applied"}} {
		if f.set {
			s += " -" + f.name
		}
	}
	return s
}

// discard is the command parked discard -id.
func (w *world) discard(id int64, token string, call bool) error {
	_, err := ops.Discard(w.ctx, w.pool, ops.By{Reason: "order was cancelled"}, ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: id}})
	w.say("operator: discard -id %d: %v", id, err)
	if err == nil {
		w.promises.giveUp(token, call)
	}
	return err
}

// openSQL reports whether a call is not settled.
const openSQL = `
select exists (select from onlyonce.calls c where c.state not in ('delivered', 'discarded'))
    or exists (select from onlyonce.parked p where p.kind = 'call' and p.settled_at is null)`

// settleCalls lets relays and operators work until each call is settled. The remote is well by now.
func (w *world) settleCalls(o operator) error {
	w.remote.setRejects(false)
	for range 12 {
		if err := w.send(); err != nil {
			return err
		}
		if _, err := w.decide(o); err != nil {
			return err
		}
		open, err := one[bool](w, openSQL)
		if err != nil || !open {
			return err
		}
		o.newKey = o.newKey || w.remote.keepsRejections // what is rejected again needs one
	}
	left, err := all(
		w,
		pgx.RowTo[string],
		`select format('%s %s %s', c.id, c.state, c.error) from onlyonce.calls c where c.state not in ('delivered', 'discarded')`,
	)
	w.breach("calls are never settled: %v", left)
	return errors.Join(err, errStands)
}
