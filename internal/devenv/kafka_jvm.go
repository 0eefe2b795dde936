package devenv

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/devenv/supervise"
)

//go:embed kafka-log4j2.properties
var kafkaLog4j []byte

// jvmKafka is one real broker, which is its own controller, on a JVM below a
// supervisor.
type jvmKafka struct {
	sup      *supervise.Supervisor
	java     string
	classes  string
	settings map[string]string
	port     int                              // clients
	ctrlPort int                              // controller
	srv      atomic.Pointer[supervise.Server] // the last start
}

func startJVMKafka(ctx context.Context, o Options, why string) (*Kafka, error) {
	java, javaVersion, err := findJava(ctx)
	if err != nil {
		return nil, err
	}
	sup, err := supervise.Start(ctx, supervise.Config{Bases: o.tempBases(), Prefix: "onlyonce-kafka-"})
	if err != nil {
		return nil, err
	}
	j := &jvmKafka{sup: sup, java: java, settings: o.KafkaSettings}
	var from string
	if j.classes, from, err = kafkaClasses(ctx, o, sup, java); err == nil {
		err = j.create(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, sup.Close())
	}
	return &Kafka{
		Brokers: j.brokers(), Real: true, Kind: KindLocal,
		How: fmt.Sprintf("kafka: real broker from %s on Java %d, port %d (%s)", from, javaVersion, j.port, why),
		Dir: sup.Dir(), jvm: j, stop: sup.Close,
	}, nil
}

func (j *jvmKafka) brokers() []string { return []string{loopback(j.port)} }

func (j *jvmKafka) create(ctx context.Context) error {
	for _, dir := range []string{"conf", "data"} {
		if err := os.Mkdir(filepath.Join(j.sup.Dir(), dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(j.conf("log4j2.properties"), kafkaLog4j, 0o644); err != nil {
		return err
	}
	// What StorageTool random-uuid would print, without the half second of
	// one more JVM.
	id := uuid.New()
	clusterID := base64.RawURLEncoding.EncodeToString(id[:])
	if strings.HasPrefix(clusterID, "-") { // would be read as an option
		clusterID = "A" + clusterID[1:]
	}
	for try := 0; ; try++ {
		ports, err := freePorts(2)
		if err != nil {
			return err
		}
		j.port, j.ctrlPort = ports[0], ports[1]
		if err := j.writeProperties(); err != nil {
			return err
		}
		out, err := j.sup.Run(ctx, supervise.Command{
			Argv: j.argv("kafka.tools.StorageTool", "format", "-t", clusterID, "-c", j.conf("server.properties"), "--ignore-formatted"),
		})
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		err = j.start(ctx)
		// Between finding a port free and the broker's bind somebody else may
		// take it.
		if err == nil || try == 2 || !strings.Contains(j.sup.LogTail("server.log"), "Address already in use") {
			return err
		}
	}
}

// start starts the broker and waits until groups work.
func (j *jvmKafka) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, kafkaStartTimeout)
	defer cancel()
	srv, err := j.sup.StartServer(ctx, supervise.Command{
		Argv: j.argv("kafka.Kafka", j.conf("server.properties")),
		Stop: supervise.StopKill, // its own way takes seconds
	})
	if err != nil {
		return err
	}
	j.srv.Store(srv)
	return untilReady(ctx, j.sup, srv, func(ctx context.Context) error { return groupsWork(ctx, j.brokers()) })
}

func (j *jvmKafka) conf(name string) string { return filepath.Join(j.sup.Dir(), "conf", name) }

func (j *jvmKafka) argv(class string, args ...string) []string {
	return append([]string{
		j.java, "-Xmx512m", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true",
		"-Dlog4j2.configurationFile=" + j.conf("log4j2.properties"),
		"-cp", j.classes, class,
	}, args...)
}

func (j *jvmKafka) writeProperties() error {
	client, ctrl := loopback(j.port), loopback(j.ctrlPort)
	p := brokerSettings(j.settings)
	p["controller.quorum.voters"] = "1@" + ctrl
	p["listeners"] = "PLAINTEXT://" + client + ",CONTROLLER://" + ctrl
	p["advertised.listeners"] = "PLAINTEXT://" + client
	p["log.dirs"] = filepath.Join(j.sup.Dir(), "data")
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", name, p[name])
	}
	return os.WriteFile(j.conf("server.properties"), []byte(b.String()), 0o644)
}
