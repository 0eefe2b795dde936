package devenv

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

// ErrNoRabbitMQ says that the program is not on this machine.
var ErrNoRabbitMQ = errors.New("devenv: no rabbitmq-server (Debian: apt-get install rabbitmq-server)")

// RabbitMQ is a node of its own on this machine, which keeps its data through Kill.
type RabbitMQ struct {
	// Addr is its address, host:port. It stays the same over a restart. The user guest, with the
	// password guest, may do everything. The user reader, password reader, may only read.
	Addr string
	// How says in one line what was started.
	How string

	env    []string
	argv   []string
	sup    *supervise.Supervisor
	closer closer
}

// StartRabbitMQ starts a RabbitMQ on free loopback ports. It ends with this process.
func StartRabbitMQ(ctx context.Context, o Options) (*RabbitMQ, error) {
	program, err := findRabbitMQ()
	if err != nil {
		return nil, err
	}
	epmd, err := exec.LookPath("epmd")
	if err != nil {
		return nil, errors.Join(ErrNoRabbitMQ, err)
	}
	sup, err := supervise.Start(ctx, supervise.Config{Bases: o.bases(), Prefix: "onlyonce-rabbitmq-"})
	if err != nil {
		return nil, err
	}
	r := &RabbitMQ{sup: sup}
	ports, err := supervise.FreePorts(3)
	if err == nil {
		r.Addr = supervise.Loopback(ports[0])
		err = r.configure(program, epmd, ports)
	}
	if err == nil {
		err = r.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devenv: rabbitmq: %w", err), sup.Close())
	}
	r.How = fmt.Sprintf("rabbitmq: %s on %s", program, r.Addr)
	o.log("%s", r.How)
	return r, nil
}

// configure writes the node's files. Erlang's port mapper would outlive the node and be shared with
// others, so it gets one of its own, which is killed with it.
func (r *RabbitMQ) configure(program, epmd string, ports []int) error {
	dir := r.sup.Dir()
	definitions, err := json.Marshal(map[string]any{
		"vhosts": []any{map[string]any{"name": "/"}},
		"users":  []any{rabbitUser("guest"), rabbitUser("reader")},
		"permissions": []any{
			map[string]any{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
			map[string]any{"user": "reader", "vhost": "/", "configure": "^$", "write": "^$", "read": ".*"},
		},
	})
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"plugins":          "[].\n",
		"definitions.json": string(definitions),
		"rabbitmq.conf": fmt.Sprintf(
			"listeners.tcp.1 = %s\nload_definitions = %s\nlog.file = false\nlog.console = true\nlog.console.level = warning\n"+
				"raft.wal_max_size_bytes = 33554432\ndisk_free_limit.absolute = 50MB\nmax_message_size = 1048576\n",
			r.Addr,
			filepath.Join(dir, "definitions.json"),
		),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	r.env = append(
		os.Environ(),
		"HOME="+dir,
		fmt.Sprint("ERL_EPMD_PORT=", ports[1]),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_NODENAME=onlyonce@localhost",
		fmt.Sprint("RABBITMQ_DIST_PORT=", ports[2]),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE="+filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+filepath.Join(dir, "none"),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "mnesia"),
		"RABBITMQ_LOG_BASE="+filepath.Join(dir, "log"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(dir, "plugins"),
		"RUNNING_UNDER_SYSTEMD=true",
	) // or the script would stay between us and the node
	r.argv = []string{"/bin/sh", "-c", `"$0" -address 127.0.0.1 -port "$ERL_EPMD_PORT" & exec "$1"`, epmd, program}
	return nil
}

// rabbitUser describes a user whose password is the name.
func rabbitUser(name string) map[string]any {
	salt := "salt" // RabbitMQ's hashes begin with four bytes of it
	sum := sha256.Sum256([]byte(salt + name))
	return map[string]any{"name": name, "tags": "", "hashing_algorithm": "rabbit_password_hashing_sha256",
		"password_hash": base64.StdEncoding.EncodeToString(append([]byte(salt), sum[:]...))}
}

// Restart starts it again after Kill, on its data, and returns when it answers.
func (r *RabbitMQ) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
	defer cancel()
	srv, err := r.sup.StartServer(ctx, supervise.Command{Stop: supervise.StopKill, Argv: r.argv, Env: r.env})
	if err != nil {
		return err
	}
	return supervise.UntilReady(ctx, r.sup, srv, r.ping)
}

// ping sends AMQP's header, so that devenv needs no client of it, and waits for the first frame.
func (r *RabbitMQ) ping(ctx context.Context) error {
	return exchange(ctx, r.Addr, "AMQP\x00\x00\x09\x01", func(answer io.Reader) error {
		_, err := io.ReadFull(answer, make([]byte, 1))
		return err
	})
}

// URL is its address for a client that connects as a user whose password is the name.
func (r *RabbitMQ) URL(user string) string {
	return fmt.Sprintf("amqp://%s:%s@%s/", user, user, r.Addr)
}

// Kept reports whether the server has written down a quorum queue that was declared. It does so
// half a second later, and SIGKILL before that loses the queue with its messages.
func (r *RabbitMQ) Kept(queue string) bool {
	names, err := filepath.Glob(filepath.Join(r.sup.Dir(), "mnesia", "*", "quorum", "*", "names.dets"))
	if err != nil || len(names) != 1 {
		return false
	}
	text, err := os.ReadFile(names[0])
	return err == nil && bytes.Contains(text, []byte("%2F_"+queue))
}

// Ctl runs rabbitmqctl on the node, for what AMQP has no question or order, and returns its output.
func (r *RabbitMQ) Ctl(ctx context.Context, args ...string) (string, error) {
	ctl := filepath.Join(filepath.Dir(r.argv[len(r.argv)-1]), "rabbitmqctl")
	return r.sup.Run(ctx, supervise.Command{Env: r.env, Argv: append([]string{ctl, "--quiet"}, args...)})
}

// Kill kills it with SIGKILL.
func (r *RabbitMQ) Kill(ctx context.Context) error { return r.sup.Kill(ctx) }

// Stop stops it for good. It may be called more than once.
func (r *RabbitMQ) Stop() error { return r.closer.close(r.sup.Close) }

// findRabbitMQ prefers Debian's script to its wrapper in PATH, which changes the user and has
// directories of its own.
func findRabbitMQ() (string, error) {
	const debian = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	if _, err := os.Stat(debian); err == nil {
		return debian, nil
	}
	path, err := exec.LookPath("rabbitmq-server")
	if err != nil {
		return "", ErrNoRabbitMQ
	}
	return path, nil
}
