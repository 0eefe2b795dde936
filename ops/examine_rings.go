package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
)

// endpointsSQL lists the endpoints that have ids of webhooks, with the age of each one's oldest. By
// the index webhook_ids_age, two looks for each.
const endpointsSQL = idsOfEndpoints + `
select o.endpoint,
       (select extract(epoch from clock_timestamp() - w.seen_at)::float8
          from onlyonce.webhook_ids w where w.endpoint = o.endpoint order by w.seen_at limit 1) as oldest
  from of_ids o where o.endpoint is not null order by 1`

// rotatorSQL counts the processes that hold the lease to rotate a ring. In: name of its lease. By
// the unique index.
const rotatorSQL = `
select count(*)
  from onlyonce.leases
 where name = $1 and nonce is not null and until > clock_timestamp() and until <= clock_timestamp() + interval '1 hour'`

// leastWebhooks is what package webhook asks of a receiver at least (W10).
const leastWebhooks = 24 * time.Hour

// late is how much later than due the next segment may be opened: rotators check every 10 s, and
// wait for transactions.
const late = time.Minute

// memory compares how long keys are remembered with how long copies may arrive (K6, W10).
func (d *examiner) memory(ctx context.Context, tx pgx.Tx) error {
	if d.ask.CopiesWithin == nil {
		d.add(levelWarn, "copies",
			"onlyonce doctor -copies-within D",
			"-copies-within was not given, so the horizon of consumer_keys was not compared with how long "+
				"producers retry; a consumer with Config.CopiesWithin compares it, as long as it runs")
	} else if err := d.remembers(ctx, tx, "copies", "consumer_keys", *d.ask.CopiesWithin, "producers"); err != nil {
		return err
	} else if err := d.otherClasses(ctx, tx, "copies", *d.ask.CopiesWithin, "producers"); err != nil {
		return err
	}
	if err := d.relayRetries(ctx, tx); err != nil {
		return err
	}
	return d.webhookCopies(ctx, tx)
}

// remembers checks that a ring remembers keys for as long as copies of their messages may come.
func (d *examiner) remembers(
	ctx context.Context,
	tx pgx.Tx,
	check, ring string,
	copies time.Duration,
	whose string,
) error {
	err := inbox.CheckHorizon(ctx, tx, inbox.Need{Ring: ring, Copies: copies})
	switch {
	case errors.Is(err, inbox.ErrHorizon):
		d.add(
			levelFail,
			check,
			fmt.Sprintf("onlyonce inbox horizon -ring %s -horizon D -reason WHY, with D above %s",
				ring, show.Span(copies)),
			"%s: copies may come for %s, and keys of %s may be forgotten before that: a later one would be "+
				"applied again",
			whose,
			show.Span(copies),
			ring,
		)
	case err != nil:
		return err
	default:
		d.ok(check, "%s: keys of %s are remembered for at least %s", whose, ring, show.Span(copies))
	}
	return nil
}

// classScopesSQL lists the classes that scopes have chosen, with those scopes. In: the class of
// scopes that choose nothing.
const classScopesSQL = `
select class, string_agg(scope, ', ' order by scope) as scopes
  from onlyonce.scopes where class <> $1 group by class order by class`

