package primary_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// A pool that is missing, interpolates values, has no name, or leads to another one's database.
func TestFaultsOfPools(t *testing.T) {
	t.Parallel()
	to := func(address string) *pgxpool.Pool {
		cfg, err := pgxpool.ParseConfig("postgres://" + address)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(address, "simple") {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg) // it connects when it is used
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	const interpolates = "the simple protocol (default_query_exec_mode=simple_protocol) is refused: it interpolates " +
		"values into SQL; use exec behind PgBouncer"
	sentinel := errors.New("config")
	for name, c := range map[string]struct {
		pools map[string]*pgxpool.Pool
		want  string
	}{
		"sound": {pools: map[string]*pgxpool.Pool{
			"a": to("h/a"), "b": to("h/b"), "port": to("h:1/a"), "host": to("i/a"),
		}},
		"no name":      {map[string]*pgxpool.Pool{"": to("h/a")}, `config: Pools: has a pool under "": give it a name`},
		"nil":          {map[string]*pgxpool.Pool{"a": nil}, `config: Pools["a"]: must not be nil`},
		"interpolates": {map[string]*pgxpool.Pool{"a": to("h/simple")}, `config: Pools["a"]: ` + interpolates},
		"twice": {
			map[string]*pgxpool.Pool{"a": to("h/a"), "b": to("h/a")},
			`config: Pools: "a" and "b" are one database: each must be another, because keys are searched in one only`,
		},
	} {
		l := &fields.List{Sentinel: sentinel}
		primary.CheckPools(l, "Pools", c.pools)
		got := ""
		if err := l.Err(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %q", name, got, c.want)
		}
	}
	if err := primary.CheckPool(sentinel, to("h/a")); err != nil {
		t.Error(err)
	}
	for want, pool := range map[string]*pgxpool.Pool{"must not be nil": nil, interpolates: to("h/simple")} {
		if err := primary.CheckPool(sentinel, pool); !errors.Is(err, sentinel) || err.Error() != "config: pool: "+want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
