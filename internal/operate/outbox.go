package operate

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func pauseSinkFields(in *ops.PauseSinkInput) []Field {
	return []Field{
		At(&in.Sink, "sink", "S", "the sink S").needed(),
		Option(&in.Unlisted, "unlisted", "although no relay has listed the sink yet"),
	}
}

func pauseSink() *Decision {
	return entry[ops.PauseSinkInput, ops.Sink]{
		Decision: Decision{
			Name:    "outbox pause",
			Summary: "stop calls to a sink",
			Help: `
Stops calls to a sink until it is resumed, also across restarts: for example while a remote is being
repaired. Calls that are under way end; relays keep their lanes. Applications can still enqueue, and
nothing is lost, but keys age: a call that was made before without a final answer goes to state
reconcile if the remote may have forgotten its key meanwhile.

A sink that no relay has listed is refused, because its name may be misspelt. -unlisted pauses it
all the same: its first relay then starts no call. If the sink is paused already, nothing is
written, and the status is 0.

Example:
  onlyonce outbox pause -sink payments -reason "the bank asks us to stop, INC-9"`,
			Waits: "waiting for another transaction",
			Page:  "pause-sink",
			Title: "Pause the sink",
			Means: "Relays start no call to it. Running calls end, and applications can still enqueue. Keys " +
				"age meanwhile: a call that was made before, without a final answer, may need a decision if " +
				"its remote forgets the key.",
		},
		fields: pauseSinkFields,
		do:     ops.PauseSink,
		would: func(_ *ops.PauseSinkInput, d *ops.Sink) (s Said) {
			s.say("Pause sink %s: no call to it is started until it is resumed.", d.Name)
			return s
		},
		then: "relays start no more calls to it within two seconds; those under way end.",
	}.decision()
}

type sinkName struct{ Sink string }

func sinkFields(in *sinkName) []Field {
	return []Field{At(&in.Sink, "sink", "S", "the sink S").needed()}
}

func resumeSink() *Decision {
	return entry[sinkName, ops.Sink]{
		Decision: Decision{
			Name:    "outbox resume",
			Summary: "end the pause of a sink",
			Help: `
Ends a pause that "onlyonce outbox pause" began. Relays send calls again within two seconds. If the
sink is not paused, nothing is written, and the status is 0.

Example:
  onlyonce outbox resume -sink payments -reason "the bank is back, INC-9"`,
			Waits: "waiting for another transaction",
			Page:  "resume-sink",
			Title: "Resume the sink",
			Means: "Relays send calls again within two seconds.",
		},
		fields: sinkFields,
		do: func(ctx context.Context, db ops.DB, by ops.By, in sinkName) (*ops.Sink, error) {
			return ops.ResumeSink(ctx, db, by, in.Sink)
		},
		would: func(_ *sinkName, d *ops.Sink) (s Said) {
			s.say("Resume sink %s, paused %s", d.Name, reports.PauseText(d.PausedAt, d.PausedBy, d.PauseReason))
			return s
		},
		then: "relays send calls again within two seconds.",
	}.decision()
}

func rateFields(in *ops.SetRateInput) []Field {
	return []Field{
		At(&in.Sink, "sink", "S", "the sink S").needed(),
		At(&in.Tenant, "tenant", "T", "only calls of the tenant T"),
		Option(&in.EachTenant, "each-tenant", "the calls of each tenant without a rate of its own"),
		At(&in.OrderingKeyPrefix, "key-prefix", "P",
			"only calls whose ordering key begins with P, for example account-17:"),
		At(&in.PerSecond, "per-second", "N", "N calls a second").Between(0, 1_000_000),
		At(&in.InFlight, "in-flight", "N", "N calls under way at once").Between(1, 1_000_000),
		Option(&in.Unset, "unset", "take back the rate that was set"),
	}
}

