package devenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

// ErrNoRedis says that the program is not on this machine.
var ErrNoRedis = errors.New("devenv: no redis-server or valkey-server in PATH (Debian: apt-get install redis-server)")

// Redis is a server without persistence: what it holds is gone with it.
type Redis struct {
	// Addr is its address, host:port. It stays the same over a restart.
	Addr string
	// How says in one line what was started.
	How string

	program string
	user    *supervise.User
	sup     *supervise.Supervisor
	closer  closer
}

// StartRedis starts a Redis on a free loopback port. It ends with this process.
func StartRedis(ctx context.Context, o Options) (*Redis, error) {
	program, err := findRedis()
	if err != nil {
		return nil, err
	}
	user, err := supervise.ServerUser()
	if err != nil {
		return nil, err
	}
	sup, err := supervise.Start(ctx, supervise.Config{Bases: o.bases(), Prefix: "onlyonce-redis-", Owner: user})
	if err != nil {
		return nil, err
	}
	r := &Redis{program: program, user: user, sup: sup}
	for try := 0; ; try++ {
		var ports []int
		if ports, err = supervise.FreePorts(1); err == nil {
			r.Addr = supervise.Loopback(ports[0])
			err = r.Restart(ctx)
		}
		if err == nil || try == 2 || !strings.Contains(sup.LogTail("server.log"), "Address already in use") {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devenv: redis: %w", err), sup.Close())
	}
	r.How = fmt.Sprintf("redis: %s on %s", program, r.Addr)
	o.log("%s", r.How)
	return r, nil
}

// Restart starts it again after Kill, empty, and returns when it answers.
func (r *Redis) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
	defer cancel()
	_, port, err := net.SplitHostPort(r.Addr)
	if err != nil {
		return err
	}
	srv, err := r.sup.StartServer(ctx, supervise.Command{As: r.user, Stop: supervise.StopKill, Argv: []string{
		r.program,
		"--bind",
		"127.0.0.1",
		"--port",
		port,
		"--dir",
		r.sup.Dir(),
		"--save",
		"",
		"--appendonly",
		"no",
		"--maxclients",
		strconv.Itoa(200),
	}})
	if err != nil {
		return err
	}
	return supervise.UntilReady(ctx, r.sup, srv, r.ping)
}

// ping asks in Redis's own protocol, so that devenv needs no client of it.
func (r *Redis) ping(ctx context.Context) error {
	return exchange(ctx, r.Addr, "PING\r\n", func(answer io.Reader) error {
		line, err := bufio.NewReader(answer).ReadString('\n')
		if err == nil && strings.TrimSpace(line) != "+PONG" {
			err = fmt.Errorf("it answered %q", line)
		}
		return err
	})
}

// exchange connects to a server, sends hello, and reads what it answers.
func exchange(ctx context.Context, addr, hello string, read func(answer io.Reader) error) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, has := ctx.Deadline(); has {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(conn, hello); err != nil {
		return err
	}
	return read(conn)
}

// Kill kills it with SIGKILL.
func (r *Redis) Kill(ctx context.Context) error { return r.sup.Kill(ctx) }

// Pause suspends it (SIGSTOP): its connections stay open, and the system goes on accepting new
// ones. Linux only.
func (r *Redis) Pause(ctx context.Context) error { return r.sup.Pause(ctx) }

// Continue lets it go on after Pause.
func (r *Redis) Continue(ctx context.Context) error { return r.sup.Continue(ctx) }

// Stop stops it for good. It may be called more than once.
func (r *Redis) Stop() error { return r.closer.close(r.sup.Close) }

func findRedis() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoRedis
}
