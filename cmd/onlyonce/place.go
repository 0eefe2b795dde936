package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func placeListCommand() command {
	return command{
		name:    "place list",
		args:    "[-postgres URL] [-place P] [-state STATE] [-limit N] [-json]",
		summary: "list the tenants that live in one of several databases",
		help: `
Lists the tenants and other places that this database knows, for programs that have several databases (package shard;
docs/scaling.md). A place lives in one database, its shard. It changes nothing.

States: claimed, while a process asks the other databases whether the place lives there; here; leaving, if nothing new
begins and what was begun ends; left. OTHER is where the place goes, or came from. MOVES is how often it had moved.

With -json, one object a line:
  place, state, moves, other, changed_at

Example:
  onlyonce place list -postgres "$SHARD_A" -state leaving`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var place, state *string
			var limit *int64
			textVar(fs, &place, "place", "only the place `P`, for example a tenant")
			textVar(fs, &state, "state", "only those in `STATE`: claimed, here, leaving or left")
			numberVar(fs, &limit, "limit", fmt.Sprintf("at most `N` places (default %d)", reports.DefaultLimit), 1, reports.MostLimit)
			return func(ctx context.Context, a *app) error {
				var places []ops.Place
				var more bool
				f := ops.PlaceFilter{Place: text(place), State: text(state), Limit: limitOf(limit)}
				err := a.ask(ctx, *address, "reading places", func(ctx context.Context, db ops.DB) (err error) {
					places, more, err = ops.Places(ctx, db, f)
					return err
				})
				if err != nil {
					return err
				}
				return a.writePlaces(places, more, f.Limit, *asJSON)
			}
		},
	}
}

func (a *app) writePlaces(places []ops.Place, more bool, limit int, asJSON bool) error {
	var cells [][]string
	for i := range places {
		h := &places[i]
		if asJSON {
			if err := a.writeJSON(h); err != nil {
				return err
			}
			continue
		}
		cells = append(cells, []string{h.Place, h.State, h.Other, strconv.FormatInt(h.Moves, 10), show.Instant(h.ChangedAt)})
	}
	switch {
	case asJSON:
	case len(places) == 0:
		_, _ = fmt.Fprintln(a.out, "No places.")
	default:
		a.table([]string{"PLACE", "STATE", "OTHER", "MOVES", "SINCE"}, cells)
	}
	if more {
		return a.thereAreMore(limit)
	}
	return nil
}

// placeMove holds the operator's flags.
type placeMove struct {
	consent
	place *string
	to    *string // of leave

	// Of adopt.
	from, as *string
	standard bool
	without  bool
	late     bool
	origin   *database
}

