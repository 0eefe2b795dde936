package primary

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// CheckPool returns what is wrong with the argument "pool" of a constructor, or nil. The error
// wraps the sentinel.
func CheckPool(sentinel error, pool *pgxpool.Pool) error {
	if err := fault(pool); err != nil {
		return fmt.Errorf("%w: pool: %w", sentinel, err)
	}
	return nil
}

// fault refuses the simple protocol, because pgx then puts values into the text of a statement.
func fault(pool *pgxpool.Pool) error {
	switch {
	case pool == nil:
		return errors.New("must not be nil")
	case pool.Config().ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol:
		return errors.New("the simple protocol (default_query_exec_mode=simple_protocol) is refused: it " +
			"interpolates values into SQL; use exec behind PgBouncer")
	}
	return nil
}

// CheckPools notes what is wrong with named pools, each of which must lead to another database.
func CheckPools(l *fields.List, field string, pools map[string]*pgxpool.Pool) {
	type address struct {
		host, database string
		port           uint16
	}
	seen := map[address]string{}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		if name == "" {
			l.Add(field, `has a pool under "": give it a name`)
		}
		if err := fault(pools[name]); err != nil {
			l.Add(fmt.Sprintf("%s[%q]", field, name), "%v", err)
			continue
		}
		cc := pools[name].Config().ConnConfig
		at := address{cc.Host, cc.Database, cc.Port}
		if other, twice := seen[at]; twice {
			l.Add(field, "%q and %q are one database: each must be another, because keys are searched in one only",
				other, name)
		}
		seen[at] = name
	}
}
