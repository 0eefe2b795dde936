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
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

//go:embed kafka-log4j2.properties
var kafkaLog4j []byte

// Node is one real broker on a JVM below a supervisor of its own. It is a
// controller too: with three, the quorum outlives any one of them.
type Node struct {
	ID int
	// Addr is the address for clients.
	Addr string

	sup      *supervise.Supervisor
	java     string
	classes  string
	settings map[string]string
	props    []string // of the JVM
	cluster  *Kafka
	ctrlAddr string
	srv      atomic.Pointer[supervise.Server] // the last start
}

// Kill kills the broker with SIGKILL. Its data stays for Restart.
func (n *Node) Kill(ctx context.Context) error { return n.sup.Kill(ctx) }

// Restart starts a killed broker on the same ports and data. It returns when the broker answers,
// its group coordinator works, and it is in sync for each replica that it holds, so that the next
// one can be killed.
func (n *Node) Restart(ctx context.Context) error { return n.start(ctx) }

// Pause suspends the broker (SIGSTOP): clients keep their connections and get no answer. Linux
// only.
func (n *Node) Pause(ctx context.Context) error { return n.sup.Pause(ctx) }

// Continue lets a paused broker go on.
func (n *Node) Continue(ctx context.Context) error { return n.sup.Continue(ctx) }

// PID is its process id.
func (n *Node) PID() int { return n.srv.Load().PID }

// Dir is its directory, with data/ and server.log.
func (n *Node) Dir() string { return n.sup.Dir() }

func startJVMKafka(ctx context.Context, o Options, why string) (*Kafka, error) {
	java, javaVersion, err := findJava(ctx)
	if err != nil {
		return nil, err
	}
	k := &Kafka{Real: true, Kind: KindLocal}
	k.stop = func() error { return k.each(func(n *Node) error { return n.sup.Close() }) }
	var classes, from string
	for id := 1; id <= o.brokers() && err == nil; id++ {
		var sup *supervise.Supervisor
		if sup, err = supervise.Start(ctx, supervise.Config{Bases: o.bases(), Prefix: "onlyonce-kafka-"}); err != nil {
			break
		}
		if id == 1 {
			classes, from, err = kafkaClasses(ctx, o, sup, java)
		}
		k.Nodes = append(k.Nodes, &Node{
			ID:       id,
			sup:      sup,
			java:     java,
			classes:  classes,
			settings: o.KafkaSettings,
			props:    o.KafkaProperties,
			cluster:  k,
		})
	}
	if err == nil {
		err = k.create(ctx)
	}
	if err != nil {
		if len(k.Nodes) > 0 {
			err = errors.Join(err, k.stop())
		}
		return nil, err
	}
	what := "real broker"
	ports := "port"
	if len(k.Nodes) > 1 {
		what = fmt.Sprintf("%d real brokers", len(k.Nodes))
		ports = "ports"
	}
	for _, n := range k.Nodes {
		k.Brokers = append(k.Brokers, n.Addr)
		ports += " " + n.Addr[strings.LastIndexByte(n.Addr, ':')+1:]
	}
	k.Dir = k.Nodes[0].Dir()
	k.How = fmt.Sprintf("kafka: %s from %s on Java %d, %s (%s)", what, from, javaVersion, ports, why)
	return k, nil
}

// create formats the brokers' storage and starts them.
func (k *Kafka) create(ctx context.Context) error {
	// What StorageTool random-uuid would print, without the half second of
	// one more JVM.
	random := uuid.New()
	clusterID := base64.RawURLEncoding.EncodeToString(random[:])
	if strings.HasPrefix(clusterID, "-") { // would be read as an option
		clusterID = "A" + clusterID[1:]
	}
	if err := k.each((*Node).makeDirs); err != nil {
		return err
	}
	for try := 0; ; try++ {
		ports, err := supervise.FreePorts(2 * len(k.Nodes))
		if err != nil {
			return err
		}
		for i, n := range k.Nodes {
			n.Addr, n.ctrlAddr = supervise.Loopback(ports[2*i]), supervise.Loopback(ports[2*i+1])
		}
		err = k.each(func(n *Node) error { return errors.Join(n.writeProperties(), n.format(ctx, clusterID)) })
		if err != nil {
			return err
		}
		err = k.each(func(n *Node) error { return n.start(ctx) })
		// Another process may take the port between the check that it is free and the broker's
		// bind.
		taken := func(n *Node) bool { return strings.Contains(n.sup.LogTail("server.log"), "Address already in use") }
		if err == nil || try == 2 || !slices.ContainsFunc(k.Nodes, taken) {
			return err
		}
		_ = k.each(func(n *Node) error { return n.Kill(ctx) }) // of those that did start
	}
}

