package preflight

import (
	"errors"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// What no test server is, or should be, is judged from what it would answer (S1).
func TestJudgement(t *testing.T) {
	t.Parallel()
	good := serverSettings{
		user:           "stock",
		versionNumber:  150004,
		version:        "15.4",
		isolation:      "read committed",
		synchronous:    "on",
		fsync:          true,
		fullPageWrites: true,
		encoding:       "UTF8",
	}
	for name, c := range map[string]struct {
		change         func(*serverSettings)
		fault, warning string
	}{
		"good": {func(*serverSettings) {}, "", ""},
		"standby": {func(s *serverSettings) {
			s.standby = true
			s.readOnly = true
		}, "is a standby", ""},
		"read-only": {func(s *serverSettings) { s.readOnly = true }, "transactions of stock are read-only", ""},
		"old": {
			func(s *serverSettings) {
				s.versionNumber = 130021
				s.version = "13.21"
			},
			"PostgreSQL 13.21 is older than 14",
			"",
		},
		"no fsync": {func(s *serverSettings) {
			s.fsync = false
			s.fullPageWrites = false
		}, "", "fsync is off"},
		"torn pages":       {func(s *serverSettings) { s.fullPageWrites = false }, "", "full_page_writes is off"},
		"asynchronous":     {func(s *serverSettings) { s.synchronous = "off" }, "", "synchronous_commit is off"},
		"local":            {func(s *serverSettings) { s.synchronous = "local" }, "", ""},
		"stricter default": {func(s *serverSettings) { s.isolation = "serializable" }, "", "default_transaction_isolation is serializable"},
	} {
		s := good
		c.change(&s)
		fault := errors.Join(s.faults()...)
		wrong := (c.fault == "") != (fault == nil) ||
			(fault != nil && !strings.Contains(fault.Error(), c.fault)) ||
			len(s.faults()) > 1
		if wrong {
			t.Errorf("%s: fault %v, want %q", name, fault, c.fault)
		}
		warning := strings.Join(s.warnings(), "\n")
		if (c.warning == "") != (warning == "") || !strings.Contains(warning, c.warning) || len(s.warnings()) > 1 {
			t.Errorf("%s: warning %q, want %q", name, warning, c.warning)
		}
	}
}

func TestLeftPreparedTransactions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Server(t, map[string]string{"max_prepared_transactions": "2"}))
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	db := unnamedQuerier{conn}
	if got, err := preparedWarnings(t.Context(), db, 0); err != nil || got != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, sql := range []string{"begin", "create table t ()", "prepare transaction 'it''s left'"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	got, err := preparedWarnings(t.Context(), db, 0)
	good := err == nil &&
		len(got) == 1 &&
		strings.Contains(got[0], `'it''s left' of postgres`) &&
		strings.Contains(got[0], "ROLLBACK PREPARED")
	if !good {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := preparedWarnings(t.Context(), db, stalePrepared); err != nil || got != nil {
		t.Errorf("one that was made just now is told of: %v, %v", got, err)
	}
}
