package devenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

// embedded has the version that is fetched for each major one.
var embedded = map[string]embeddedpostgres.PostgresVersion{
	"14": embeddedpostgres.V14,
	"15": embeddedpostgres.V15,
	"16": embeddedpostgres.V16,
	"17": embeddedpostgres.V17,
	"18": embeddedpostgres.V18,
}

// embeddedDefault is taken if no version is asked for.
const embeddedDefault = "18"

// PostgresVersions are the major versions that Options.PostgresVersion can ask for,
// oldest first: those that onlyonce supports.
func PostgresVersions() []string { return slices.Sorted(maps.Keys(embedded)) }

// embeddedTimeout bounds the one download of 15 MB. For example it took 3 s on the machine on which
// this was written.
const embeddedTimeout = 5 * time.Minute

// envFetch makes an execution of the program fetch the server's programs into
// the directory that it names.
const envFetch = "ONLYONCE_DEVENV_FETCH_POSTGRES"

// envFetchMajor names the version for it.
const envFetchMajor = envFetch + "_MAJOR"

// The fetch runs in a process of its own, below the supervisor: embedded-postgres
// has no way to stop a download, sets no timeouts, and leaves a file in TMPDIR.
// There all three are ours to decide.
func init() {
	dir := os.Getenv(envFetch)
	if dir == "" {
		return
	}
	if err := unpackPostgres(dir, os.Getenv(envFetchMajor)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// startEmbeddedPostgres has embedded-postgres fetch the server's programs, once,
// and then starts them as any others. It does not run the server through that
// library, which starts it as a daemon that outlives a killed process, and not
// as root.
func startEmbeddedPostgres(ctx context.Context, o Options, why string) (*Postgres, error) {
	major, err := o.postgresVersion()
	if err != nil {
		return nil, err
	}
	if major == "" {
		major = embeddedDefault
	}
	cache, err := sharedCache()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "postgres-"+string(embedded[major]))
	err = fetchOnce(ctx, dir, func(ctx context.Context, partial string) error {
		o.log("postgres: fetching PostgreSQL %s (15 MB) into %s, this once", embedded[major], dir)
		return fetchPostgres(ctx, o, major, partial)
	})
	if err != nil {
		return nil, err
	}
	return startCluster(ctx, o, KindEmbedded, filepath.Join(dir, "bin"), why)
}

// fetchPostgres runs unpackPostgres in a child process.
func fetchPostgres(ctx context.Context, o Options, major, partial string) error {
	sup, err := supervise.Start(ctx, supervise.Config{Bases: o.bases(), Prefix: "onlyonce-fetch-"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, embeddedTimeout)
	defer cancel()
	out, err := sup.Run(ctx, supervise.Command{
		Argv: []string{sup.Program()},
		Env:  append(os.Environ(), envFetch+"="+partial, envFetchMajor+"="+major, "TMPDIR="+sup.Dir()),
	})
	if err != nil && out != "" {
		err = errors.New(out) // says what the exit status does not
	}
	return errors.Join(err, sup.Close())
}

// unpackPostgres leaves the server's programs in dir/bin.
func unpackPostgres(dir, major string) error {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if ok { // what http.Get uses, and the library calls that
		transport.DialContext = (&net.Dialer{Timeout: 3 * time.Second}).DialContext
		transport.TLSHandshakeTimeout = 5 * time.Second
		transport.ResponseHeaderTimeout = 20 * time.Second
	}
	ports, err := supervise.FreePorts(1)
	if err != nil {
		return err
	}
	// The library has no call that stops after unpacking. Its Start takes a
	// data directory that has a version for one that was initialised before,
	// goes on to start a server there, and fails, because there is nothing else
	// in it: so no server ever runs here. What counts is what lies in dir
	// afterwards, and that is checked whatever Start says.
	data := filepath.Join(os.TempDir(), "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
		return err
	}
	server := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embedded[major]).
		Port(uint32(ports[0])).
		CachePath(filepath.Join(os.TempDir(), "download")).
		RuntimePath(filepath.Join(os.TempDir(), "runtime")).
		DataPath(data).
		BinariesPath(dir).
		Logger(io.Discard))
	started := server.Start()
	if started == nil {
		if err := server.Stop(); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "bin", supervise.Exe("initdb"))); err != nil {
		return fmt.Errorf("embedded-postgres: %w", started)
	}
	if err := openToOthers(dir); err != nil {
		return err
	}
	out, err := exec.Command(filepath.Join(dir, "bin", supervise.Exe("postgres")), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), " "+major+".") {
		return fmt.Errorf("the fetched postgres does not run here: %w: %s", err, out)
	}
	return nil
}

// openToOthers lets every user read and run what lies in dir, whatever the umask
// was: under root another user runs it.
func openToOthers(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		mode := st.Mode().Perm() | 0o444
		if mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