func placeLeaveCommand() command {
	return command{
		name:    "place leave",
		args:    "[-postgres URL] -place P -to NAME -reason WHY [-yes | -dry-run]",
		summary: "take a tenant out of a database, to move it",
		help: `
Takes a tenant, or another place, out of this database (docs/scaling.md has the whole procedure). From then on nothing new
begins for it: its requests and webhooks get 503, and the transactions of loops that call shard.Enter fail. Other places go on.

If operations of the tenant run, or stored events of it are not handled or are parked, the state is "leaving": consumers go on
with them. Run the command again until it says "left". Then nothing of the place changes here any more. Requests in lease mode
are cut off as by a crash, and go on in the other database under their keys.

-to names the database that the place goes to; "onlyonce place adopt -as" must give the same name there. It shows what was and
what will be, and asks first, unless -yes is given. It waits for the place's open transactions.

Example:
  onlyonce place leave -postgres "$SHARD_A" -place acme -to b -reason "OPS-40"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask placeMove
			textVar(fs, &ask.place, "place", "the tenant or other place `P`")
			textVar(fs, &ask.to, "to", "the `NAME` of the database that it goes to")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.leavePlace(ctx, *address, &ask) }
		},
	}
}

func (a *app) leavePlace(ctx context.Context, address string, ask *placeMove) error {
	if err := missing(given{"-place", ask.place != nil}, given{"-to", ask.to != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	return decide(ctx, a, address, ask.consent, "waiting for the place's open transactions to end", decision[ops.LeftPlace]{
		act: func(ctx context.Context, db *database, by ops.By, shown *ops.LeftPlace) (*ops.LeftPlace, error) {
			return ops.LeavePlace(ctx, db, by, ops.LeavePlaceInput{Place: *ask.place, To: *ask.to, Shown: shown})
		},
		write: func(a *app, d *ops.LeftPlace) {
			a.say("%s: %s -> %s, for %s", cell(d.Place), d.Before, d.After, cell(d.To))
			if d.After == "leaving" {
				a.say("Not ended yet: %s, %s that are not handled, %s.", show.Count(d.Operations, "operation"), show.Count(d.Events, "event"), show.Count(d.Parked, "parked event"))
			}
		},
		after: func(_ context.Context, _ *database, d *ops.LeftPlace) error {
			if d.After == "leaving" {
				a.say("Done: nothing new begins for it; audit row %d. Run the command again when what was begun has ended.", d.AuditID)
			} else {
				a.say("Done: it has left; audit row %d. Adopt it in %s: onlyonce place adopt -from URL -as %s", d.AuditID, cell(d.To), show.Quote(d.To))
			}
			return nil
		},
	})
}

func placeAdoptCommand() command {
	return command{
		name:    "place adopt",
		args:    "[-postgres URL] -place P [-from URL -as NAME {-standard-keys [-late] | -without-keys}] -reason WHY [-yes | -dry-run]",
		summary: "make a tenant live in a database",
		help: `
Makes a tenant, or another place, live in this database, in one transaction. With -from it moves here from another one, which it
has left ("onlyonce place leave"): the tenant's records of HTTP requests, with their steps, and its operations are copied, and
replace what is here from an earlier time. Your own rows of the tenant must be here before. -as is the name that "place leave -to"
gave to this database.

-standard-keys brings every key of standard_keys too, and what webhooks remember besides. Give it if the place has webhooks or a
loop of its own, or if handlers claim keys or enqueue calls under ids; such ids must mean the same in both databases, because
those of other places come along. Otherwise say -without-keys. If the place left longer ago than keys are remembered there, -late
says that no copies can come any more.

Without -from it keeps here a place that is leaving, or one that no process has met yet.

Example:
  onlyonce place adopt -postgres "$SHARD_B" -from "$SHARD_A" -as b -place acme -standard-keys -reason "OPS-40"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask placeMove
			textVar(fs, &ask.place, "place", "the tenant or other place `P`")
			textVar(fs, &ask.from, "from", "the database that it has left, as a `URL`")
			textVar(fs, &ask.as, "as", "with -from: the `NAME` of this database, as place leave gave it")
			fs.BoolVar(&ask.standard, "standard-keys", false, "with -from: bring the keys of standard_keys too")
			fs.BoolVar(&ask.without, "without-keys", false, "with -from: bring no keys")
			fs.BoolVar(&ask.late, "late", false, "with -standard-keys: although keys may be forgotten there by now")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.adoptPlace(ctx, *address, &ask) }
		},
	}
}

func (a *app) adoptPlace(ctx context.Context, address string, ask *placeMove) error {
	if err := missing(given{"-place", ask.place != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	if ask.from == nil {
		if ask.as != nil || ask.standard || ask.without || ask.late {
			return usagef("-as, -standard-keys, -without-keys and -late: only with -from")
		}
		return a.adoptPlaceAs(ctx, address, "waiting for the place's open transactions to end", ask)
	}
	switch {
	case ask.as == nil:
		return missing(given{"-as", false})
	case ask.standard == ask.without:
		return usagef("-from: give one of -standard-keys and -without-keys: see onlyonce help place adopt")
	case ask.late && !ask.standard:
		return usagef("-late: only with -standard-keys")
	}
	return a.withSchema(ctx, *ask.from, func(db *database) error {
		ask.origin = db
		return a.adoptPlaceAs(ctx, address, "bringing over what is kept there", ask)
	})
}

func (a *app) adoptPlaceAs(ctx context.Context, address, waiting string, ask *placeMove) error {
	return decide(ctx, a, address, ask.consent, waiting, decision[ops.AdoptedPlace]{
		act: ask.adopt,
		write: func(a *app, d *ops.AdoptedPlace) {
			before := d.Before
			if before == "" {
				before = "not known here"
			}
			a.say("%s: %s -> here", cell(d.Place), before)
			if d.From != "" {
				a.say("It comes from %s; it is its move %d.", cell(d.From), d.Moves)
			}
		},
		after: func(_ context.Context, _ *database, d *ops.AdoptedPlace) error {
			if d.Requests != nil {
				a.say("%s came along.", show.Count(*d.Requests, "row"))
			}
			if d.Keys != nil {
				a.say("%s came along that are new here.", show.Count(*d.Keys, "key"))
			}
			a.say("Done: it lives here; audit row %d.", d.AuditID)
			return nil
		},
	})
}

func (q *placeMove) adopt(ctx context.Context, db *database, by ops.By, shown *ops.AdoptedPlace) (*ops.AdoptedPlace, error) {
	in := ops.AdoptPlaceInput{Place: *q.place, Shown: shown}
	if q.origin != nil {
		in.From = &ops.PlaceOrigin{DB: q.origin, Name: q.origin.name, As: *q.as, StandardKeys: q.standard, Late: q.late}
	}
	done, err := ops.AdoptPlace(ctx, db, by, in)
	return done, q.origin.explainOrigin(err)
}