func rate() *Decision {
	return entry[ops.SetRateInput, ops.RateSet]{
		Decision: Decision{
			Name:    "outbox rate",
			Summary: "set how many calls go to a sink, a second and at once",
			Help: `
Sets how many calls a second relays start (-per-second), and how many they have under way at once
(-in-flight), all relays together: to a sink, with -tenant for one of its tenants, or with
-key-prefix for ordering keys with a prefix, of any tenant. It replaces the
relays' configuration (RelayConfig.Rates), and outlasts restarts. A limit that
is not given stays as it was set before. Relays follow within two seconds, and
so do calls that wait already.

A call counts for the rate of its sink, and for one more at most: for that of its ordering key's
prefix if there is one, or else for its tenant's. A prefix ends with its first colon or slash,
because only that part of an ordering key is stored with a call.

-per-second may be a fraction: 0.1 is one call in 10 s. Repeated attempts count, too. Relays share
-in-flight evenly, and what one does not need goes to the others; a relay that died keeps its part
for 10 s.

Calls of a tenant or a prefix that are over its rate are set aside: they wait in their order, and
hold up no others. The calls of a sink that is over its rate stay in the log. Neither begins the
window of a key. "onlyonce outbox status" shows rates, and how many calls wait.

-unset takes back what was set here: the relays' configuration counts again, or
no rate. Setting and unsetting a rate also end a wait that the remote asked for
by Retry-After. If nothing would change, nothing is written, and the status is
0.

Examples:
  onlyonce outbox rate -sink payments -tenant acme -per-second 10 -reason "their import of 100,000 orders, INC-12"
  onlyonce outbox rate -sink payments -key-prefix account-17: -per-second 1 -reason "one account, 9,000 refunds, INC-14"
  onlyonce outbox rate -sink ledger -in-flight 4 -reason "it fails with more than four connections, INC-13"`,
			Waits: "waiting for another transaction",
		},
		fields: rateFields,
		shown:  func(in *ops.SetRateInput) **ops.RateSet { return &in.Shown },
		do:     ops.SetRate,
		would: func(_ *ops.SetRateInput, d *ops.RateSet) (s Said) {
			var to []string
			if d.PerSecond != nil {
				to = append(to, strconv.FormatFloat(*d.PerSecond, 'f', -1, 64)+" calls a second")
			}
			if d.InFlight != nil {
				to = append(to, fmt.Sprintf("%d under way at once", *d.InFlight))
			}
			set := "to " + strings.Join(to, ", ")
			if len(to) == 0 {
				set = "back to the relays' configuration"
			}
			s.say("Set the rate of %s %s; until now: %s", d.Was.Whose(), set, d.Was.String())
			return s
		},
		then: "relays follow within two seconds.",
	}.decision()
}

func rebaseFields(in *ops.RebaseInput) []Field {
	return []Field{
		At(&in.Sink, "sink", "S", "only the sink S"),
		Option(&in.Force, "force", "take lanes over from relays that hold them"),
	}
}

func rebase() *Decision {
	return entry[ops.RebaseInput, ops.Rebased]{
		Decision: Decision{
			Name:    "outbox rebase",
			Summary: "let relays find their calls after a restore",
			Help: `
Relays find new calls by transaction ids, which mean something in one database cluster only. After a
restore from a dump, or a move to another cluster, relays halt (OO007) and name this command. It
tells by the old cursors which calls were delivered and which were not, and sets cursors and calls
to this cluster's ids, in one transaction. No call is lost, and order within an ordering key is
kept. A restored base backup or a promoted standby needs no rebase.

It also raises sequences that a move by logical replication has left behind, for consumers and HTTP
layers too: without sinks it does only that.

Calls may have been made after the dump was taken, by the old cluster. So each call that is to be
sent is taken for one that may have been made, from the moment it was enqueued: it is sent again
under its key, or, if the remote may have forgotten the key by now, set aside with state reconcile,
and not sent.

Stop the relays first, those of the old cluster too, which this command cannot see. It refuses while
a relay holds a lane; -force takes the lanes over, and calls that such a relay has under way are
sent again under the same keys. It reads the whole log, and rewrites the calls that are to be sent,
or all of them where this cluster's ids are the lower ones. Applications may enqueue meanwhile.

Example:
  onlyonce outbox rebase -reason "restored from the dump of 03:00, INC-7"`,
			Danger: true,
			Waits:  "reading the log and setting the cursors",
		},
		fields: rebaseFields,
		shown:  func(in *ops.RebaseInput) **ops.Rebased { return &in.Shown },
		do:     ops.Rebase,
		would:  func(_ *ops.RebaseInput, d *ops.Rebased) Said { return rebased(d) },
		done: func(_ *ops.RebaseInput, d *ops.Rebased) []string {
			return []string{fmt.Sprintf("Done: %d calls are to be sent; audit row %d. Start the relays.",
				d.Pending, d.AuditID)}
		},
	}.decision()
}

