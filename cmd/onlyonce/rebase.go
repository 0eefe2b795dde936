package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// rebase holds the operator's flags.
type rebase struct {
	consent
	sink  *string
	force bool
}

func outboxRebaseCommand() command {
	return command{
		name:    "outbox rebase",
		args:    "[-postgres URL] [-sink S] -reason WHY [-force] [-yes]",
		summary: "let relays find their calls after a restore",
		help: `
Relays find new calls by transaction ids, which mean something in one database cluster only. After a restore from a dump, or a move to
another cluster, relays halt (OO007) and name this command. It tells by the old cursors which calls were delivered and
which were not, and sets cursors and calls to this cluster's ids, in one transaction. Nothing that is to be sent is lost, and order within
an ordering key is kept. A restored base backup or a promoted standby needs no rebase.

Calls may have been made after the dump was taken, by the old cluster. So each call that is to be sent is taken for one that may have
been made, from the moment it was enqueued: it is sent again under its key, or, where the remote may have forgotten the key by
now, set aside with state reconcile, and not sent.

Stop the relays first, those of the old cluster too, which this command cannot see. It refuses while a relay holds a lane; -force takes the lanes
over, and what that relay has under way is sent again under the same keys. It reads the whole log, and rewrites the calls that are to be sent, or
all of them where this cluster's ids are the lower ones. Applications may go on enqueueing. It shows what it found and asks, unless -yes is given,
and writes an audit row.

Example:
  onlyonce outbox rebase -reason "restored from the dump of 03:00, INC-7"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			ask := &rebase{}
			textVar(fs, &ask.sink, "sink", "only the sink `S`")
			fs.BoolVar(&ask.force, "force", false, "take lanes over from relays that hold them")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.rebase(ctx, *address, ask) }
		},
	}
}

func (a *app) rebase(ctx context.Context, address string, ask *rebase) error {
	if err := missing(given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	act := func(ctx context.Context, db *database, by ops.By, shown *ops.Rebased) (*ops.Rebased, error) {
		return ops.Rebase(ctx, db, by, ops.RebaseInput{Sink: given0(ask.sink), Force: ask.force, Shown: shown})
	}
	return decide(ctx, a, address, ask.consent, "reading the log and setting the cursors", decision[ops.Rebased]{act: act, write: writeRebased, after: func(_ context.Context, _ *database, done *ops.Rebased) error {
		_, _ = fmt.Fprintf(a.out, "Done: %d calls are to be sent; audit row %d. Start the relays.\n", done.Pending, done.AuditID)
		return nil
	}})
}

func writeRebased(a *app, d *ops.Rebased) {
	type sum struct {
		lanes, pending int64
		oldest         *time.Time
		listed         bool
	}
	var names []string
	sums := map[string]*sum{}
	for _, l := range d.Lanes {
		s := sums[l.Sink]
		if s == nil {
			s = &sum{}
			sums[l.Sink], names = s, append(names, l.Sink)
		}
		s.lanes++
		s.pending += l.Pending
		s.listed = s.listed || l.Listed
		if l.Oldest != nil && (s.oldest == nil || l.Oldest.Before(*s.oldest)) {
			s.oldest = l.Oldest
		}
	}
	var cells [][]string
	for _, name := range names {
		s, oldest := sums[name], ""
		if s.oldest != nil {
			oldest = show.Instant(*s.oldest)
		}
		cells = append(cells, []string{name, yesNo(s.listed), number(s.lanes), number(s.pending), oldest})
	}
	a.table([]string{"SINK", "LISTED", "LANES", "TO SEND", "OLDEST"}, cells)
	_, _ = fmt.Fprintln(a.out, "By the old cursors these calls are to be sent. Each may have been made by the cluster that the data come from: it goes out under its key, or to reconcile where that is too old.")
}
