// Package fleet runs worker processes so that a test can kill them. A program executes itself once
// more for each worker ([Fleet]). The new process serves its end of the pipe ([Serve]). Workers
// write a stream of events. From them the parent knows which worker owns which partition and which
// one is in the middle of a batch, so that it can aim a kill.
package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config describes the workers.
type Config struct {
	// Name is what the list of processes shows, with a number after it, so that you can kill -9 one
	// by hand.
	Name string
	// Template is given to every worker, as JSON.
	Template any
	// Verbose receives every event as a line.
	Verbose func(format string, args ...any)
	// Resilient restarts a worker that has ended with an error, as an orchestrator would, because
	// the servers are killed as well. Otherwise such an end is a failure.
	Resilient bool
	// Traps are in the workers' functions; zero: none.
	Traps Traps
}

// Fleet is the worker processes, from their parent's side.
type Fleet struct {
	cfg     Config
	journal string // file, see invocation

	mu       sync.Mutex
	last     int              // number of the process started last
	live     map[int]*Process // by number
	owned    map[int32]owning // partition -> the last take-over
	reached  map[int32]int64  // partition -> the furthest position that a worker reported
	serial   int              // of the latest take-over
	aim      *Shot            // the next kill, nil: none is wanted
	handled  int              // handlers whose batch committed, as far as workers reported it
	skipped  int              // duplicates, likewise
	batch    time.Duration    // how long a batch takes, roughly
	strays   int              // workers that another process has killed
	restarts int              // of workers that had ended with an error
	endings  map[string]int   // their errors, by first line
	// Messages that were parked and then applied, as far as workers reported it.
	resolved int
	stops    int            // calls of Stop: no worker is restarted across one
	failed   error          // of a worker that ended by itself, and should not have
	troubles map[string]int // faults that will pass, by text: for the diagnosis
	breaches []string       // what workers have found wrong themselves
	other    string         // program of every second worker, "": none
	others   []int          // numbers of workers that ran it
	effectAt time.Time      // of the last effect that was reported
	gaps     []Gap          // between two of them
}

// Gap is a time.
type Gap struct{ From, To time.Time }

// shortGap is the shortest time without an effect that is remembered.
const shortGap = 100 * time.Millisecond

// effect notes that a worker has reported effects. The caller has the lock.
func (f *Fleet) effect(now time.Time) {
	if !f.effectAt.IsZero() && now.Sub(f.effectAt) >= shortGap {
		f.gaps = append(f.gaps, Gap{f.effectAt, now})
	}
	f.effectAt = now
}

// Gaps returns the times between two effects, as workers reported them, but for the shortest.
func (f *Fleet) Gaps() []Gap {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.gaps)
}

// owning is one take-over of a partition.
type owning struct {
	worker int
	serial int
}

// New makes a fleet without workers, and the files that they share.
func New(cfg Config) (*Fleet, error) {
	journal, err := os.CreateTemp("", "onlyonce-"+cfg.Name+"-*.journal")
	if err != nil {
		return nil, err
	}
	if cfg.Verbose == nil {
		cfg.Verbose = func(string, ...any) {}
	}
	if err := os.Mkdir(trapDir(journal.Name()), 0o700); err != nil {
		return nil, err
	}
	return &Fleet{cfg: cfg, journal: journal.Name(), live: map[int]*Process{}, owned: map[int32]owning{}, reached: map[int32]int64{},
		troubles: map[string]int{}, endings: map[string]int{}}, journal.Close()
}

// Close removes the workers' files. Stop comes first.
func (f *Fleet) Close() error {
	return errors.Join(os.Remove(f.journal), os.RemoveAll(trapDir(f.journal)))
}

// Mix makes every second worker that starts from now on run another program.
func (f *Fleet) Mix(program string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.other = program
}

// Mixed returns the numbers of the workers that ran it.
func (f *Fleet) Mixed() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.others)
}

// Newest returns the worker that was started last, of those that live; nil if none does.
func (f *Fleet) Newest() *Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	var newest *Process
	for _, p := range f.live {
		if newest == nil || p.Number > newest.Number {
			newest = p
		}
	}
	return newest
}

