// Run starts Postgres and Kafka for one command.
//
//	go run ./test/devenv/run [-postgres] [-postgres-version N] [-kafka] [-require-real] -- command args...
//
// The command gets ONLYONCE_POSTGRES_URL and ONLYONCE_KAFKA_BROKERS; its exit status becomes ours.
// For example "go test ./..." below it uses one server of each for all packages, instead of one for
// each package. A Postgres that is started here has fsync off. Standard error says which server was
// taken and why. The servers end with the command, and also if this program is interrupted or
// killed.
//
// Exit status 2 means that what was asked for is not available, or a mistake in the command line.
// Without -require-real, -kafka goes on without the variable if there is no real broker: the tests
// that need one then skip, or fail if CI=true.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stderr))
}

const statusEnvironment = 2

func run(args []string, stderr io.Writer) int {
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	fs.SetOutput(stderr)
	postgres := fs.Bool("postgres", false, "find or start Postgres")
	version := fs.String("postgres-version",
		"",
		"major version of Postgres to fetch and start ("+strings.Join(devenv.PostgresVersions(), ", ")+"); implies -postgres")
	kafka := fs.Bool("kafka", false, "find or start a real Kafka broker")
	requireReal := fs.Bool("require-real", false, "with -kafka: exit 2 where there is no real broker")
	fs.Usage = func() {
		_, _ = fmt.Fprintln(stderr, "usage: run [-postgres] [-postgres-version N] [-kafka] [-require-real] -- command args...")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return statusEnvironment
	}
	*postgres = *postgres || *version != ""
	if fs.NArg() == 0 || (!*postgres && !*kafka) {
		fs.Usage()
		return statusEnvironment
	}

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	started := make(chan error, 1)
	env := &environment{stderr: stderr, version: *version}
	go func() { started <- env.start(ctx, *postgres, *kafka, *requireReal) }()
	var err error
	select {
	case err = <-started:
	case s := <-signals:
		cancel()
		err = errors.Join(fmt.Errorf("interrupted by %v", s), <-started)
	}
	status := statusEnvironment
	if err == nil {
		status, err = command(fs.Args(), env.vars, signals)
	}
	for _, err := range []error{err, env.stop()} {
		if err != nil {
			_, _ = fmt.Fprintln(stderr, "devenv/run:", err)
			status = max(status, 1)
		}
	}
	return status
}

// environment is what was started, and the variables that lead to it.
type environment struct {
	stderr  io.Writer
	version string // of Postgres; empty: any
	vars    []string
	stops   []func() error
}

func (e *environment) start(ctx context.Context, postgres, kafka, requireReal bool) error {
	o := devenv.Options{
		Log:              func(line string) { _, _ = fmt.Fprintln(e.stderr, line) },
		PostgresVersion:  e.version,
		PostgresSettings: devenv.ThrowawaySettings(),
	}
	if postgres {
		p, err := devenv.StartPostgres(ctx, o)
		if err != nil {
			return err
		}
		e.stops = append(e.stops, p.Stop)
		e.vars = append(e.vars, devenv.EnvPostgresURL+"="+p.URL)
	}
	if kafka {
		k, err := devenv.StartKafka(ctx, o)
		switch {
		case err == nil:
			e.stops = append(e.stops, k.Stop)
			e.vars = append(e.vars, devenv.EnvKafkaBrokers+"="+strings.Join(k.Brokers, ","))
		case requireReal || ctx.Err() != nil || os.Getenv(devenv.EnvKafkaBrokers) != "":
			return err
		default:
			_, _ = fmt.Fprintf(e.stderr, "kafka: no real broker, going on without %s: %s\n",
				devenv.EnvKafkaBrokers, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	return nil
}

func (e *environment) stop() error {
	var errs []error
	for _, stop := range e.stops {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// command runs the command and returns its exit status, 128 plus the signal's
// number when a signal ended it, as a shell would.
func command(argv, vars []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), vars...)
	cmd.Stdin = os.Stdin
	cmd.Stdout = os.Stdout
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return statusEnvironment, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its result is read from ProcessState
	}()
	var late <-chan time.Time
	for {
		select {
		case <-ended:
			return exitStatus(cmd.ProcessState), nil
		case s := <-signals:
			if s != os.Interrupt {
				_ = cmd.Process.Signal(s)
				continue
			}
			// Ctrl-C reaches the command as well, and two of them make some
			// programs give up their own cleanup. An interrupt sent to this
			// process alone does not: so pass it on, but late.
			late = time.After(time.Second)
		case <-late:
			_ = cmd.Process.Signal(os.Interrupt)
		}
	}
}

func exitStatus(st *os.ProcessState) int {
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return st.ExitCode()
}