func (n *Node) makeDirs() error {
	for _, dir := range []string{"conf", "data"} {
		if err := os.Mkdir(filepath.Join(n.Dir(), dir), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(n.conf("log4j2.properties"), kafkaLog4j, 0o644)
}

func (n *Node) format(ctx context.Context, clusterID string) error {
	out, err := n.sup.Run(ctx, supervise.Command{
		Argv: n.argv("kafka.tools.StorageTool", "format", "-t", clusterID, "-c", n.conf("server.properties"), "--ignore-formatted"),
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// start starts the broker and waits until it is ready.
func (n *Node) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
	defer cancel()
	srv, err := n.sup.StartServer(ctx, supervise.Command{
		Argv: n.argv("kafka.Kafka", n.conf("server.properties")),
		Stop: supervise.StopKill, // its own way takes seconds
	})
	if err != nil {
		return err
	}
	n.srv.Store(srv)
	return supervise.UntilReady(ctx, n.sup, srv, n.ready)
}

// ready asks this broker, and no other of the cluster, whether it takes part again.
func (n *Node) ready(ctx context.Context) error {
	return withAdmin([]string{n.Addr}, func(adm *kadm.Client) error {
		meta, err := adm.BrokerMetadata(ctx)
		if err != nil {
			return err
		}
		if !slices.Contains(meta.Brokers.NodeIDs(), int32(n.ID)) {
			return fmt.Errorf("broker %d is not yet one of the cluster", n.ID)
		}
		if err := coordinates(ctx, adm); err != nil || len(n.cluster.Nodes) == 1 {
			return err
		}
		topics, err := adm.ListTopicsWithInternal(ctx)
		if err != nil {
			return err
		}
		for _, t := range topics {
			for _, p := range t.Partitions {
				if slices.Contains(p.Replicas, int32(n.ID)) && !slices.Contains(p.ISR, int32(n.ID)) {
					return fmt.Errorf("broker %d is not yet in sync for %s/%d", n.ID, t.Topic, p.Partition)
				}
			}
		}
		return nil
	})
}

func (n *Node) conf(name string) string { return filepath.Join(n.Dir(), "conf", name) }

func (n *Node) argv(class string, args ...string) []string {
	argv := []string{
		n.java, "-Xmx512m", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true",
		"-Dlog4j2.configurationFile=" + n.conf("log4j2.properties"),
	}
	for _, p := range n.props {
		argv = append(argv, "-D"+p)
	}
	return append(append(argv, "-cp", n.classes, class), args...)
}

func (n *Node) writeProperties() error {
	var voters []string
	for _, v := range n.cluster.Nodes {
		voters = append(voters, fmt.Sprintf("%d@%s", v.ID, v.ctrlAddr))
	}
	p := brokerSettings(n.ID, len(voters), n.settings)
	p["controller.quorum.voters"] = strings.Join(voters, ",")
	more := ""
	if l := n.settings["listeners"]; l != "" {
		more = "," + l
	}
	p["listeners"] = "PLAINTEXT://" + n.Addr + ",CONTROLLER://" + n.ctrlAddr + more
	p["advertised.listeners"] = "PLAINTEXT://" + n.Addr + more
	p["log.dirs"] = filepath.Join(n.Dir(), "data")
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", name, p[name])
	}
	return os.WriteFile(n.conf("server.properties"), []byte(b.String()), 0o644)
}

// Java is the command that a program on the broker's class path begins with, and that path.
func (n *Node) Java() (java, classPath string) { return n.java, n.classes }
