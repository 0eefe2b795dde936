package fleet

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is one worker process.
type Process struct {
	Number int // no two of a fleet have the same

	seat   int // no two that live have the same
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	done   chan struct{} // closed after it has ended and its last event was read

	open map[int32]int64 // partition -> first offset of a batch that has begun
	// Partition -> offset of a message that is tried again from the database.
	again   map[int32]int64
	batches int    // that have committed
	address string // that it serves at
	shot    *Shot  // that killed it, or nil
	frozen  bool   // suspended
	leaving bool   // was asked to leave
}

// PID is its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Start starts a worker process: this program once more. Under "go run" its file may be gone, but
// /proc/self/exe works.
func (f *Fleet) Start() (*Process, error) {
	exe := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	template, err := json.Marshal(f.cfg.Template)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	if f.other != "" && f.last%2 == 0 {
		exe = f.other
		f.others = append(f.others, f.last)
	}
	p := &Process{
		Number: f.last,
		seat:   f.freeSeat(),
		cmd:    exec.Command(exe),
		done:   make(chan struct{}),
		open:   map[int32]int64{},
		again:  map[int32]int64{},
	}
	p.cmd.Args = []string{fmt.Sprintf("%s-worker-%d", f.cfg.Name, p.Number)}
	p.cmd.Env = append(os.Environ(), envWorker+"=1")
	p.cmd.Stderr = &p.stderr
	line, err := json.Marshal(orders{Number: p.Number, Seat: p.seat, Journal: f.journal, Traps: f.cfg.Traps, Template: template})
	if err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a worker process: %w", err)
	}
	f.live[p.Number] = p
	f.cfg.Verbose("worker %d started, pid %d", p.Number, p.PID())
	// A pipe holds more than the configuration. If the process is dead already, its end is reported
	// below.
	_, _ = p.stdin.Write(append(line, '\n'))
	go f.follow(p, stdout)
	return p, nil
}

// freeSeat returns the lowest seat that no living worker has. The lock must be held.
func (f *Fleet) freeSeat() int {
	taken := map[int]bool{}
	for _, p := range f.live {
		taken[p.seat] = true
	}
	seat := 0
	for taken[seat] {
		seat++
	}
	return seat
}

// follow reads a worker's events until it has ended.
func (f *Fleet) follow(p *Process, stdout io.Reader) {
	defer close(p.done)
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err == nil { // the last line may be cut off
			f.take(p, e)
		}
	}
	_, _ = io.Copy(io.Discard, stdout) // the line was too long: the worker must not block on the pipe
	err := p.cmd.Wait()
	f.ended(p, err)
}

// take applies one event.
func (f *Fleet) take(p *Process, e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch e.Kind {
	case Begin:
		if e.Retried {
			p.again[e.Partition] = e.Offset
		} else {
			p.open[e.Partition] = e.Offset
		}
		f.consider(p, e)
		return
	case Owned:
		f.serial++
		f.owned[e.Partition] = owning{p.Number, f.serial}
		f.reached[e.Partition] = max(f.reached[e.Partition], e.Offset)
		delete(p.open, e.Partition)
		f.cfg.Verbose("worker %d owns partition %d from offset %d", p.Number, e.Partition, e.Offset)
		return
	case Done:
		delete(p.open, e.Partition)
		p.batches++
		f.handled += e.Handled
		if e.Handled > 0 {
			f.effect(time.Now())
		}
		f.skipped += e.Duplicates
		f.reached[e.Partition] = max(f.reached[e.Partition], e.Offset)
		took := time.Duration(e.Micros) * time.Microsecond
		f.batch += (took - f.batch) / 8
		return
	case Undone:
		if e.Retried {
			delete(p.again, e.Partition)
		} else {
			delete(p.open, e.Partition)
		}
		f.troubles[firstLine(e.Text)]++
	case Resolved:
		delete(p.again, e.Partition)
		f.resolved++
		return
	case Ended:
		f.troubles[firstLine(e.Text)]++
		f.endings[localPort.ReplaceAllString(firstLine(e.Text), ":*->")]++
		if !f.cfg.Resilient {
			f.failed = fmt.Errorf("worker %d ended: %s", p.Number, e.Text)
		}
	case Serving:
		p.address = e.Text
	case Breach:
		f.breaches = append(f.breaches, fmt.Sprintf("worker %d: %s", p.Number, e.Text))
	case Halted, Trouble, Rejected:
		f.troubles[firstLine(e.Text)]++
	}
	f.cfg.Verbose("worker %d: %s: %s", p.Number, e.Kind, firstLine(e.Text))
}

// ended applies the end of a worker.
func (f *Fleet) ended(p *Process, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.live, p.Number)
	if p.shot != nil {
		down := &ShotDown{Worker: p.Number, PID: p.PID()}
		for partition, offset := range p.open {
			down.InBatch = true
			down.Partition = partition
			down.Offset = offset
		}
		if p.shot.retry {
			for partition, offset := range p.again {
				down.InRetry = true
				down.Partition = partition
				down.Offset = offset
			}
		}
		p.shot.Hit <- down
		return
	}
	if err == nil && p.leaving || f.failed != nil {
		return
	}
	status, known := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	killed := known && status.Signaled()
	failed := !killed && p.cmd.ProcessState.ExitCode() == StatusFailed
	switch {
	case killed && f.strays < maxStrays:
		// If you killed it from another terminal, that counts too, and another takes its place.
		f.strays++
		f.cfg.Verbose("worker %d (pid %d) was killed by somebody else: %v", p.Number, p.PID(), status.Signal())
	case failed && f.cfg.Resilient && f.restarts < maxRestarts:
		f.restarts++
		f.cfg.Verbose("worker %d (pid %d) is started again", p.Number, p.PID())
	default:
		f.failed = fmt.Errorf("worker %d (pid %d) ended, and nobody had asked it to", p.Number, p.PID())
		if err != nil {
			f.failed = fmt.Errorf("%w: %w", f.failed, errors.Join(err, lastWords(&p.stderr)))
		}
		return
	}
	if stops := f.stops; !p.leaving {
		time.AfterFunc(restartAfter, func() {
			if f.stopped(stops) {
				return
			}
			if _, err := f.Start(); err != nil {
				f.fail(err)
			}
		})
	}
}

// stopped reports whether all workers were asked to leave since the count of stops was this.
func (f *Fleet) stopped(since int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stops != since
}

// localPort is the part that differs in each error of a connection.
var localPort = regexp.MustCompile(`:\d+->`)

const (
	// maxStrays bounds how many workers that another process has killed are replaced: the system
	// may have no memory for them.
	maxStrays = 100
	// maxRestarts bounds how often workers may give up.
	maxRestarts = 10_000
	// restartAfter is the pause before a restart: a worker that cannot reach its servers must not
	// be restarted without end.
	restartAfter = 200 * time.Millisecond
)

// lastWords is the end of what a process wrote to standard error, for example a panic.
func lastWords(b *bytes.Buffer) error {
	text := strings.TrimSpace(b.String())
	if text == "" {
		return nil
	}
	return errors.New(text[max(0, len(text)-4000):])
}