// otherClasses reports the scopes that have chosen a class whose ring remembers keys for less than
// that. It is no fault: copies of their messages may come sooner, and only their consumers know
// (Config.CopiesWithin).
func (d *examiner) otherClasses(
	ctx context.Context,
	tx pgx.Tx,
	check string,
	copies time.Duration,
	whose string,
) error {
	type class struct{ Class, Scopes string }
	chosen, err := reports.Collect[class](ctx, tx, classScopesSQL, ring.Standard)
	if err != nil {
		return err
	}
	for _, c := range chosen {
		which := ring.ConsumerClass(c.Class).Name
		err := inbox.CheckHorizon(ctx, tx, inbox.Need{Ring: which, Copies: copies})
		if errors.Is(err, inbox.ErrHorizon) {
			d.add(
				levelInfo,
				check,
				"set Config.CopiesWithin in the consumers of these scopes; if their copies may come that late, "+
					"change their class: onlyonce inbox class -scope S -class long -reason WHY",
				"%s: copies may come for %s, and %s may forget keys before that, of the scopes that have "+
					"chosen class %s: %s",
				whose,
				show.Span(copies),
				which,
				c.Class,
				c.Scopes,
			)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// relayRetries checks how long relays go on with a call: as declared, and by the oldest parked one.
func (d *examiner) relayRetries(ctx context.Context, tx pgx.Tx) error {
	if d.ask.RelayRetries != nil {
		if err := d.remembers(ctx, tx, "relay-retries", "consumer_keys", *d.ask.RelayRetries, "relays"); err != nil {
			return err
		}
		if err := d.otherClasses(ctx, tx, "relay-retries", *d.ask.RelayRetries, "relays"); err != nil {
			return err
		}
	}
	rows, err := d.readInUse(ctx, tx)
	if err != nil {
		return err
	}
	if c := rows; c.TriedID != nil && c.TriedSink != nil {
		age := show.Seconds(*c.TriedAge)
		if err := inbox.CheckHorizon(ctx, tx, inbox.Need{Ring: "consumer_keys", Copies: age}); errors.Is(
			err,
			inbox.ErrHorizon,
		) {
			d.add(
				levelWarn,
				"relay-retries",
				fmt.Sprintf("if the sink's topic is consumed here, find out whether it was applied before "+
					"you redrive it: onlyonce parked show -id %d", *c.TriedID),
				"parked call %d to sink %s was first tried %s ago, longer than consumer_keys remembers at "+
					"least: a message that it produces now is a new one",
				*c.TriedID,
				*c.TriedSink,
				age,
			)
		} else if err != nil {
			return err
		}
		if err := d.otherClasses(ctx, tx, "relay-retries",
			age, fmt.Sprintf("parked call %d to sink %s", *c.TriedID, *c.TriedSink)); err != nil {
			return err
		}
	}
	d.unless("relay-retries",
		"no call was tried for longer than consumer_keys remembers at least; how long relays retry was not "+
			"given (-relay-retries)")
	return nil
}

// webhookCopies checks how long senders of webhooks go on: as declared, and by the ids of each
// endpoint.
func (d *examiner) webhookCopies(ctx context.Context, tx pgx.Tx) error {
	type endpoint struct {
		Endpoint string
		Oldest   *float64
	}
	endpoints, err := reports.Collect[endpoint](ctx, tx, endpointsSQL)
	if err != nil {
		return err
	}
	want := leastWebhooks
	whose := "webhooks (a day at least; -webhook-retention says more)"
	if d.ask.WebhookRetention != nil {
		want = *d.ask.WebhookRetention
		whose = "webhooks"
	}
	if len(endpoints) == 0 && d.ask.WebhookRetention == nil {
		d.ok("webhooks", "no endpoint has received an event whose id is remembered")
		return nil
	}
	if err := d.remembers(ctx, tx, "webhooks", "standard_keys", want, whose); err != nil {
		return err
	}
	for _, e := range endpoints {
		row, err := readOtherClass(ctx, tx, names.WebhookScope(e.Endpoint))
		if err != nil {
			return err
		}
		which := ring.StandardClass(row.Class).Name
		if row.Class != ring.Standard { // which was compared above
			if err := d.remembers(ctx, tx, "webhooks", which, leastWebhooks, "endpoint "+e.Endpoint); err != nil {
				return err
			}
		}
		if e.Oldest == nil {
			continue
		}
		// Ids are deleted when the receiver's Retention has passed, so the oldest is about as old
		// as that.
		if err := inbox.CheckHorizon(ctx, tx, inbox.Need{
			Ring:   which,
			Copies: show.Seconds(*e.Oldest) - late,
		}); errors.Is(
			err,
			inbox.ErrHorizon,
		) {
			d.add(
				levelWarn,
				"webhooks",
				"set the horizon of "+which+" to the endpoint's webhook.Config.Retention at least; or run "+
					"Endpoint.Upkeep under a login with onlyonce_rotator: it deletes them",
				"endpoint %s has ids that are %s old, older than %s remembers at least: its Retention is "+
					"longer, or nothing deletes them",
				e.Endpoint,
				show.Seconds(*e.Oldest),
				which,
			)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// rings checks that the rings of keys rotate, and can.
func (d *examiner) rings(ctx context.Context, tx pgx.Tx) error {
	rings, err := reports.KeyRings(ctx, tx)
	if err != nil {
		return err
	}
	for i, which := range ring.Keys() {
		if which.Rare && rings[i].Unused() {
			continue
		}
		var held int
		if err := tx.QueryRow(ctx, rotatorSQL, which.Lease().String()).Scan(&held); err != nil {
			return err
		}
		who, err := ring.Rotators(ctx, tx, which)
		if err != nil {
			return err
		}
		d.ring(&rings[i], held > 0, who)
	}
	frontiers, err := reports.Frontiers(ctx, tx)
	if err != nil {
		return err
	}
	d.frontiers(rings, frontiers)
	return nil
}

// ring judges one ring of keys. A ring opens a segment each seventh of its horizon. A segment is
// kept for the horizon after its closing, so up to 8 are closed and one is current.
func (d *examiner) ring(k *reports.KeyRing, held bool, who []string) {
	check := k.Ring
	for i := range k.Segments {
		s := &k.Segments[i]
		opensLater := s.Opened != nil && *s.Opened < -60
		closesLater := s.Closed != nil && *s.Closed < -60
		if opensLater || closesLater {
			d.add(
				levelFail,
				check,
				"correct the clock of the database's server; rotation continues by itself when the clock has "+
					"caught up",
				"%s was opened or closed in the future: the clock went back, and rotation is halted",
				s.Table,
			)
		}
	}
	if k.Horizon == nil {
		d.add(
			levelInfo,
			check,
			fmt.Sprintf("onlyonce inbox horizon -ring %s -horizon D -reason WHY, if that is not meant", k.Ring),
			"keys are remembered for ever: nothing is rotated, and the tables grow",
		)
		return
	}
	seventh := show.Seconds(*k.Horizon / 7)
	slots := len(k.Segments)
	if slots < reports.MostClosed+1 {
		d.add(levelFail, check, "set onlyonce.rings.slots back to what the migration says",
			"the ring has %d tables, and a horizon takes %d", slots, reports.MostClosed+1)
	}
	if len(who) == 0 {
		d.add(
			levelFail,
			check,
			"grant onlyonce_rotator to the login of a consumer, relay or webhook "+
				"receiver, or of a job that runs onlyonce inbox rotate (docs/roles.sql)",
			"no login has the rights to rotate it: nothing is forgotten, and the tables grow",
		)
	}
	d.rotation(k, held, who)
	free := 0
	for i := range k.Segments {
		if k.Segments[i].State == "free" {
			free++
		}
	}
	rotated := "no process rotates it now, and nothing is due"
	if held {
		rotated = "a process rotates it"
	}
	d.unless(check, "remembered %s; a new segment each %s; %d tables hold that, even for cursors that are %s "+
		"behind; %d free; %s", show.Remembered(k.Horizon), seventh, slots, seventh, free, rotated)
}

// rotation says why a ring's current segment is older than a seventh of the horizon, if it is.
func (d *examiner) rotation(k *reports.KeyRing, held bool, who []string) {
	segments := map[string]*reports.KeySegment{} // one of each state
	for i := range k.Segments {
		segments[k.Segments[i].State] = &k.Segments[i]
	}
	current := segments["current"]
	if current == nil || current.Bytes == 0 || current.Opened == nil {
		return
	}
	age := show.Seconds(*current.Opened)
	seventh := show.Seconds(*k.Horizon / 7)
	if age <= seventh+late {
		return
	}
	switch {
	case segments["free"] == nil:
		d.add(
			levelWarn,
			k.Ring,
			"see the finding frontiers; a horizon that was made longer lets the "+
				"ring fill for a while",
			"no segment is free, and the current one grows: it is %s old, and should be %s at most",
			age,
			seventh,
		)
	case !held && len(who) > 0:
		d.add(
			levelFail,
			k.Ring,
			"start a consumer, a relay or an Endpoint.Upkeep under one of these "+
				"logins and read its log, or run onlyonce inbox rotate",
			"no process rotates it: the current segment is %s old, should be %s at most, and no process "+
				"holds the lease, although %s may",
			age,
			seventh,
			strings.Join(who, ", "),
		)
	case segments["draining"] != nil:
		d.add(levelWarn, k.Ring, "see the finding transactions: end what has been open for so long",
			"the current segment is %s old, should be %s at most, and the one before it drains: "+
				"transactions that may write into it have not ended",
			age,
			seventh)
	case held:
		d.add(levelWarn, k.Ring, "read the log of the consumers, relays and receivers that rotate",
			"the current segment is %s old and should be %s at most, although a process holds the lease",
			age,
			seventh)
	}
}

// frontiers judges the cursors that hold back what the consumers' rings forget. If a frontier is
// more than a seventh of the horizon in the past, the tables do not suffice, and the current
// segment grows. A frontier in the future was recorded while the clock was ahead, and no rotator
// has made it void yet (K6).
func (d *examiner) frontiers(rings []reports.KeyRing, all []reports.Frontier) {
	const check = "frontiers"
	forgets := rings[0].Horizon != nil
	for i := range all {
		f := &all[i]
		horizon := rings[slices.IndexFunc(rings, func(k reports.KeyRing) bool { return k.Ring == f.Ring })].Horizon
		forgets = forgets || horizon != nil
		where := fmt.Sprintf("scope %s, topic %s, partition %d", f.Scope, f.Topic, f.Partition)
		retire := fmt.Sprintf("start its consumer, or take it out of use: onlyonce cursor retire -scope %s "+
			"-topic %s -partition %d -reason WHY", show.Quote(f.Scope), show.Quote(f.Topic), f.Partition)
		switch {
		case f.Ahead():
			d.add(
				levelFail,
				check,
				"correct the clock of the database's server; then a process that rotates voids the record "+
					"within seconds, and the partition's owner writes another one",
				"%s is recorded as handled up to %s ahead of the database's clock, which went back: until "+
					"that is corrected, %s may forget keys whose copies are yet to come",
				where,
				show.Seconds(-*f.Behind),
				f.Ring,
			)
		case horizon == nil:
		case f.Behind == nil:
			d.add(
				levelWarn,
				check,
				retire,
				"%s has not reported its progress: until it does, %s forgets nothing",
				where,
				f.Ring,
			)
		case *f.Behind > *horizon/7:
			d.add(
				levelWarn,
				check,
				retire,
				"%s is %s behind: %s keeps keys for that much longer, and has tables for %s",
				where,
				show.Seconds(*f.Behind),
				f.Ring,
				show.Seconds(*horizon/7),
			)
		}
	}
	if !forgets {
		d.unless(check, "nothing is forgotten, so no cursor holds that back")
	}
	d.unless(check, "no cursor holds back what consumer_keys forgets for longer than it has tables for")
}
