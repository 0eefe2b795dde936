package devenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/onlyonce/onlyonce/internal/rig/pgserver"
	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

const (
	postgresImage = "postgres:17-alpine"
	kafkaImage    = "apache/kafka:" + defaultKafkaVersion
)

const (
	dockerProbeTimeout = 2 * time.Second
	// dockerStartTimeout bounds a start, the pull of the image included.
	dockerStartTimeout = 5 * time.Minute
)

// Stop removes the containers. After a crash testcontainers' reaper (Ryuk) removes them: it is a
// container too, and sees the connection to this process close. If it is turned off with
// TESTCONTAINERS_RYUK_DISABLED=true, a crash leaves the containers to their owner.

func startDockerPostgres(ctx context.Context, o Options, why string) (*Postgres, error) {
	if _, err := dockerHost(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dockerStartTimeout)
	defer cancel()
	// The module's own command turns fsync off.
	cmd := []string{"postgres", "-c", "max_connections=200"}
	if zone := pgserver.Timezone(); zone != "" {
		cmd = append(cmd, "-c", "timezone="+zone)
	}
	for _, name := range slices.Sorted(maps.Keys(o.PostgresSettings)) {
		cmd = append(cmd, "-c", name+"="+o.PostgresSettings[name])
	}
	c, err := postgres.Run(ctx, postgresImage, testcontainers.WithCmd(cmd...), postgres.BasicWaitStrategies())
	stop := func() error {
		if c == nil {
			return nil
		}
		return testcontainers.TerminateContainer(c)
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	url, err := c.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	version, err := pgserver.Version(ctx, url)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return &Postgres{
		URL: url, Version: version, Kind: KindDocker, stop: stop,
		How: fmt.Sprintf("postgres: %s, container %s (%s)", version, postgresImage, why),
	}, nil
}

// startDockerKafka does without testcontainers' Kafka module, whose newest
// release does not compile with the newest testcontainers-go.
func startDockerKafka(ctx context.Context, o Options, why string) (*Kafka, error) {
	host, err := dockerHost(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dockerStartTimeout)
	defer cancel()
	// A broker sends its address to clients, so the port must be known before the container is
	// made: the same number inside and outside.
	ports, err := supervise.FreePorts(1)
	if err != nil {
		return nil, err
	}
	port := strconv.Itoa(ports[0])
	broker := net.JoinHostPort(host, port)
	c, err := testcontainers.Run(ctx, kafkaImage,
		testcontainers.WithExposedPorts(port+"/tcp"),
		testcontainers.WithHostConfigModifier(func(c *container.HostConfig) {
			c.PortBindings = network.PortMap{network.MustParsePort(port + "/tcp"): {{HostPort: port}}}
		}),
		testcontainers.WithEnv(containerSettings(o.KafkaSettings, port, broker)),
		testcontainers.WithWaitStrategy(wait.ForListeningPort(port+"/tcp")),
	)
	stop := func() error { return testcontainers.TerminateContainer(c) }
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	if err := untilGroupsWork(ctx, broker); err != nil {
		return nil, errors.Join(err, stop())
	}
	return &Kafka{
		Brokers: []string{broker}, Real: true, Kind: KindDocker, stop: stop,
		How: fmt.Sprintf("kafka: real broker, container %s, port %s (%s)", kafkaImage, port, why),
	}, nil
}

// containerSettings are a broker's settings in the form that the image of Apache
// Kafka takes: node.id as KAFKA_NODE_ID.
func containerSettings(changes map[string]string, port, broker string) map[string]string {
	settings := brokerSettings(1, 1, changes)
	settings["controller.quorum.voters"] = "1@localhost:9093"
	settings["listeners"] = "PLAINTEXT://0.0.0.0:" + port + ",CONTROLLER://localhost:9093"
	settings["advertised.listeners"] = "PLAINTEXT://" + broker
	env := make(map[string]string, len(settings))
	for name, value := range settings {
		env["KAFKA_"+strings.ToUpper(strings.ReplaceAll(name, ".", "_"))] = value
	}
	return env
}

// untilGroupsWork polls until the broker answers or its start takes too long.
func untilGroupsWork(ctx context.Context, broker string) error {
	ctx, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := groupsWork(ctx, []string{broker})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the broker did not answer in time: %w (last try: %w)", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// quietDocker turns off the library's own lines: one line is ours to say.
var quietDocker = sync.OnceFunc(func() { tclog.SetDefault(tclog.NewNoopLogger()) })

// dockerHost is the host on which an engine publishes ports, or the reason why no Docker engine can
// be used. The library waits without limit for an engine that accepts and does not answer, and
// panics if it finds no socket. So the call is isolated and bounded.
func dockerHost(ctx context.Context) (string, error) {
	quietDocker()
	ctx, cancel := context.WithTimeout(ctx, dockerProbeTimeout)
	defer cancel()
	type answer struct {
		host string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				answers <- answer{err: fmt.Errorf("%v", r)}
			}
		}()
		provider, err := testcontainers.NewDockerProvider()
		if err != nil {
			answers <- answer{err: err}
			return
		}
		if err := provider.Health(ctx); err != nil {
			answers <- answer{err: err}
			return
		}
		host, err := provider.DaemonHost(ctx)
		answers <- answer{host, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			return "", fmt.Errorf("no Docker engine answers: %w", a.err)
		}
		return a.host, nil
	case <-ctx.Done():
		return "", fmt.Errorf("no Docker engine answered within %v", dockerProbeTimeout)
	}
}
