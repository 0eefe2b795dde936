package preflight_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

var serverFunctions = []string{"pg_control_system()", "pg_current_wal_insert_lsn()", "pg_current_wal_lsn()", "pg_walfile_name(pg_lsn)"}

// S1: a function of the server that an engine needs and cannot call is named at the start, with
// what to change; so is one without which it works less well.
func TestS1FunctionsThatRaise(t *testing.T) {
	t.Parallel()
	for code, change := range map[string]string{
		"42501": "as a superuser run: grant execute on function pg_catalog.%s to postgres",
		"55000": "set wal_level = logical (on Amazon Aurora: rds.logical_replication = 1)",
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.URL(t))
			pgtest.Refuse(t, pool, code, serverFunctions...)
			for name, c := range map[string]struct {
				roles           []preflight.Role
				faults, without []string
			}{
				"consumer": {[]preflight.Role{preflight.App}, nil, []string{"pg_control_system()"}},
				"webhooks": {[]preflight.Role{preflight.Receiver, preflight.Events}, nil, nil},
				"relay": {
					[]preflight.Role{preflight.Relay},
					[]string{"relays cannot work: pg_control_system()"},
					[]string{"pg_current_wal_insert_lsn()", "pg_walfile_name(pg_lsn)"},
				},
				"relay that waits": {
					[]preflight.Role{preflight.Relay, preflight.Standbys},
					[]string{
						"relays cannot work: pg_control_system()",
						"RelayConfig.WaitFor cannot work: pg_current_wal_insert_lsn()",
						"RelayConfig.WaitFor cannot work: pg_current_wal_lsn()",
						"RelayConfig.WaitFor cannot work: pg_walfile_name(pg_lsn)",
					},
					nil,
				},
				"HTTP layer": {[]preflight.Role{preflight.HTTP}, nil, nil},
				"HTTP layer with a cache": {
					[]preflight.Role{preflight.HTTP, preflight.Cache},
					[]string{
						"Config.Cache cannot work: pg_control_system()",
						"Config.Cache cannot work: pg_current_wal_insert_lsn()",
						"Config.Cache cannot work: pg_walfile_name(pg_lsn)",
					},
					nil,
				},
			} {
				warnings, err := preflight.Check(t.Context(), pool, c.roles...)
				warnings = slices.DeleteFunc(warnings, func(w string) bool { return !strings.Contains(w, "cannot be called") })
				var faults []string
				if err != nil {
					faults = strings.Split(err.Error(), "\n")
				}
				slices.Sort(faults)
				slices.Sort(c.faults)
				slices.Sort(warnings)
				for what, both := range map[string][2][]string{"faults": {faults, c.faults}, "warnings": {warnings, c.without}} {
					if len(both[0]) != len(both[1]) {
						t.Errorf("%s: %s %q, want %q", name, what, both[0], both[1])
						continue
					}
					for i, want := range both[1] {
						function := want[strings.LastIndex(want, " ")+1:]
						how := change
						if strings.Contains(change, "%s") {
							how = fmt.Sprintf(change, function)
						}
						if got := both[0][i]; !strings.HasPrefix(got, want+" cannot be called: ") ||
							!strings.Contains(got, how) ||
							(what == "warnings") != strings.Contains(got, "; without it ") {
							t.Errorf("%s: %q, want %q and %q in it", name, got, want, how)
						}
					}
				}
			}
		})
	}
}

// S2: docs/roles.sql grants the functions of the server to the roles that call them, where PUBLIC
// may not; doctor names them before.
func TestS2FunctionsThatAreRevoked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(`revoke execute on function ` + strings.Join(serverFunctions, ", ") + ` from public`)
	lacking := func() (got []string) {
		conn, err := c.super.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		lack, err := preflight.RolesLack(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		for _, role := range slices.Sorted(maps.Keys(lack)) {
			got = append(got, role+": "+strings.Join(lack[role], ", "))
		}
		return got
	}
	if got := strings.Join(lacking(), "\n"); !strings.Contains(got, "onlyonce_relay: EXECUTE on function "+
		"pg_control_system(), EXECUTE on function pg_current_wal_insert_lsn(), EXECUTE on function "+
		"pg_current_wal_lsn(), EXECUTE on function pg_walfile_name(pg_lsn)") ||
		!strings.Contains(got, "onlyonce_app: EXECUTE on function pg_control_system()\n") {
		t.Errorf("the roles lack:\n%s", got)
	}
	if _, err := preflight.Check(t.Context(), c.as("payments"), preflight.Relay); err == nil ||
		!strings.Contains(err.Error(), "grant execute on function pg_catalog.pg_control_system() to payments") {
		t.Errorf("%v", err)
	}
	c.runFile()
	if got := strings.Join(lacking(), "\n"); strings.Contains(got, "EXECUTE") {
		t.Errorf("after docs/roles.sql the roles lack:\n%s", got)
	}
	for login, roles := range map[string][]preflight.Role{"stock": {preflight.App}, "payments": {preflight.Relay, preflight.Standbys}} {
		if warnings, err := preflight.Check(t.Context(), c.as(login), roles...); err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, %v", login, warnings, err)
		}
	}
}
