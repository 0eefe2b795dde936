//go:build unix

package devenv_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv"
)

func TestPostgresLocal(t *testing.T) {
	t.Parallel()
	var log lines
	p := startPostgres(t, devenv.Options{
		Log: log.log, Force: devenv.KindLocal,
		PostgresSettings: map[string]string{"max_connections": "33", "wal_level": "logical"},
	})
	if p.Kind != devenv.KindLocal || !strings.Contains(log.String(), p.How) || strings.Contains(p.How, "\n") {
		t.Errorf("kind %q, how %q, log %q", p.Kind, p.How, log.String())
	}
	for setting, want := range map[string]string{
		"max_connections": "33", "wal_level": "logical", // changed
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", // left alone
		"max_prepared_transactions": "0",
		"listen_addresses":          "127.0.0.1", "unix_socket_directories": "",
		"server_encoding": "UTF8",
	} {
		if got := mustQuery(t, p.URL, "show "+setting); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	dir := p.Dir
	pid := p.PID()
	for range 2 {
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if exists(dir) || alive(pid) {
		t.Errorf("after Stop: directory there: %t, server alive: %t", exists(dir), alive(pid))
	}
	if err := p.Restart(t.Context()); err == nil {
		t.Error("Restart after Stop reports no error")
	}
}

// T15: one variable sets the time zone of the sessions of every server that is started, and a
// server that was given must have it.
func TestT15PostgresTimezone(t *testing.T) {
	t.Setenv("ONLYONCE_TEST_TIMEZONE", "Asia/Kathmandu")
	p := startPostgres(t, devenv.Options{Force: devenv.KindLocal, Own: true})
	if got := mustQuery(t, p.URL, "show timezone"); got != "Asia/Kathmandu" {
		t.Errorf("the session's time zone is %s", got)
	}
	t.Setenv(devenv.EnvPostgresURL, p.URL)
	if _, err := devenv.StartPostgres(t.Context(), devenv.Options{}); err != nil {
		t.Error(err)
	}
	t.Setenv("ONLYONCE_TEST_TIMEZONE", "America/Los_Angeles")
	if _, err := devenv.StartPostgres(t.Context(), devenv.Options{}); err == nil {
		t.Error("a server of another time zone was taken")
	}
}

// A kill with connections open loses nothing that was committed, and what the
// killed server left in memory does not keep the next one from starting.
func TestPostgresKillRestart(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, devenv.Options{Force: devenv.KindLocal})
	mustQuery(t, p.URL, `with made as (select 1) select pg_advisory_lock(1)::text from made`)
	if got := mustQuery(t, p.URL, `show max_connections`); got != "200" {
		t.Errorf("max_connections = %s", got)
	}
	mustQuery(t, p.URL, `select lo_from_bytea(4711, 'kept')::text`)
	for range 3 {
		// A backend that is busy does not see by itself that its postmaster
		// has gone.
		busy := make(chan error, 1)
		go func() {
			_, err := query(p.URL, `select count(*)::text from generate_series(1, 100000000000)`)
			busy <- err
		}()
		eventually(t, "the long query runs", func() bool {
			return mustQuery(
				t,
				p.URL,
				`select count(*)::text from pg_stat_activity where query like '%generate_series(1%' and pid <> pg_backend_pid()`,
			) == "1"
		})
		before := p.PID()
		if err := p.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-busy; err == nil {
			t.Error("a query outlived the kill")
		}
		if _, err := query(p.URL, `select 1::text`); err == nil {
			t.Error("the killed server answers")
		}
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if p.PID() == before {
			t.Error("the same process after a restart")
		}
		if got := mustQuery(t, p.URL, `select convert_from(lo_get(4711), 'UTF8')`); got != "kept" {
			t.Errorf("after the restart: %q", got)
		}
	}
}

// A killed server leaves shared memory to the system, and Stop cleans up even if it was not
// restarted.
func TestPostgresStopAfterKill(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, devenv.Options{Force: devenv.KindLocal})
	segments, err := filepath.Glob("/dev/shm/PostgreSQL.*")
	if err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(p.PID())
	maps, err := os.ReadFile("/proc/" + pid + "/maps")
	if err != nil {
		unreachable(t, err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, s := range segments {
		if strings.Contains(string(maps), s) && exists(s) {
			t.Errorf("left behind: %s", s)
		}
	}
	if exists(p.Dir) {
		t.Error("the directory is there after Stop")
	}
}

func TestPostgresGoesWithItsProgram(t *testing.T) {
	t.Parallel()
	p := startProgram(t, "postgres", nil)
	if p.Error != "" {
		t.Fatal(p.Error)
	}
	mustQuery(t, p.URL, "select 1::text")
	p.killAndSee(t)
}

// As an ordinary user, and without a home, as many containers and services run.
func TestPostgresUnprivileged(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("we are unprivileged already: the other tests show it")
	}
	p := startProgram(t, "postgres", &syscall.Credential{Uid: 65534, Gid: 65534}, "HOME", "XDG_CACHE_HOME")
	if p.Error != "" {
		t.Fatal(p.Error)
	}
	if strings.Contains(p.How, " as ") {
		t.Errorf("changed the user: %s", p.How)
	}
	mustQuery(t, p.URL, "select 1::text")
	p.killAndSee(t)
}

// A temporary directory that only root can enter is not one for Postgres.
func TestPostgresClosedTempDir(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, "postgres", nil, "TMPDIR="+closed, "HOME")
	if p.Error != "" || strings.HasPrefix(p.Dir, closed) {
		t.Errorf("%+v", p.started)
	}
	_, err := devenv.StartPostgres(t.Context(), devenv.Options{Dir: closed, Force: devenv.KindLocal})
	if err == nil || !strings.Contains(err.Error(), "cannot enter "+closed) {
		t.Errorf("error %v", err)
	}
}

func TestPostgresEmbedded(t *testing.T) {
	t.Parallel()
	p, err := devenv.StartPostgres(t.Context(), devenv.Options{Force: devenv.KindEmbedded, Log: func(line string) { t.Log(line) }})
	if err != nil {
		unreachable(t, err)
	}
	if got := mustQuery(t, p.URL, "show server_version"); !strings.HasPrefix(got, "18.") || p.Kind != devenv.KindEmbedded {
		t.Errorf("version %s, kind %s", got, p.Kind)
	}
	dir := p.Dir
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if exists(dir) {
		t.Error("the directory is there after Stop")
	}
}

// Nothing is fetched yet and the registry is out of reach.
func TestPostgresEmbeddedUnreachable(t *testing.T) {
	t.Parallel()
	as := &syscall.Credential{Uid: 65534, Gid: 65534} // whose cache is its own
	if os.Geteuid() != 0 {
		as = nil
	}
	tmp := openTempDir(t)
	p := startProgram(t, "postgres", as, "HOME", "XDG_CACHE_HOME", "TMPDIR="+tmp,
		devenv.EnvForce+"=embedded", "HTTPS_PROXY=http://127.0.0.1:1", "https_proxy", "NO_PROXY", "no_proxy")
	if want := "unable to connect to https://repo1.maven.org"; !strings.Contains(p.Error, want) {
		t.Errorf("error %q, want %q in it", p.Error, want)
	}
	left, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if !strings.HasPrefix(e.Name(), "onlyonce-cache-") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

// openTempDir is a directory that every user can use.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "onlyonce-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}