// Any returns a random worker of those that live, run and are to stay, or nil if there is none.
func (f *Fleet) Any(random *rand.Rand) *Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*Process
	for _, p := range f.live {
		if !p.leaving && !p.frozen && p.shot == nil {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *Process) int { return cmp.Compare(a.Number, b.Number) })
	return all[random.IntN(len(all))]
}

// Leave closes a worker's standard input. The worker then finishes its batch, leaves the group and
// exits.
func (f *Fleet) Leave(p *Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.leaving = true
	_ = p.stdin.Close()
}

// Freeze suspends a worker (SIGSTOP).
func (f *Fleet) Freeze(p *Process) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.frozen = true
	return freeze(p.cmd.Process)
}

// Thaw lets a suspended worker go on (SIGCONT). It may have been killed meanwhile.
func (f *Fleet) Thaw(p *Process) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.frozen = false
	if err := thaw(p.cmd.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Stop lets all workers leave. It kills those that do not leave within the bound, and returns their
// names.
func (f *Fleet) Stop(bound time.Duration) error {
	f.mu.Lock()
	var all []*Process
	for _, p := range f.live {
		all = append(all, p)
	}
	f.aim = nil
	f.stops++
	f.mu.Unlock()
	for _, p := range all {
		f.Leave(p)
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
		late = append(late, fmt.Errorf("worker %d did not leave within %v", p.Number, bound))
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return errors.Join(late...)
}

// Mark is a moment in the sequence of take-overs.
func (f *Fleet) Mark() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.serial
}

// Settled reports whether the living workers have taken over every partition since mark, and each
// of them has one if there are enough.
func (f *Fleet) Settled(mark, partitions int) bool {
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
		p := f.live[o.worker]
		stays := p != nil && !p.leaving && p.shot == nil
		if !stays || o.serial <= mark {
			return false
		}
		owners[o.worker] = true
	}
	return len(owners) == min(live, partitions)
}

// Owns returns how many partitions a worker has, and how many of its batches have committed.
func (f *Fleet) Owns(p *Process) (partitions, batches int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.owned {
		if o.worker == p.Number {
			partitions++
		}
	}
	return partitions, p.batches
}

// Progress returns how many messages were applied and how many skipped, as far as workers reported
// it.
func (f *Fleet) Progress() (handled, skipped int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.handled, f.skipped
}

// Reached returns the sum of the furthest positions of all partitions, as far as workers reported
// it. A take-over supplies what a killed worker could not report.
func (f *Fleet) Reached() (sum int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, position := range f.reached {
		sum += position
	}
	return sum
}

// StrayKills returns how many workers another process has killed, for example you from a terminal.
func (f *Fleet) StrayKills() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.strays
}

// Restarts returns how many workers had ended with an error and were restarted.
func (f *Fleet) Restarts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.restarts
}

// Endings returns the errors with which workers have ended, and how often each occurred.
func (f *Fleet) Endings() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for text, n := range f.endings {
		lines = append(lines, fmt.Sprintf("%d workers ended: %s", n, text))
	}
	slices.Sort(lines)
	return lines
}

// Resolved returns how many messages were parked and then applied, as far as workers reported it.
func (f *Fleet) Resolved() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resolved
}

// Breaches returns what workers have found wrong themselves.
func (f *Fleet) Breaches() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.breaches)
}

// Size returns how many workers live.
func (f *Fleet) Size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.live)
}

// Addresses returns where the living workers serve, of those that have said it.
func (f *Fleet) Addresses() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.live {
		if p.address != "" && !p.leaving {
			all = append(all, p.address)
		}
	}
	return all
}

// Failure returns the error of a worker that ended by itself, which ends the run.
func (f *Fleet) Failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *Fleet) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = errors.Join(f.failed, err)
}

// Diagnosis describes which worker owns what, and the faults that workers had to wait for.
func (f *Fleet) Diagnosis() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for partition, o := range f.owned {
		state := "lives"
		switch p := f.live[o.worker]; {
		case p == nil:
			state = "has ended"
		case p.frozen:
			state = "stands still"
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
