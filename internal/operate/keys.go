package operate

import (
	"context"
	"errors"
	"time"

	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// until is a horizon, or forever.
type until struct {
	of      time.Duration
	forever bool
}

// Set parses a duration, or "forever".
func (u *until) Set(text string) (err error) {
	u.of = 0
	u.forever = text == "forever"
	if u.forever {
		return nil
	}
	if u.of, err = ParseDays(text); err == nil && u.of < time.Minute {
		err = errors.New("must be at least a minute")
	}
	return err
}

func (u *until) String() string {
	if u.forever {
		return show.Remembered(nil)
	}
	return show.Remembered(new(u.of.Seconds()))
}

type horizonInput struct {
	ops.HorizonInput
	Until until
}

func horizonFields(in *horizonInput) []Field {
	return []Field{
		At(&in.Ring, "ring", "RING",
			"the RING: consumer_keys or standard_keys, or consumer_short_keys and so on, as "+
				"onlyonce inbox status lists them").
			OneOf("consumer_keys",
				"consumer_short_keys",
				"consumer_long_keys",
				"standard_keys",
				"standard_short_keys",
				"standard_long_keys").needed(),
		At(&in.Until, "horizon", "D", "a duration D (7d), or forever").needed(),
	}
}

func horizon() *Decision {
	return entry[horizonInput, ops.HorizonChange]{
		Decision: Decision{
			Name:    "inbox horizon",
			Summary: "set how long claimed keys are remembered at least",
			Help: `
Sets how long a claimed key is remembered at least, counted from the closing of
its segment. For consumer_keys, consumer_short_keys and consumer_long_keys
(Kafka's messages, by the class of their scope) the time of the log counts, so
that no key is forgotten while a consumer is down or behind. For standard_keys,
standard_short_keys and standard_long_keys (all other keys, by the class of
their scope: webhooks, dedupe.Claim, onlyonce.claim, calls that are enqueued
outside of a consumer) the database's clock counts. Answers to HTTP requests are
in no ring: they live by Route.TTL. With "forever" no key is forgotten, and no
segment rotated.

A copy that arrives later than that is a new message, and is applied again. So the horizon must be
longer than the longest time for which a producer, a mirror or an outbox relay retries, and than
what webhook providers do. A shorter one takes effect when a rotator next looks, and forgotten keys
do not come back.

Example:
  onlyonce inbox horizon -ring consumer_keys -horizon 7d -reason "producers give up after 2 days, OPS-12"`,
			Danger: true,
			Waits:  "waiting for a rotator",
		},
		fields: horizonFields,
		shown:  func(in *horizonInput) **ops.HorizonChange { return &in.Shown },
		do: func(ctx context.Context, db ops.DB, by ops.By, in horizonInput) (*ops.HorizonChange, error) {
			in.Horizon = in.Until.of
			in.Forever = in.Until.forever
			return ops.SetHorizon(ctx, db, by, in.HorizonInput)
		},
		would: func(in *horizonInput, d *ops.HorizonChange) (s Said) {
			s.say("Keys of ring %s were remembered %s, and are from then on %s.",
				d.Ring, show.Remembered(d.Was), in.Until.String())
			return s
		},
	}.decision()
}

// kept is a retention: 0, a duration, or forever.
type kept struct{ until }

// Set parses a duration, "0" or "forever".
func (k *kept) Set(text string) error {
	if text == "0" {
		k.until = until{}
		return nil
	}
	return k.until.Set(text)
}

// Kept says how long rows are kept; nil: for ever.
func Kept(keep *float64) string {
	switch {
	case keep == nil:
		return "for ever"
	case *keep == 0:
		return "not at all"
	}
	return "for " + show.Span(show.Seconds(*keep))
}

type retentionInput struct {
	ops.RetentionInput
	How kept
}

func (in *retentionInput) input() ops.RetentionInput {
	r := in.RetentionInput
	r.Keep = in.How.of
	r.Forever = in.How.forever
	return r
}

func retentionFields(in *retentionInput) []Field {
	return []Field{
		At(&in.Of, "of", "KIND",
			"the KIND of rows: parked (settled messages and events), bodies (what settled rows "+
				"hold), audit or webhook_objects").
			OneOf("parked", "bodies", "audit", "webhook_objects").needed(),
		At(&in.How, "keep", "D", "a duration D (30d), 0 (of bodies), or forever").needed(),
	}
}

func retention() *Decision {
	return entry[retentionInput, ops.RetentionChange]{
		Decision: Decision{
			Name:    "retention",
			Summary: "set how long rows that nothing needs are kept",
			Help: `
Sets how long rows that nothing needs any more are kept. Processes whose role has the rights of
onlyonce_rotator delete them within minutes after that, in portions. -of is:

  parked           messages and events that were parked and are settled (30d in a new database).
                   Settled calls go by their sink's Retention, which is the relay's.
  bodies           what settled rows hold: body, headers, error, and a remote's answer. "forever"
                   keeps it as long as the row, as in a new database; 0 erases it when a row is
                   settled. Rows that are settled already keep theirs: see "onlyonce parked erase".
  audit            audit rows (400d)
  webhook_objects  the newest version of each object, if handlers compare events by webhook.InOrder
                   (180d). An object is kept for longer while an older event may still be handled.
                   At least 30d, and twice the longest horizon of an endpoint.

A copy of a message whose row is gone is a duplicate for as long as its key is remembered ("onlyonce inbox horizon").

Example:
  onlyonce retention -of parked -keep 7d -reason "data protection, DPO-3"
  onlyonce retention -of bodies -keep 0 -reason "data protection, DPO-3"`,
			Danger: true,
			Waits:  "waiting for another change of the retention",
		},
		fields: retentionFields,
		shown:  func(in *retentionInput) **ops.RetentionChange { return &in.Shown },
		do: func(ctx context.Context, db ops.DB, by ops.By, in retentionInput) (*ops.RetentionChange, error) {
			return ops.SetRetention(ctx, db, by, in.input())
		},
		would: func(in *retentionInput, d *ops.RetentionChange) (s Said) {
			now := in.input()
			var keep *float64
			if !now.Forever {
				keep = new(now.Keep.Seconds())
			}
			s.say("%s: was kept %s, and is from then on kept %s.", d.Kind, Kept(d.Was), Kept(keep))
			return s
		},
	}.decision()
}

func classFields(in *ops.ClassInput) []Field {
	return []Field{
		At(&in.Scope, "scope", "S",
			"the scope S; of a webhook endpoint E it is webhook/E, of a queue Q queue/Q").needed(),
		At(&in.Class, "class", "CLASS",
			"the CLASS: short, standard or long").OneOf("short", "standard", "long").needed(),
		Option(&in.Others, "others", "the scope is of dedupe.Claim or of calls, and not a consumer's"),
	}
}

func class() *Decision {
	return entry[ops.ClassInput, ops.ClassChange]{
		Decision: Decision{
			Name:    "inbox class",
			Summary: "change a scope's class of horizon, and so its ring of keys",
			Help: `
Changes the class of horizon of a consumer's scope: the ring in which its keys are claimed
(consumer_short_keys, consumer_keys or consumer_long_keys), and so how long they are remembered
("onlyonce inbox horizon" sets that for a ring). In one transaction the owners of its cursors are
fenced out, the scope's row is changed, and an audit row says who did it and why. They continue
within seconds.

Keys that were claimed before stay in the earlier ring, for as long as it remembers them. Until it
has forgotten the last of them, the scope's keys are claimed in both rings, and its consumers may
run with either class in Config.Horizon: deploy the new one meanwhile. A consumer that still has the
old one afterwards halts. A second change has to wait until then. A longer class does not extend the
memory of keys that were claimed before.

With several shards, change it in each database.

A webhook endpoint, and with -others a scope of dedupe.Claim, onlyonce.claim or calls, is of class
standard until it is given another one. Its claims read the class when they run: nothing is fenced
out, and nothing halts. The rings are standard_short_keys, standard_keys and standard_long_keys.

Examples:
  onlyonce inbox class -scope stock -class long -reason "the mirror may be stopped for two weeks, OPS-12"
  onlyonce inbox class -scope webhook/github -class short -reason "GitHub delivers again for 3 days"
  onlyonce inbox class -scope imports -others -class short -reason "files come once a day"`,
			Waits: "waiting for the owners' batches to end",
		},
		fields: classFields,
		shown:  func(in *ops.ClassInput) **ops.ClassChange { return &in.Shown },
		do:     ops.ChangeClass,
		would: func(_ *ops.ClassInput, d *ops.ClassChange) (s Said) {
			if !ring.OfConsumers(d.Ring) {
				s.say("Keys of scope %s were of class %s, and are from then on of class %s, in %s.",
					d.Scope, d.Was, d.Class, d.Ring)
				s.say("%s they are claimed in %s too.", passes(d), d.Before)
				return s
			}
			s.say("Keys of scope %s were of class %s, and are from then on of class %s, in %s. %d cursors; "+
				"their owners continue within seconds.", d.Scope, d.Was, d.Class, d.Ring, d.Cursors)
			s.say("%s, and longer where a cursor is behind, they are claimed in %s too, and either class is "+
				"accepted in Config.Horizon.", passes(d), d.Before)
			return s
		},
	}.decision()
}
