package supervise

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// closeTimeout bounds Close: the longest stop of a server and the removal of
// its directory, and then some.
const closeTimeout = 30 * time.Second

// Supervisor is the program's end of the pipe. Its methods may be called from
// several goroutines.
type Supervisor struct {
	dir    string
	cmd    *exec.Cmd
	stderr *firstBytes

	write sync.Mutex // one request a line
	pipe  io.WriteCloser

	mu      sync.Mutex
	nextID  int
	waiting map[int]chan reply
	servers map[int]*Server
	ended   bool

	gone      chan struct{} // closed when the supervisor process was reaped
	goneErr   error         // set before gone is closed
	closeOnce sync.Once
	closeErr  error
}

// Server is one start of the supervised server.
type Server struct {
	PID    int
	exited chan struct{}
	status string
}

// Exited is closed when the server has ended, for whatever reason.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// Status returns how the server ended. Call it after Exited is closed.
func (s *Server) Status() string { return s.status }

// Start executes the supervisor and has it make its directory.
func Start(ctx context.Context, cfg Config) (*Supervisor, error) {
	exe, err := program()
	if err != nil {
		return nil, err
	}
	// Not CommandContext: cancelling ctx must close the pipe, not kill the
	// process that does the cleaning.
	cmd := exec.Command(exe)
	cmd.Args = []string{"onlyonce-devenv-supervisor"}
	cmd.Env = append(os.Environ(), envSupervisor+"=1")
	cmd.SysProcAttr = supervisorAttr()
	stderr := &firstBytes{}
	cmd.Stderr = stderr // never the program's own: "go test" waits until no process holds it
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	s := &Supervisor{
		cmd: cmd, stderr: stderr, pipe: pipe,
		waiting: map[int]chan reply{}, servers: map[int]*Server{},
		gone: make(chan struct{}),
	}
	go s.read(out)
	rep, err := s.call(ctx, request{Op: opOpen, Config: &cfg})
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	s.dir = rep.Dir
	return s, nil
}

// program is a path under which this program can be executed again. The package comment says why it
// is that one on Linux.
func program() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

// Program is a path under which Run can execute this program again.
func (s *Supervisor) Program() string { return s.cmd.Path }

// Dir is the directory that the supervisor made and will remove.
func (s *Supervisor) Dir() string { return s.dir }

// Run runs a command to its end and returns the last of its output. When ctx
// ends first the command goes on until Close.
func (s *Supervisor) Run(ctx context.Context, c Command) (output string, err error) {
	c.Log = cmp.Or(c.Log, "run.log")
	rep, err := s.call(ctx, request{Op: opRun, Command: &c})
	if err != nil {
		return rep.Output, fmt.Errorf("%s: %w", filepath.Base(c.Argv[0]), err)
	}
	return rep.Output, nil
}

// StartServer starts the server; one at a time.
func (s *Supervisor) StartServer(ctx context.Context, c Command) (*Server, error) {
	c.Log = cmp.Or(c.Log, "server.log")
	srv := &Server{exited: make(chan struct{})}
	rep, err := s.callServer(ctx, request{Op: opStart, Command: &c}, srv)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.Argv[0]), err)
	}
	srv.PID = rep.PID
	return srv, nil
}

// Kill kills the server with SIGKILL, with all processes that it leaves, and returns after all of
// them are gone. The directory stays; the server can be started again.
func (s *Supervisor) Kill(ctx context.Context) error {
	_, err := s.call(ctx, request{Op: opKill})
	return err
}

// Pause suspends the server and everything below it (SIGSTOP); their connections stay open. Linux
// only.
func (s *Supervisor) Pause(ctx context.Context) error {
	_, err := s.call(ctx, request{Op: opPause})
	return err
}

// Continue lets a paused server go on.
func (s *Supervisor) Continue(ctx context.Context) error {
	_, err := s.call(ctx, request{Op: opCont})
	return err
}

// LogTail returns the end of a log in the supervisor's directory.
func (s *Supervisor) LogTail(name string) string {
	return tail(filepath.Join(s.dir, name), 0)
}

// Close stops the server, removes the directory and waits for both. It may be
// called more than once.
func (s *Supervisor) Close() error {
	s.closeOnce.Do(func() {
		_ = s.pipe.Close() // fails only when the process is gone already
		select {
		case <-s.gone:
			s.closeErr = s.goneErr
		case <-time.After(closeTimeout):
			_ = s.cmd.Process.Kill()
			<-s.gone
			s.closeErr = errors.Join(
				fmt.Errorf("the supervisor did not end within %v and was killed", closeTimeout),
				os.RemoveAll(s.dir))
		}
	})
	return s.closeErr
}

func (s *Supervisor) call(ctx context.Context, r request) (reply, error) {
	return s.callServer(ctx, r, nil)
}

func (s *Supervisor) callServer(ctx context.Context, r request, srv *Server) (reply, error) {
	ch := make(chan reply, 1)
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return reply{}, errors.New("the supervisor has ended")
	}
	s.nextID++
	r.ID = s.nextID
	s.waiting[r.ID] = ch
	if srv != nil {
		s.servers[r.ID] = srv // before the request: the exit may come at once
	}
	s.mu.Unlock()

	line, err := json.Marshal(r)
	if err != nil {
		return reply{}, err
	}
	s.write.Lock()
	_, err = s.pipe.Write(append(line, '\n'))
	s.write.Unlock()
	if err != nil {
		return reply{}, fmt.Errorf("the supervisor has ended: %w", err)
	}
	select {
	case rep, ok := <-ch:
		if !ok {
			return reply{}, fmt.Errorf("the supervisor ended: %v", s.stderr)
		}
		if rep.Error != "" {
			return rep, errors.New(rep.Error)
		}
		return rep, nil
	case <-ctx.Done():
		return reply{}, ctx.Err()
	}
}

func (s *Supervisor) read(out io.Reader) {
	for dec := json.NewDecoder(out); ; {
		var rep reply
		if dec.Decode(&rep) != nil {
			break
		}
		s.mu.Lock()
		if srv := s.servers[rep.ID]; rep.Exited != "" && srv != nil {
			delete(s.servers, rep.ID)
			srv.status = rep.Exited
			close(srv.exited)
		} else if ch := s.waiting[rep.ID]; ch != nil {
			delete(s.waiting, rep.ID)
			ch <- rep
		}
		s.mu.Unlock()
	}
	err := s.cmd.Wait()
	if err != nil {
		err = fmt.Errorf("the supervisor: %w: %v", err, s.stderr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for id, ch := range s.waiting {
		delete(s.waiting, id)
		close(ch)
	}
	for id, srv := range s.servers {
		delete(s.servers, id)
		srv.status = "stopped with its supervisor"
		close(srv.exited)
	}
	s.goneErr = err
	close(s.gone)
}

// tail returns the end of a file, from offset on: enough for the lines in
// which a server says why it does not start.
func tail(path string, offset int64) string {
	const limit = 4 << 10
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	from := max(offset, st.Size()-limit)
	b, err := io.ReadAll(io.NewSectionReader(f, from, limit))
	if err != nil {
		return ""
	}
	text := string(b)
	if from > offset { // cut: begin with a whole line
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest
		}
	}
	return strings.TrimSpace(text)
}

// firstBytes keeps the first part of what a supervisor says before it dies.
type firstBytes struct {
	mu  sync.Mutex
	buf []byte
}

func (l *firstBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := 2<<10 - len(l.buf); room > 0 {
		l.buf = append(l.buf, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func (l *firstBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.buf) == 0 {
		return "it said nothing"
	}
	return strings.TrimSpace(string(l.buf))
}
