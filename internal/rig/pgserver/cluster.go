package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

// Cluster is a cluster in a temporary directory, below a supervisor, which stops it when this
// process ends. Its methods may be called from several goroutines.
type Cluster struct {
	sup      *supervise.Supervisor
	bin      string
	user     *supervise.User
	port     int
	version  atomic.Value // string
	settings map[string]string
	extra    []string
	srv      atomic.Pointer[supervise.Server] // the last start
	killed   atomic.Bool                      // and not restarted
}

// Config configures a cluster.
type Config struct {
	// Bin is the directory of the server's programs. Required.
	Bin string
	// Bases are directories to try for the cluster's own. Defaults to supervise.TempBases, or with
	// fsync off to supervise.ThrowawayBases.
	Bases []string
	// Settings are passed to the server as -c name=value, after the package's own. Defaults to
	// none.
	Settings map[string]string
	// Env is added to the server's environment, as NAME=value. Defaults to nothing.
	Env []string
}

// Start makes a cluster and starts its server.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	c, err := prepare(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := c.create(ctx); err != nil {
		return nil, errors.Join(err, c.sup.Close())
	}
	return c, nil
}

func prepare(ctx context.Context, cfg Config) (*Cluster, error) {
	user, err := supervise.ServerUser()
	if err != nil {
		return nil, err
	}
	switch {
	case cfg.Bases != nil:
	case cfg.Settings["fsync"] == "off":
		cfg.Bases = supervise.ThrowawayBases()
	default:
		cfg.Bases = supervise.TempBases()
	}
	sup, err := supervise.Start(ctx, supervise.Config{Bases: cfg.Bases, Prefix: "onlyonce-pg-", Owner: user})
	if err != nil {
		return nil, err
	}
	return &Cluster{sup: sup, bin: cfg.Bin, user: user, settings: cfg.Settings, extra: cfg.Env}, nil
}

// String describes the cluster in a few words: where its programs are, its port and its user.
func (c *Cluster) String() string {
	as := ""
	if c.user != nil {
		as = " as " + c.user.Name
	}
	return fmt.Sprintf("server from %s on port %d%s", c.bin, c.port, as)
}

// Version is the server's, for example 17.5.
func (c *Cluster) Version() string { return c.version.Load().(string) }

// Bin is the directory of the server's programs.
func (c *Cluster) Bin() string { return c.bin }

// Port is the server's port on loopback.
func (c *Cluster) Port() int { return c.port }

// Dir is the cluster's directory. It holds data/ and server.log, and is gone after Stop.
func (c *Cluster) Dir() string { return c.sup.Dir() }

// PID is the process id of the server's first process.
func (c *Cluster) PID() int { return c.srv.Load().PID }

// LogTail returns the end of the server's log.
func (c *Cluster) LogTail() string { return c.sup.LogTail("server.log") }

// Pause suspends all of the server's processes (SIGSTOP). Linux only.
func (c *Cluster) Pause(ctx context.Context) error { return c.sup.Pause(ctx) }

// Continue lets a paused server go on.
func (c *Cluster) Continue(ctx context.Context) error { return c.sup.Continue(ctx) }

// Restart starts a killed server on the same port and data, and returns after it has recovered.
func (c *Cluster) Restart(ctx context.Context) error { return c.start(ctx) }

// Kill kills the server's processes with SIGKILL. Its data stays for Restart.
func (c *Cluster) Kill(ctx context.Context) error {
	c.killed.Store(true)
	return c.sup.Kill(ctx)
}

// Stop stops the server and removes its directory. It starts a killed server first: only the next
// start on the same data removes the shared memory that a killed one leaves to the system.
func (c *Cluster) Stop() error {
	if c.killed.Load() {
		_ = c.start(context.Background()) // bounded; Close reports what matters
	}
	return c.sup.Close()
}

// URL leads to the database postgres, as a superuser.
func (c *Cluster) URL() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", c.port)
}

func (c *Cluster) data() string { return filepath.Join(c.sup.Dir(), "data") }

func (c *Cluster) create(ctx context.Context) error {
	out, err := c.sup.Run(ctx, supervise.Command{
		// The C locale is there on every machine. --no-sync: a cluster that
		// was never used has nothing to lose; the server itself does sync.
		Argv: []string{filepath.Join(c.bin, supervise.Exe("initdb")), "-D", c.data(), "-U", "postgres", "-A", "trust",
			"-E", "UTF8", "--locale=C", "--no-sync"},
		Env: c.env(), As: c.user,
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return c.startAnywhere(ctx)
}

// startAnywhere starts the server on a free port.
func (c *Cluster) startAnywhere(ctx context.Context) error {
	// Another process may take the port between the check that it is free and the server's bind.
	for try := 0; ; try++ {
		ports, err := supervise.FreePorts(1)
		if err != nil {
			return err
		}
		c.port = ports[0]
		err = c.start(ctx)
		if err == nil || try == 2 || !strings.Contains(c.sup.LogTail("server.log"), "could not bind") {
			return err
		}
	}
}

// start starts the server on c.port and waits until it answers.
func (c *Cluster) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
	defer cancel()
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(c.port),
		"unix_socket_directories": "",
		"max_connections":         "200",
	}
	if zone := Timezone(); zone != "" {
		settings["timezone"] = zone
	}
	maps.Copy(settings, c.settings)
	argv := []string{filepath.Join(c.bin, supervise.Exe("postgres")), "-D", c.data()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		argv = append(argv, "-c", name+"="+settings[name])
	}
	srv, err := c.sup.StartServer(ctx, supervise.Command{
		Argv: argv,
		Env:  append(c.env(), c.extra...),
		As:   c.user,
		Stop: supervise.StopInterrupt,
	})
	if err != nil {
		return err
	}
	c.srv.Store(srv)
	c.killed.Store(false)
	return supervise.UntilReady(ctx, c.sup, srv, func(ctx context.Context) error {
		version, err := Version(ctx, c.URL())
		c.version.Store(version)
		return err
	})
}

// env is the environment for the server's programs: without PG* variables, which
// change what they do.
func (c *Cluster) env() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG")
	})
}

// Programs returns the newest directory with server programs. Debian keeps them out of PATH.
func Programs() (dir string, err error) {
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
			dir = d
			best = v
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
	if _, err := os.Stat(filepath.Join(bin, supervise.Exe("initdb"))); err != nil {
		return -1
	}
	out, err := exec.Command(filepath.Join(bin, supervise.Exe("postgres")), "--version").Output()
	if err != nil {
		return -1
	}
	// "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "... 18beta1"
	var by string
	var major int
	if _, err := fmt.Sscanf(string(out), "postgres %s %d", &by, &major); err != nil {
		return -1
	}
	return major
}
