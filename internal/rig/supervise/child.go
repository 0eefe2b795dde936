package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"
)

// The program becomes a supervisor here, before main and before the packages that import this one.
// The package comment says why.
//
// Being in init has a second use: the runtime keeps the main goroutine on the main thread until all
// init functions have returned. Linux sends a parent death signal when the *thread* that forked
// ends, so commands are started from this goroutine only, whose thread lives as long as the
// process.
func init() {
	if os.Getenv(envSupervisor) == "" {
		return
	}
	_ = os.Unsetenv(envSupervisor)
	serve(os.Stdin, os.Stdout)
	os.Exit(0)
}

// child is the state of a supervisor process, owned by the main goroutine.
type child struct {
	out     *json.Encoder
	dir     string
	server  *process
	running map[*process]bool
	exits   chan *process
}

// process is one started command.
type process struct {
	id    int
	cmd   *exec.Cmd
	spec  *Command
	log   string
	from  int64 // size of the log before this command
	isRun bool
	stood bool          // paused, and not yet continued
	done  chan struct{} // closed once the process is reaped
}

func serve(in io.Reader, out io.Writer) {
	// Taken, not ignored: an ignored signal stays ignored across exec, and a
	// JVM that finds SIGTERM ignored installs no shutdown hook for it.
	// SIGPIPE is among them so that a reply to a dead parent is an error.
	signal.Notify(make(chan os.Signal, 1), dropped...)
	becomeSubreaper()

	c := &child{
		out:     json.NewEncoder(out),
		running: map[*process]bool{},
		exits:   make(chan *process, 64),
	}
	requests := make(chan request)
	go func() {
		defer close(requests) // end of file, or nonsense: either way the parent is gone
		for dec := json.NewDecoder(in); ; {
			var r request
			if dec.Decode(&r) != nil {
				return
			}
			requests <- r
		}
	}()
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				c.shutdown()
				return
			}
			c.handle(r)
		case p := <-c.exits:
			c.exited(p)
		}
	}
}

func (c *child) handle(r request) {
	rep := reply{ID: r.ID}
	var err error
	switch r.Op {
	case opOpen:
		rep.Dir, err = c.open(r.Config)
	case opRun:
		if err = c.start(r.ID, r.Command, true); err == nil {
			return // answered by exited
		}
	case opStart:
		if c.server != nil {
			err = errors.New("the server is running")
			break
		}
		if err = c.start(r.ID, r.Command, false); err == nil {
			rep.PID = c.server.cmd.Process.Pid
		}
	case opKill:
		err = c.kill()
	case opPause, opCont:
		err = c.pause(r.Op == opPause)
	default:
		err = fmt.Errorf("unknown operation %q", r.Op)
	}
	if err != nil {
		rep.Error = err.Error()
	}
	c.reply(rep)
}

// reply drops the error: it means that the parent is gone, which end of file
// on the pipe is about to say as well.
func (c *child) reply(r reply) { _ = c.out.Encode(r) }

func (c *child) open(cfg *Config) (string, error) {
	if c.dir != "" {
		return "", errors.New("the directory is made already")
	}
	var errs []error
	for _, base := range cfg.Bases {
		dir, err := makeDir(base, cfg)
		if err == nil {
			c.dir = dir
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

func makeDir(base string, cfg *Config) (string, error) {
	base, err := filepath.Abs(base)
	if err != nil {
		return "", err
	}
	if cfg.Owner != nil {
		if err := enterable(base, cfg.Owner); err != nil {
			return "", err
		}
	}
	dir, err := os.MkdirTemp(base, cfg.Prefix)
	if err != nil {
		return "", err
	}
	if cfg.Owner != nil {
		if err := os.Chown(dir, int(cfg.Owner.UID), int(cfg.Owner.GID)); err != nil {
			_ = os.Remove(dir)
			return "", err
		}
	}
	return dir, nil
}

func (c *child) start(id int, spec *Command, isRun bool) error {
	p := &process{id: id, spec: spec, isRun: isRun, done: make(chan struct{})}
	p.log = spec.Log
	if !filepath.IsAbs(p.log) {
		p.log = filepath.Join(c.dir, p.log)
	}
	// A file and not a pipe. If a grandchild held a pipe open, Wait would not return. A pipe
	// without a reader would stop the server.
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the command has its own descriptor
	if st, err := log.Stat(); err == nil {
		p.from = st.Size()
	}
	p.cmd = exec.Command(spec.Argv[0], spec.Argv[1:]...)
	p.cmd.Env = spec.Env
	p.cmd.Dir = c.dir
	p.cmd.Stdout = log
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = commandAttr(spec.As)
	if err := p.cmd.Start(); err != nil {
		return err
	}
	c.running[p] = true
	if !isRun {
		c.server = p
	}
	go func() {
		_ = p.cmd.Wait() // its result is read from ProcessState
		close(p.done)
		c.exits <- p
	}()
	return nil
}

// exited reports the end of a command, once.
func (c *child) exited(p *process) {
	if !c.running[p] {
		return
	}
	delete(c.running, p)
	c.killOrphans()
	state := p.cmd.ProcessState
	if !p.isRun {
		if c.server == p {
			c.server = nil
		}
		c.reply(reply{ID: p.id, Exited: state.String()})
		return
	}
	rep := reply{ID: p.id, Output: tail(p.log, p.from)}
	if !state.Success() {
		rep.Error = state.String()
	}
	c.reply(rep)
}

func (c *child) kill() error {
	p := c.server
	if p == nil {
		return errors.New("the server is not running")
	}
	killGroup(p.cmd.Process)
	<-p.done
	c.exited(p)
	return nil
}

// pause suspends the server, or lets it go on.
func (c *child) pause(stand bool) error {
	p := c.server
	if p == nil {
		return errors.New("the server is not running")
	}
	if err := standTree(p.cmd.Process.Pid, stand); err != nil {
		return err
	}
	p.stood = stand
	return nil
}

// killOrphans kills what lost its parent to a kill or an exit and so became a
// child of this process (on Linux; a no-op elsewhere).
func (c *child) killOrphans() {
	known := make(map[int]bool, len(c.running))
	for p := range c.running {
		known[p.cmd.Process.Pid] = true
	}
	killStrangers(known)
}

// shutdown stops everything and removes the directory.
func (c *child) shutdown() {
	for p := range c.running {
		if p.isRun {
			killGroup(p.cmd.Process)
		}
	}
	if p := c.server; p != nil {
		stopProcess(p)
	}
	for p := range c.running {
		<-p.done
	}
	killStrangers(nil)
	if c.dir == "" {
		return
	}
	// The kernel may still be closing the files of a process that was just
	// reaped, and a straggler may have made a file while we were deleting.
	var err error
	for range 20 {
		if err = os.RemoveAll(c.dir); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	fmt.Fprintf(os.Stderr, "cannot remove %s: %v\n", c.dir, err)
	os.Exit(1)
}

// stopProcess asks the server to stop, then kills it.
func stopProcess(p *process) {
	if p.stood { // it would not hear the request
		_ = standTree(p.cmd.Process.Pid, false)
	}
	if requestStop(p.cmd.Process, p.spec.Stop) {
		select {
		case <-p.done:
		case <-time.After(stopTimeout):
		}
	}
	killGroup(p.cmd.Process) // after a stop in order: what is left of its group
	<-p.done
}
