package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// fleet is the worker processes, as their parent knows them.
type fleet struct {
	template workerConfig
	verbose  func(format string, args ...any)

	mu       sync.Mutex
	last     int              // number of the process started last
	live     map[int]*process // by number
	owned    map[int32]owning // partition -> who took it over last
	serial   int              // of the latest take-over
	aim      *shot            // the next kill, nil: none is wanted
	handled  int              // handlers whose batch committed, as far as workers lived to tell
	skipped  int              // duplicates, likewise
	batch    time.Duration    // how long a batch takes, roughly
	strays   int              // workers killed by somebody else
	failed   error            // a worker that ended by itself, and should not have
	troubles map[string]int   // what is waited out, by text: for the diagnosis
}

// owning is one take-over of a partition.
type owning struct {
	worker int
	serial int
}

// shot is one SIGKILL, aimed at a worker in the middle of a batch.
type shot struct {
	skip int            // batches that begin and are spared
	late float64        // how long after the beginning of a batch, as a share of what a batch takes
	hit  chan *shotDown // receives the outcome
}

// shotDown tells whom a SIGKILL hit and at what.
type shotDown struct {
	worker    int
	pid       int
	inBatch   bool // a batch had begun and was not known to have committed
	partition int32
	offset    int64
}

// process is one worker process.
type process struct {
	number int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	done   chan struct{} // closed when it has ended and its last event is taken in

	open    map[int32]int64 // partition -> first offset of a batch that has begun
	batches int             // that have committed
	shot    *shot           // why it was killed, nil: it was not
	leaving bool            // was asked to leave
}

func newFleet(template workerConfig, verbose func(string, ...any)) *fleet {
	return &fleet{template: template, verbose: verbose, live: map[int]*process{}, owned: map[int32]owning{}, troubles: map[string]int{}}
}

// start starts a worker process: this program once more. Under "go run" its file may be gone, /proc/self/exe is not.
func (f *fleet) start() (*process, error) {
	exe := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	p := &process{number: f.last, cmd: exec.Command(exe), done: make(chan struct{}), open: map[int32]int64{}}
	p.cmd.Args = []string{fmt.Sprintf("quickstart-worker-%d", p.number)} // as the list of processes shows it: kill -9 one by hand
	p.cmd.Env = append(os.Environ(), envWorker+"=1")
	p.cmd.Stderr = &p.stderr
	cfg := f.template
	cfg.Number = p.number
	line, err := json.Marshal(cfg)
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
	f.live[p.number] = p
	f.verbose("worker %d started, pid %d", p.number, p.cmd.Process.Pid)
	// A pipe holds more than the configuration; should the process be dead already, its end is told below.
	_, _ = p.stdin.Write(append(line, '\n'))
	go f.follow(p, stdout)
	return p, nil
}

// follow takes in a worker's events until it has ended.
func (f *fleet) follow(p *process, stdout io.Reader) {
	defer close(p.done)
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err == nil { // the last line may be cut off
			f.take(p, e)
		}
	}
	_, _ = io.Copy(io.Discard, stdout) // a line too long: nobody may hang on the pipe
	err := p.cmd.Wait()
	f.ended(p, err)
}

// take takes one event in.
func (f *fleet) take(p *process, e event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch e.Kind {
	case eventBegin:
		p.open[e.Partition] = e.Offset
		f.consider(p, e)
		return
	case eventOwned:
		f.serial++
		f.owned[e.Partition] = owning{p.number, f.serial}
		delete(p.open, e.Partition)
		f.verbose("worker %d owns partition %d from offset %d", p.number, e.Partition, e.Offset)
		return
	case eventDone:
		delete(p.open, e.Partition)
		p.batches++
		f.handled += e.Handled
		f.skipped += e.Duplicates
		took := time.Duration(e.Micros) * time.Microsecond
		f.batch += (took - f.batch) / 8
		return
	case eventUndone:
		delete(p.open, e.Partition)
		f.troubles[firstLine(e.Text)]++
	case eventEnded:
		f.failed = fmt.Errorf("worker %d ended: %s", p.number, e.Text)
	case eventHalted, eventTrouble, eventRejected:
		f.troubles[firstLine(e.Text)]++
	}
	f.verbose("worker %d: %s: %s", p.number, e.Kind, firstLine(e.Text))
}

// consider decides whether a worker that has just begun with a batch is to be killed, at a random moment in about the time that
// the batch takes: before its COMMIT, during it, or right after it.
func (f *fleet) consider(p *process, e event) {
	switch {
	case f.aim == nil || p.shot != nil || p.leaving || e.Alone:
		return
	case f.aim.skip > 0:
		f.aim.skip--
		return
	}
	p.shot, f.aim = f.aim, nil
	time.AfterFunc(time.Duration(p.shot.late*float64(f.batch)), func() { _ = p.cmd.Process.Kill() }) // fails only if it has ended
}