// rebased counts the calls that are to be sent, by sink.
func rebased(d *ops.Rebased) Said {
	s := Said{Columns: []string{"SINK", "LISTED", "LANES", "TO SEND", "OLDEST"}}
	lanes := d.Lanes // by sink
	for len(lanes) > 0 {
		sink := lanes[0].Sink
		listed := "no"
		pending := int64(0)
		n := 0
		var oldest *time.Time
		for ; len(lanes) > 0 && lanes[0].Sink == sink; lanes = lanes[1:] {
			l := &lanes[0]
			n++
			pending += l.Pending
			if l.Listed {
				listed = "yes"
			}
			if l.Oldest != nil && (oldest == nil || l.Oldest.Before(*oldest)) {
				oldest = l.Oldest
			}
		}
		since := ""
		if oldest != nil {
			since = show.Instant(*oldest)
		}
		s.Rows = append(s.Rows, []string{sink, listed, strconv.Itoa(n), strconv.FormatInt(pending, 10), since})
	}
	for _, q := range d.Sequences {
		s.say("The sequence %s is at %d and is raised to %d, which is in use.", q.Name, q.Stands, q.Needs)
	}
	s.say("By the old cursors these calls are to be sent. Each may have been made by the cluster that the " +
		"data come from: it is sent under its key, or goes to reconcile where that is too old.")
	return s
}

func eraseCallFields(in *ops.EraseCallInput) []Field {
	return []Field{
		At(&in.Key, "key", "KEY", "the call's idempotency key, KEY").needed(),
	}
}

func eraseCall() *Decision {
	return entry[ops.EraseCallInput, ops.Erased]{
		Decision: Decision{
			Name:    "outbox erase",
			Summary: "erase the body of a call that is settled",
			Help: `
Erases the body of a call, in the log and where it was parked, and the remote's answer: for a
data-erasure request. The call must be delivered or discarded; one that is still to be sent
needs its body ("onlyonce parked discard" gives it up). The row stays, with target, headers and the
rest, until its segment of the log is dropped, so that the call is recognised when it is enqueued
again. A call that was erased cannot be redriven. Backups, and standbys that lag, hold the body
longer.

KEY is the idempotency key, a UUID, as the remote saw it. If the call is erased already, nothing is
written, and the status is 0.

Example:
  onlyonce outbox erase -key 6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a -reason "GDPR request 118"`,
			Danger: true,
			Waits:  "waiting for a relay to settle calls",
		},
		fields: eraseCallFields,
		do:     ops.EraseCall,
		would: func(_ *ops.EraseCallInput, d *ops.Erased) (s Said) {
			tableOf(&s, StoredColumns, d.Rows, 0)
			s.say("Erase the body, and the remote's answer. It cannot be brought back, and the call cannot " +
				"be sent again.")
			return s
		},
		done: func(_ *ops.EraseCallInput, d *ops.Erased) []string {
			return []string{fmt.Sprintf("Done: erased; audit row %d.", d.AuditID)}
		},
	}.decision()
}
