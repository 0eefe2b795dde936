package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/servers"
)

// envServer makes a copy of this program one of the API's processes.
const envServer = "ONLYONCE_PAYMENTS_SERVER"

// serverConfig is the first line of a server's standard input.
type serverConfig struct {
	Postgres string
	API      apiConfig
}

// ready is what a server writes to standard output once it serves.
type ready struct{ Address string }

// serverMain is main in a server process: it serves until standard input ends.
func serverMain() int {
	signal.Ignore(os.Interrupt) // a terminal's Ctrl-C reaches every process; this one is stopped by its parent
	slog.SetDefault(slog.New(slog.DiscardHandler))
	in := bufio.NewReader(os.Stdin)
	if err := serve(in); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		return command.Failed
	}
	return command.Good
}

func serve(in *bufio.Reader) error {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var cfg serverConfig
	if err := json.Unmarshal(line, &cfg); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, in) // ends when the parent closes the pipe, or dies
		stop()
	}()
	pool, err := servers.OpenPool(ctx, cfg.Postgres, 12)
	if err != nil {
		return err
	}
	defer pool.Close()
	relayPool, err := servers.OpenPool(ctx, cfg.Postgres, 3)
	if err != nil {
		return err
	}
	defer relayPool.Close()
	a, err := newAPI(pool, relayPool, cfg.API)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: a.handler(), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx); stop() }()
	go func() { _ = server.Serve(l); stop() }()
	if err := json.NewEncoder(os.Stdout).Encode(ready{l.Addr().String()}); err != nil {
		return err
	}
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(last), <-ended) // requests under way are finished first
}

// process is one server, as its parent knows it.
type process struct {
	number  int
	address string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stderr  *tail
	done    chan struct{} // closed when it has ended
	err     error         // how it ended, behind done
	busy    int           // attempts under way
	expects bool          // it is to end
	hit     int           // attempts under way when it was killed
}

// cluster is the API's processes. Its DialContext connects a client to any of them, as a name with
// several addresses would.
type cluster struct {
	cfg     serverConfig
	verbose func(format string, args ...any)

	mu     sync.Mutex
	last   int
	live   map[string]*process // by address
	failed error               // one that ended by itself
}

func newCluster(cfg serverConfig, verbose func(string, ...any)) *cluster {
	return &cluster{cfg: cfg, verbose: verbose, live: map[string]*process{}}
}

// start starts a process: this program once more. Under "go run" its file may be gone,
// /proc/self/exe is not.
func (c *cluster) start() (*process, error) {
	exe := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	line, err := json.Marshal(c.cfg)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.last++
	p := &process{number: c.last, cmd: exec.Command(exe), stderr: &tail{}, done: make(chan struct{})}
	c.mu.Unlock()
	p.cmd.Args = []string{fmt.Sprintf("payments-api-server-%d", p.number)}
	p.cmd.Env = append(os.Environ(), envServer+"=1")
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a server process: %w", err)
	}
	_, _ = p.stdin.Write(append(line, '\n')) // should it be dead already, it says nothing below
	lines := bufio.NewReader(stdout)
	said, readErr := lines.ReadBytes('\n')
	var r ready
	if readErr == nil {
		readErr = json.Unmarshal(said, &r)
	}
	if readErr != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		return nil, fmt.Errorf("server %d did not come to serve: %w\n%s", p.number, readErr, p.stderr)
	}
	c.mu.Lock()
	p.address = r.Address
	c.live[p.address] = p
	c.mu.Unlock()
	c.verbose("server %d started, pid %d, at %s", p.number, p.cmd.Process.Pid, p.address)
	go c.follow(p, lines)
	return p, nil
}

// follow waits for a process to end.
func (c *cluster) follow(p *process, stdout io.Reader) {
	_, _ = io.Copy(io.Discard, stdout)
	err := p.cmd.Wait()
	c.mu.Lock()
	delete(c.live, p.address)
	p.err = err
	if !p.expects && c.failed == nil {
		if err == nil {
			err = errors.New("exit status 0")
		}
		c.failed = fmt.Errorf("server %d ended by itself: %w\n%s", p.number, err, p.stderr)
	}
	c.mu.Unlock()
	close(p.done)
}

// dial connects to any of the processes that are there.
func (c *cluster) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	c.mu.Lock()
	addresses := make([]string, 0, len(c.live))
	for a := range c.live {
		addresses = append(addresses, a)
	}
	c.mu.Unlock()
	if len(addresses) == 0 {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("no server process is there")}
	}
	var d net.Dialer
	return d.DialContext(ctx, network, addresses[rand.IntN(len(addresses))])
}

// enter and leave count the attempts that a process has under way.
func (c *cluster) enter(address string) { c.count(address, 1) }
func (c *cluster) leave(address string) { c.count(address, -1) }

func (c *cluster) count(address string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.live[address]; p != nil {
		p.busy += n
	}
}

// kill sends SIGKILL to the process with the most attempts under way, if any has one, and waits for
// its end.
func (c *cluster) kill() *process {
	c.mu.Lock()
	var victim *process
	for _, p := range c.live {
		if p.busy > 0 && (victim == nil || p.busy > victim.busy) {
			victim = p
		}
	}
	if victim == nil {
		c.mu.Unlock()
		return nil
	}
	victim.expects, victim.hit = true, victim.busy
	_ = victim.cmd.Process.Kill() // under the lock: its attempts are still under way
	c.mu.Unlock()
	<-victim.done
	return victim
}

// failure is a process that has ended by itself.
func (c *cluster) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

func (c *cluster) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.live)
}

// stop lets all processes finish what is under way. Those that do not within the bound are killed,
// and named.
func (c *cluster) stop(bound time.Duration) error {
	c.mu.Lock()
	all := make([]*process, 0, len(c.live))
	for _, p := range c.live {
		p.expects = true
		all = append(all, p)
	}
	c.mu.Unlock()
	for _, p := range all {
		_ = p.stdin.Close()
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	var errs []error
	for _, p := range all {
		select {
		case <-p.done:
			if p.err != nil {
				errs = append(errs, fmt.Errorf("server %d: %w\n%s", p.number, p.err, p.stderr))
			}
			continue
		case <-timer.C:
			timer.Reset(0) // the others have had their time as well
		}
		errs = append(errs, fmt.Errorf("server %d did not stop within %v", p.number, bound))
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return errors.Join(errs...)
}

// tail keeps the last of what a process has complained about.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(len(t.text)-tailSize, 0):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
