package devenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/onlyonce/onlyonce/internal/rig/pgserver"
	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

// The environment variables of this package. Only programs and tests read them.
const (
	EnvPostgresURL  = pgserver.EnvURL
	EnvKafkaBrokers = "ONLYONCE_KAFKA_BROKERS"
	EnvForce        = "ONLYONCE_ENV"
	// EnvPostgresVersion is a major version, of those in PostgresVersions.
	EnvPostgresVersion = "ONLYONCE_POSTGRES_VERSION"
	// EnvKafkaVersion is a version of Kafka that Maven serves.
	EnvKafkaVersion = "ONLYONCE_KAFKA_VERSION"
)

// The ways to a server, as in Postgres.Kind and Kafka.Kind.
const (
	KindURL      = "url"      // Postgres: an address was given
	KindBrokers  = "brokers"  // Kafka: an address was given
	KindLocal    = "local"    // programs of this machine
	KindEmbedded = "embedded" // binaries fetched for the purpose; for Kafka the fake
	KindDocker   = "docker"
)

// Options are the same for Postgres and Kafka. The zero value is good.
type Options struct {
	// Log gets one line for the way taken and one for every way passed over.
	// Nil drops them.
	Log func(line string)
	// Dir is the directory for temporary directories. Defaults to os.TempDir, or to /tmp or
	// /var/tmp if the server's user cannot enter that. A Postgres with fsync off is in memory
	// (/dev/shm) by default, if there is room and TMPDIR is not set.
	Dir string
	// Force is local, embedded or docker, and goes before ONLYONCE_ENV.
	// Empty leaves the choice to that variable and then to the order.
	Force string
	// Own passes over the addresses in the environment: a program that kills its servers must not
	// reach another's.
	Own bool
	// Brokers is how many brokers the Kafka cluster has: 1, or 3 that keep three
	// replicas of every topic and go on when one is killed. 0 means 1. Three
	// real brokers are started on JVMs, or given; no other way has them.
	Brokers int
	// AllowFake lets StartKafka fall back to kfake in this process.
	AllowFake bool
	// PostgresVersion is a major version out of PostgresVersions, and goes before
	// ONLYONCE_POSTGRES_VERSION. It means the embedded way: what a machine has
	// installed is mostly one version. Empty means whatever is found first.
	PostgresVersion string
	// PostgresSettings are passed to the server as -c name=value, after ours,
	// when devenv starts it.
	PostgresSettings map[string]string
	// PostgresEnv is added to the server's environment, as NAME=value.
	PostgresEnv []string
	// KafkaSettings are lines of server.properties, and replace ours, when
	// devenv starts a real broker on a JVM. "listeners" come beside ours.
	KafkaSettings map[string]string
	// KafkaProperties are system properties of that JVM, as NAME=value.
	KafkaProperties []string
}

// ThrowawaySettings are for most tests; see [pgserver.Throwaway].
func ThrowawaySettings() map[string]string { return pgserver.Throwaway() }

func (o Options) log(format string, args ...any) {
	if o.Log != nil {
		o.Log(fmt.Sprintf(format, args...))
	}
}

func (o Options) brokers() int { return max(o.Brokers, 1) }

// force returns the way that was asked for, or "" for the first that works.
func (o Options) force() (string, error) {
	kind := o.Force
	from := "Options.Force"
	if kind == "" {
		kind = os.Getenv(EnvForce)
		from = EnvForce
	}
	if kind != "" && !slices.Contains([]string{KindLocal, KindEmbedded, KindDocker}, kind) {
		return "", fmt.Errorf("devenv: %s is %q; it can be local, embedded or docker", from, kind)
	}
	return kind, nil
}

// bases are the directories to try for temporary data, best first.
func (o Options) bases() []string {
	if o.Dir != "" {
		return []string{o.Dir}
	}
	return supervise.TempBases()
}

// postgresBases are those for a server's data: nil leaves them to package pgserver.
func (o Options) postgresBases() []string {
	if o.Dir != "" {
		return []string{o.Dir}
	}
	return nil
}

// way is one way to a server.
type way[T any] struct {
	kind  string
	start func(ctx context.Context, o Options, why string) (*T, error)
}

// first takes the first way that works.
func first[T any](ctx context.Context, what string, o Options, ways []way[T]) (*T, error) {
	forced, err := o.force()
	if err != nil {
		return nil, err
	}
	var reasons []error
	for _, w := range ways {
		why := "first that works"
		if forced != "" {
			if w.kind != forced {
				continue
			}
			why = "forced"
		}
		t, err := w.start(ctx, o, why)
		if err == nil {
			return t, nil
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", w.kind, err))
		if ctx.Err() != nil {
			break
		}
		if forced == "" {
			o.log("%s: not %s: %s", what, w.kind, oneLine(err))
		}
	}
	if forced != "" {
		if len(reasons) == 0 {
			return nil, fmt.Errorf("devenv: %s: %s was forced, and there is no such way here", what, forced)
		}
		return nil, fmt.Errorf("devenv: %s: %s was forced: %w", what, forced, reasons[0])
	}
	return nil, fmt.Errorf("devenv: no %s: set its address, or see to one of these: %w", what, errors.Join(reasons...))
}

// oneLine shortens an error that carries the end of a server's log to its first
// line: a person reads these lines in a row.
func oneLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// closer runs a function once and keeps its result.
type closer struct {
	once sync.Once
	err  error
}

func (c *closer) close(f func() error) error {
	c.once.Do(func() { c.err = f() })
	return c.err
}
