package preflight_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// S1: a good database gives neither fault nor warning, to consumers and relays, directly and
// through PgBouncer.
func TestS1GoodDatabase(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, nil) // durable, as the shared one is not
	bouncer := pgtest.PgBouncer(t, url, 1)
	for name, address := range map[string]string{"direct": url, "exec": bouncer.Exec(), "cache_describe": bouncer.Mode("cache_describe")} {
		for _, as := range []preflight.Role{preflight.App, preflight.Relay} {
			warnings, err := preflight.Check(t.Context(), pgtest.Pool(t, address), as)
			if err != nil || len(warnings) > 0 {
				t.Errorf("%s: %v, %v", name, warnings, err)
			}
		}
	}
}

// S1: what is wrong with a session or a schema is said, all at once.
func TestS1FaultsAndWarnings(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, nil) // durable, as the shared one is not
	if _, err := pgtest.Pool(t, url).Exec(t.Context(), `create database empty`); err != nil {
		t.Fatal(err)
	}
	empty := strings.Replace(url, "/postgres?", "/empty?", 1)
	for name, c := range map[string]struct {
		url      string
		faults   []string
		warnings []string
	}{
		"settings": {
			url + "&synchronous_commit=off&default_transaction_isolation=serializable",
			nil,
			[]string{"synchronous_commit is off", "default_transaction_isolation is serializable"},
		},
		"read-only": {url + "&default_transaction_read_only=on", []string{"transactions of postgres are read-only"}, nil},
		"two": {
			empty + "&default_transaction_read_only=on",
			[]string{"are read-only", "there is no schema onlyonce in this database: run `onlyonce migrate`"},
			nil,
		},
		"pooler": {pgtest.PgBouncer(t, url, 2).Mode("cache_statement"), nil, []string{"default_query_exec_mode=exec"}},
	} {
		warnings, err := preflight.Check(t.Context(), pgtest.Pool(t, c.url), preflight.App)
		if (err != nil) != (len(c.faults) > 0) || len(warnings) != len(c.warnings) {
			t.Errorf("%s: %v, %v", name, warnings, err)
			continue
		}
		for _, want := range c.faults {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", name, err, want)
			}
		}
		for i, want := range c.warnings {
			if !strings.Contains(warnings[i], want) {
				t.Errorf("%s: %q, want %q in it", name, warnings[i], want)
			}
		}
		if name == "two" && !errors.Is(err, migrations.ErrSchema) {
			t.Errorf("%v is not ErrSchema", err)
		}
	}
}

// S1: a standby is named as such also to sessions in which it runs no statement at all.
func TestS1Standby(t *testing.T) {
	t.Parallel()
	s := pgtest.NewSwitchover(t)
	s.Begin()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		pool := s.Pool(isolation)
		if _, err := preflight.Check(t.Context(), pool, preflight.App); err == nil ||
			!strings.Contains(err.Error(), "the server is a standby") {
			t.Errorf("%s: %v", isolation, err)
		}
	}
}
