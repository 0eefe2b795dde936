package consumer

import (
	"fmt"
	"slices"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// Horizon is a class of horizon: how long the keys of a scope are remembered at least. Each class
// has a ring of its own, whose horizon is a number in the database (`onlyonce inbox horizon`). A
// longer class takes space for each key for longer.
type Horizon int

const (
	// HorizonStandard is the default. Its ring is consumer_keys, with 7 days in a new database.
	HorizonStandard Horizon = iota

	// HorizonShort is for topics of many messages whose copies come soon or never. Its ring is
	// consumer_short_keys, with 1 day in a new database.
	HorizonShort

	// HorizonLong is for topics whose copies may come late, for example from a mirror that was
	// stopped. Its ring is consumer_long_keys, with 30 days in a new database.
	HorizonLong
)

// class returns the class's word in the database.
func (h Horizon) class() string {
	switch h {
	case HorizonShort:
		return ring.Short
	case HorizonLong:
		return ring.Long
	}
	return ring.Standard
}

// checkHorizon checks that the class exists, and that there are keys to remember.
func (c *Config) checkHorizon(l *fields.List) {
	switch {
	case c.Horizon < HorizonStandard || c.Horizon > HorizonLong:
		l.Add("Horizon", "is %d: must be HorizonStandard, HorizonShort or HorizonLong", c.Horizon)
	case c.Horizon != HorizonStandard && c.Key == nil:
		l.Add("Horizon", "is set, and Key is not: no keys are claimed in the consumers' rings")
	}
}

// A scope's keys are claimed in the ring of its class. While the class changes, they are claimed in
// both rings, in the order of ring.Classes, so that two claims do not deadlock (K10). The
// statements of each class; see the functions' comments in the migration. In: keys, fingerprints,
// and the result of inbox.Filters.Ask.
var (
	claimSQL = map[string]string{
		ring.Standard: `select onlyonce.claim_consumer($1, $2, $3, $4, $5)`,
		ring.Short:    `select onlyonce.claim_consumer_short($1, $2, $3, $4, $5)`,
		ring.Long:     `select onlyonce.claim_consumer_long($1, $2, $3, $4, $5)`,
	}
	claimFreshSQL = map[string]string{
		ring.Standard: `select onlyonce.claim_consumer_fresh($1, $2, $3, $4, $5)`,
		ring.Short:    `select onlyonce.claim_consumer_short_fresh($1, $2, $3, $4, $5)`,
		ring.Long:     `select onlyonce.claim_consumer_long_fresh($1, $2, $3, $4, $5)`,
	}
)

// claimBothSQL claims keys in the rings of two classes. In: the classes, keys, fingerprints. Out:
// one row, as of claimSQL.
const claimBothSQL = `select onlyonce.claim_both($1, $2, $3, $4)`

// classesOf returns the classes in whose rings a scope claims, in the order of their claims. before
// is the class that it had before, if the ring of that one has to be asked too.
func classesOf(class string, before *string) []string {
	if before == nil {
		return []string{class}
	}
	return slices.DeleteFunc(ring.Classes(), func(c string) bool { return c != class && c != *before })
}

// checkClass halts unless the scope has the class of Config.Horizon, or had it before and is still
// claimed in both rings: then the processes of a service may be deployed one after another.
func (w *worker) checkClass(row *scopeRow) error {
	mine := w.c.cfg.Horizon.class()
	if w.c.cfg.Key == nil || slices.Contains(classesOf(row.class, row.classBefore), mine) {
		return nil
	}
	err := w.haltError(HaltClass, "the scope's keys are of class %s, and this consumer's Config.Horizon is %s", row.class, mine)
	err.class = mine
	return err
}

func (h Horizon) String() string {
	if h < HorizonStandard || h > HorizonLong {
		return fmt.Sprintf("Horizon(%d)", int(h))
	}
	return h.class()
}
