package devenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv/supervise"
)

// localPostgres is a cluster in a temporary directory, below a supervisor.
type localPostgres struct {
	sup      *supervise.Supervisor
	bin      string
	user     *supervise.User
	port     int
	settings map[string]string
	srv      atomic.Pointer[supervise.Server] // the last start
	killed   atomic.Bool                      // and not restarted
}

func startLocalPostgres(ctx context.Context, o Options, why string) (*Postgres, error) {
	bin, err := findPostgres()
	if err != nil {
		return nil, err
	}
	return startCluster(ctx, o, KindLocal, bin, why)
}

// startCluster makes a cluster with the programs in bin and starts it.
func startCluster(ctx context.Context, o Options, kind, bin, why string) (*Postgres, error) {
	user, err := serverUser()
	if err != nil {
		return nil, err
	}
	sup, err := supervise.Start(ctx, supervise.Config{Bases: o.tempBases(), Prefix: "onlyonce-pg-", Owner: user})
	if err != nil {
		return nil, err
	}
	l := &localPostgres{sup: sup, bin: bin, user: user, settings: o.PostgresSettings}
	version, err := l.create(ctx)
	if err != nil {
		return nil, errors.Join(err, sup.Close())
	}
	as := ""
	if user != nil {
		as = " as " + user.Name
	}
	return &Postgres{
		URL:  l.url(),
		Kind: kind, Version: version,
		How: fmt.Sprintf("postgres: %s, %s server from %s on port %d%s (%s)", version, kind, bin, l.port, as, why),
		Dir: sup.Dir(), local: l, stop: l.stop,
	}, nil
}

func (l *localPostgres) kill(ctx context.Context) error {
	l.killed.Store(true)
	return l.sup.Kill(ctx)
}

// stop starts a killed server first: only the next start on the same data removes
// the shared memory that a killed one leaves to the system.
func (l *localPostgres) stop() error {
	if l.killed.Load() {
		_, _ = l.start(context.Background()) // bounded; Close reports what matters
	}
	return l.sup.Close()
}

func (l *localPostgres) url() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", l.port)
}

func (l *localPostgres) data() string { return filepath.Join(l.sup.Dir(), "data") }

func (l *localPostgres) create(ctx context.Context) (version string, err error) {
	out, err := l.sup.Run(ctx, supervise.Command{
		// The C locale is there on every machine. --no-sync: a cluster that
		// was never used has nothing to lose; the server itself does sync.
		Argv: []string{filepath.Join(l.bin, exeName("initdb")), "-D", l.data(), "-U", "postgres", "-A", "trust",
			"-E", "UTF8", "--locale=C", "--no-sync"},
		Env: l.env(), As: l.user,
	})
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return l.startAnywhere(ctx)
}

// startAnywhere starts the server on a free port.
func (l *localPostgres) startAnywhere(ctx context.Context) (version string, err error) {
	// Another process may take the port between the check that it is free and the server's bind.
	for try := 0; ; try++ {
		ports, err := freePorts(1)
		if err != nil {
			return "", err
		}
		l.port = ports[0]
		version, err := l.start(ctx)
		if err == nil || try == 2 || !strings.Contains(l.sup.LogTail("server.log"), "could not bind") {
			return version, err
		}
	}
}

// start starts the server on l.port and waits until it answers.
func (l *localPostgres) start(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(l.port),
		"unix_socket_directories": "",
		"max_connections":         "200",
	}
	maps.Copy(settings, l.settings)
	argv := []string{filepath.Join(l.bin, exeName("postgres")), "-D", l.data()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		argv = append(argv, "-c", name+"="+settings[name])
	}
	srv, err := l.sup.StartServer(ctx, supervise.Command{Argv: argv, Env: l.env(), As: l.user, Stop: supervise.StopInterrupt})
	if err != nil {
		return "", err
	}
	l.srv.Store(srv)
	l.killed.Store(false)
	err = untilReady(ctx, l.sup, srv, func(ctx context.Context) error {
		version, err = postgresVersion(ctx, l.url())
		return err
	})
	return version, err
}

// env is the environment for the server's programs: without PG* variables, which
// change what they do.
func (l *localPostgres) env() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG")
	})
}

// untilReady polls a started server until it answers, exits or ctx ends.
func untilReady(ctx context.Context, sup *supervise.Supervisor, srv *supervise.Server, ask func(context.Context) error) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		askCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := ask(askCtx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-srv.Exited():
			return fmt.Errorf("the server ended (%s) before it answered; the end of its log:\n%s",
				srv.Status(), sup.LogTail("server.log"))
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting after %v: the server did not answer: %w (last try: %w); the end of its log:\n%s",
				// test/retest looks for the first words.
				startTimeout, ctx.Err(), err, sup.LogTail("server.log"))
		case <-tick.C:
		}
	}
}

// findPostgres returns the newest directory with server programs. Debian keeps
// them out of PATH.
func findPostgres() (dir string, err error) {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		// A link in PATH (Debian's or a person's) leads to the directory of initdb as well.
		if target, err := filepath.EvalSymlinks(path); err == nil {
			path = target
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	packaged, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // fails on a bad pattern only
	dirs = append(dirs, packaged...)
	best := -1
	for _, d := range dirs {
		if v := postgresMajor(d); v > best {
			dir, best = d, v
		}
	}
	if best < 0 {
		return "", errors.New("no server programs (initdb and postgres) in PATH or /usr/lib/postgresql/*/bin")
	}
	return dir, nil
}

// postgresMajor is the major version of the programs in a directory, or -1 when
// they are not complete or do not run.
func postgresMajor(bin string) int {
	if _, err := os.Stat(filepath.Join(bin, exeName("initdb"))); err != nil {
		return -1
	}
	out, err := exec.Command(filepath.Join(bin, exeName("postgres")), "--version").Output()
	if err != nil {
		return -1
	}
	// "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "... 18beta1"
	fields := strings.Fields(string(out))
	if len(fields) < 3 {
		return -1
	}
	digits := strings.IndexFunc(fields[2], func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(fields[2])
	}
	major, err := strconv.Atoi(fields[2][:digits])
	if err != nil {
		return -1
	}
	return major
}

func exeName(name string) string {
	if runtime.GOOS == "windows" {
		return name + ".exe"
	}
	return name
}