// ended takes in how a worker ended.
func (f *fleet) ended(p *process, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.live, p.number)
	if p.shot != nil {
		down := &shotDown{worker: p.number, pid: p.cmd.Process.Pid}
		for partition, offset := range p.open {
			down.inBatch, down.partition, down.offset = true, partition, offset
		}
		p.shot.hit <- down
		return
	}
	if err == nil && p.leaving || f.failed != nil {
		return
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && f.strays < maxStrays {
		// You did that, from another terminal? Good: it counts, and another takes its place.
		f.strays++
		f.verbose("worker %d (pid %d) was killed by somebody else: %v", p.number, p.cmd.Process.Pid, status.Signal())
		if !p.leaving {
			go func() {
				if _, err := f.start(); err != nil {
					f.fail(err)
				}
			}()
		}
		return
	}
	f.failed = fmt.Errorf("worker %d (pid %d) ended, and nobody had asked it to: %w", p.number, p.cmd.Process.Pid, errors.Join(err, lastWords(&p.stderr)))
	if err == nil {
		f.failed = fmt.Errorf("worker %d (pid %d) ended, and nobody had asked it to", p.number, p.cmd.Process.Pid)
	}
}

// maxStrays bounds how many workers that somebody else has killed are replaced: the system may have no memory for them.
const maxStrays = 100

func (f *fleet) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = errors.Join(f.failed, err)
}

// lastWords is the end of what a process wrote to standard error: a panic, say.
func lastWords(b *bytes.Buffer) error {
	text := strings.TrimSpace(b.String())
	if text == "" {
		return nil
	}
	return errors.New(text[max(0, len(text)-4000):])
}

// shoot asks for the next kill; at once, where the one before came too late. The outcome comes by the channel.
func (f *fleet) shoot(atOnce bool) *shot {
	s := &shot{hit: make(chan *shotDown, 1)}
	if !atOnce {
		s.skip, s.late = rand.IntN(4), 0.8*rand.Float64()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.aim = s
	return s
}

// newest returns the worker that was started last, of those that live.
func (f *fleet) newest() *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	var newest *process
	for _, p := range f.live {
		if newest == nil || p.number > newest.number {
			newest = p
		}
	}
	return newest
}

// leave closes a worker's standard input, at which it finishes its batch, leaves the group and exits.
func (f *fleet) leave(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.leaving = true
	_ = p.stdin.Close()
}

// stop lets all workers leave. Those that do not within the bound are killed, and named.
func (f *fleet) stop(bound time.Duration) error {
	f.mu.Lock()
	var all []*process
	for _, p := range f.live {
		all = append(all, p)
	}
	f.aim = nil
	f.mu.Unlock()
	for _, p := range all {
		f.leave(p)
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	var late []error
	for _, p := range all {
		select {
		case <-p.done:
			continue
		case <-timer.C:
			timer.Reset(0) // the others have had their time as well
		}
		late = append(late, fmt.Errorf("worker %d did not leave within %v", p.number, bound))
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return errors.Join(late...)
}

// mark is a moment in the sequence of take-overs.
func (f *fleet) mark() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.serial
}

// settled reports whether the workers that live have taken over every partition since mark, and all of them have one if there
// are enough.
func (f *fleet) settled(mark, partitions int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	live := 0
	for _, p := range f.live {
		if !p.leaving && p.shot == nil {
			live++
		}
	}
	owners := map[int]bool{}
	for partition := range int32(partitions) {
		o := f.owned[partition]
		if p := f.live[o.worker]; p == nil || p.leaving || p.shot != nil || o.serial <= mark {
			return false
		}
		owners[o.worker] = true
	}
	return len(owners) == min(live, partitions)
}

// owns returns how many partitions a worker has, and how many of its batches have committed.
func (f *fleet) owns(p *process) (partitions, batches int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.owned {
		if o.worker == p.number {
			partitions++
		}
	}
	return partitions, p.batches
}

// progress returns how many messages were applied and how many skipped, as far as workers lived to tell.
func (f *fleet) progress() (handled, skipped int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.handled, f.skipped
}

// strayKills returns how many workers somebody else has killed.
func (f *fleet) strayKills() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.strays
}

// size returns how many workers live.
func (f *fleet) size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.live)
}

// failure is what stops the run: a worker that ended by itself.
func (f *fleet) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// diagnosis tells who owns what, and what workers had to wait out.
func (f *fleet) diagnosis() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for partition, o := range f.owned {
		state := "lives"
		if f.live[o.worker] == nil {
			state = "has ended"
		}
		lines = append(lines, fmt.Sprintf("partition %d: last taken over by worker %d, which %s", partition, o.worker, state))
	}
	slices.Sort(lines)
	for text, n := range f.troubles {
		lines = append(lines, fmt.Sprintf("%d times: %s", n, text))
	}
	return lines
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}
