package operate

import (
	"cmp"
	"context"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// PlaceList is the list of places.
var PlaceList = &List[reports.PlaceFilter, reports.Place]{
	Name:    "place list",
	Summary: "list the tenants that live in one of several databases",
	Help: `
Lists the tenants and other places that this database knows, for programs that have several databases (package shard;
docs/scaling.md). A place lives in one database, its shard. It changes nothing.

States: claimed, while a process asks the other databases whether the place lives there; here;
leaving, if nothing new begins and running work ends; left. OTHER is where the place goes, or came
from. MOVES is how often it had moved.

Example:
  onlyonce place list -postgres "$SHARD_A" -state leaving`,
	None:    "No places.",
	Columns: PlaceColumns,
	fields:  placeFilterFields,
	read:    reports.Places,
}

func placeFilterFields(f *reports.PlaceFilter) []Field {
	return []Field{
		At(&f.Place, "place", "P", "only the place P, for example a tenant"),
		At(&f.State, "state", "STATE",
			"only those in STATE: claimed, here, leaving or left").OneOf("claimed", "here", "leaving", "left"),
		At(&f.Limit, "limit", "N", "at most N places (default 100)").Between(1, 10_000),
	}
}

func leavePlaceFields(in *ops.LeavePlaceInput) []Field {
	return []Field{
		At(&in.Place, "place", "P", "the tenant or other place P").needed(),
		At(&in.To, "to", "NAME", "the NAME of the database that it goes to").needed(),
	}
}

func leavePlace() *Decision {
	return entry[ops.LeavePlaceInput, ops.LeftPlace]{
		Decision: Decision{
			Name:    "place leave",
			Summary: "take a tenant out of a database, to move it",
			Help: `
Takes a tenant, or another place, out of this database (docs/scaling.md has the whole procedure).
From then on nothing new begins for it: its requests and webhooks get 503, and the transactions of
loops that call shard.Enter fail. Other places continue.

If operations of the tenant run, or stored events of it are not handled or are parked, the state is
"leaving": consumers continue with them. Run the command again until it says "left". Then nothing of
the place changes here any more. Requests in lease mode are cut off as by a crash, and continue in
the other database under their keys.

-to names the database that the place goes to; "onlyonce place adopt -as" must give the same name
there. It waits for the place's open transactions.

Example:
  onlyonce place leave -postgres "$SHARD_A" -place acme -to b -reason "OPS-40"`,
			Waits: "waiting for the place's open transactions to end",
		},
		fields: leavePlaceFields,
		shown:  func(in *ops.LeavePlaceInput) **ops.LeftPlace { return &in.Shown },
		do:     ops.LeavePlace,
		would: func(_ *ops.LeavePlaceInput, d *ops.LeftPlace) (s Said) {
			s.say("%s: %s -> %s, for %s", d.Place, d.Before, d.After, d.To)
			if d.After == "leaving" {
				s.say("Not ended yet: %s, %s that are not handled, %s.",
					show.Count(d.Operations, "operation"),
					show.Count(d.Events, "event"),
					show.Count(d.Parked, "parked event"))
			}
			return s
		},
		done: func(_ *ops.LeavePlaceInput, d *ops.LeftPlace) []string {
			var s Said
			if d.After == "leaving" {
				s.say("Done: nothing new begins for it; audit row %d. Run the command again when its "+
					"running work has ended.", d.AuditID)
			} else {
				s.say("Done: it has left; audit row %d. Adopt it in %s: onlyonce place adopt -from URL -as %s",
					d.AuditID, d.To, show.Quote(d.To))
			}
			return s.Sentences
		},
	}.decision()
}

type adoptingPlace struct {
	ops.AdoptPlaceInput
	From
	As          string
	WithoutKeys bool
}

func (in *adoptingPlace) Check() error {
	invalid := func(reason string) error { return &ops.Error{Kind: ops.ErrInvalid, Reason: reason} }
	switch {
	case in.URL == "" && (in.As != "" || in.WithoutKeys):
		return invalid("`As` and `WithoutKeys`: only with `From`")
	case in.URL == "":
	case in.As == "":
		return invalid("missing: `As`")
	case in.StandardKeys == in.WithoutKeys:
		return invalid("`From`: give one of `StandardKeys` and `WithoutKeys`: see onlyonce help place adopt")
	case in.Late && !in.StandardKeys:
		return invalid("`Late`: only with `StandardKeys`")
	}
	return in.check()
}

func adoptingPlaceFields(in *adoptingPlace) []Field {
	place := At(&in.Place, "place", "P", "the tenant or other place P").needed()
	return append(append([]Field{place}, in.From.fields()...),
		At(&in.As, "as", "NAME", "with -from: the NAME of this database, as place leave gave it"),
		Option(&in.WithoutKeys, "without-keys", "with -from: bring no keys"))
}

func adoptPlace() *Decision {
	return entry[adoptingPlace, ops.AdoptedPlace]{
		Decision: Decision{
			Name:    "place adopt",
			Summary: "make a tenant live in a database",
			Help: `
Makes a tenant, or another place, live in this database, in one transaction. With -from it moves
here from another one, which it has left ("onlyonce place leave"): the tenant's records of HTTP
requests, with their steps, and its operations are copied, and replace those that are here from an
earlier time. Your own rows of the tenant must be here before. -as is the name that "place leave
-to" gave to this database.

-standard-keys brings every key of standard_keys too, and the other memory of webhooks. Give it if
the place has webhooks or a loop of its own, or if handlers claim keys or enqueue calls under ids;
such ids must mean the same in both databases, because those of other places come along. Otherwise
say -without-keys. If the place left longer ago than keys are remembered there, -late says that no
copies can come any more.

Without -from it keeps here a place that is leaving, or one that no process has met yet.

Example:
  onlyonce place adopt -postgres "$SHARD_B" -from "$SHARD_A" -as b -place acme -standard-keys -reason "OPS-40"`,
			Waits: "waiting for the place's open transactions to end, or for its rows to come over",
		},
		fields: adoptingPlaceFields,
		shown:  func(in *adoptingPlace) **ops.AdoptedPlace { return &in.Shown },
		do: func(ctx context.Context, db ops.DB, by ops.By, in adoptingPlace) (*ops.AdoptedPlace, error) {
			in.AdoptPlaceInput.From = in.origin(in.As)
			return ops.AdoptPlace(ctx, db, by, in.AdoptPlaceInput)
		},
		would: func(_ *adoptingPlace, d *ops.AdoptedPlace) (s Said) {
			before := cmp.Or(d.Before, "not known here")
			s.say("%s: %s -> here", d.Place, before)
			if d.From != "" {
				s.say("It comes from %s; it is its move %d.", d.From, d.Moves)
			}
			return s
		},
		done: func(_ *adoptingPlace, d *ops.AdoptedPlace) []string {
			var s Said
			if d.Requests != nil {
				s.say("%s came along.", show.Count(*d.Requests, "row"))
			}
			if d.Keys != nil {
				s.say("%s came along that are new here.", show.Count(*d.Keys, "key"))
			}
			s.say("Done: it lives here; audit row %d.", d.AuditID)
			return s.Sentences
		},
	}.decision()
}
