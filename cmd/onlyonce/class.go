package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/onlyonce/onlyonce/ops"
)

// classChange holds the operator's flags.
type classChange struct {
	consent
	scope, class *string
}

func inboxClassCommand() command {
	return command{
		name:    "inbox class",
		args:    "[-postgres URL] -scope S -class short|standard|long -reason WHY [-yes]",
		summary: "change a scope's class of horizon, and so its ring of keys",
		help: `
Changes the class of horizon of a consumer's scope: the ring in which its keys are claimed (consumer_short_keys, consumer_keys or
consumer_long_keys), and so how long they are remembered ("onlyonce inbox horizon" sets that for a ring). In one transaction the owners
of its cursors are fenced out, the scope's row is changed, and an audit row says who did it and why. They go on within seconds.

Keys that were claimed before stay in the earlier ring, for as long as it remembers them. Until it has forgotten the last of them, the scope's keys
are claimed in both rings, and its consumers may run with either class in Config.Horizon: deploy the new one meanwhile.
A consumer that still has the old one afterwards halts. A second change has to wait until then. A longer class does not extend for how long a key is
remembered that was claimed before.

With several shards, change it in each database. A scope that is read through a share group keeps its class. It asks first, unless -yes is given.

Example:
  onlyonce inbox class -scope stock -class long -reason "the mirror may be stopped for two weeks, OPS-12"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask classChange
			textVar(fs, &ask.scope, "scope", "the scope `S`")
			choiceVar(fs, &ask.class, "class", "the `class`: short, standard or long", "short", "standard", "long")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error {
				if err := missing(given{"-scope", ask.scope != nil}, given{"-class", ask.class != nil}, given{"-reason", ask.reason != nil}); err != nil {
					return err
				}
				act := func(ctx context.Context, db *database, by ops.By, shown *ops.ClassChange) (*ops.ClassChange, error) {
					return ops.ChangeClass(ctx, db, by, ops.ClassInput{Scope: *ask.scope, Class: *ask.class, Shown: shown})
				}
				return decide(ctx, a, *address, ask.consent, "waiting for the owners' batches to end", decision[ops.ClassChange]{act: act, write: writeClass, after: func(_ context.Context, _ *database, done *ops.ClassChange) error {
					_, _ = fmt.Fprintf(a.out, "Done; audit row %d.\n", done.AuditID)
					return nil
				}})
			}
		},
	}
}

func writeClass(a *app, d *ops.ClassChange) {
	a.say("Keys of scope %s were of class %s, and are from then on of class %s, in %s. %d cursors; their owners go on within seconds.", cell(d.Scope), d.Was, d.Class, d.Ring, d.Cursors)
	a.say("%s, and longer where a cursor is behind, they are claimed in %s too, and either class is accepted in Config.Horizon.", d.Passes(), d.Before)
}
