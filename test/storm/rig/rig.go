// Package rig is what every storm has in common, whatever it produces: the flags, the exit
// statuses, the blows against worker processes, and the summary.
package rig

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/screen"
)

// Exit statuses of a storm.
const (
	StatusGood        = 0 // every invariant holds
	StatusFailed      = 1 // one does not, or the run got stuck
	StatusEnvironment = 2 // usage, or no server
)

// Kinds of blows that every storm has.
const (
	// KindKill is SIGKILL to a worker, in the middle of its work if possible; another takes its
	// place.
	KindKill = fleet.Kill
	// KindFreeze is SIGSTOP to a worker for longer than its leases or session, then SIGCONT: a
	// zombie.
	KindFreeze = "freeze"
	// KindPostgres is SIGKILL to all of Postgres, then a restart.
	KindPostgres = "postgres"
)

// StopTimeout bounds how long workers may take to leave in order.
const StopTimeout = 30 * time.Second

// blindAfter is how long a kill looks for work in progress to hit: if workers and servers are down,
// there may be none.
const blindAfter = 4 * time.Second

// Rig is one run of a storm. A storm embeds it.
type Rig struct {
	Options
	Screen *screen.Screen
	Plan   []fleet.Blow
	Random *rand.Rand // for decisions during the run
	Fleet  *fleet.Fleet

	Struck   map[string]int // blows that have come, by kind
	Breaches []string       // found during the run
	// KillsInBatch are those of StrikeUsual that hit a worker in the middle of its work.
	KillsInBatch int
	Zombies      sync.WaitGroup // workers that are suspended
	Clock        *Clock         // Postgres'; nil: it does not step
	ClockAhead   time.Duration  // for how long Postgres' clock was wrong, in all

	switchovers []fleet.Gap // from the standby's sockets to the primary in reach

	Progress func() string                      // differs whenever something has moved
	Stuck    func(ctx context.Context) []string // describes why nothing moves
}

// Storm is what [Main] runs.
type Storm interface {
	// Open starts servers and workers.
	Open(ctx context.Context) error
	// Rage produces, strikes, waits until all is settled, and judges. The report is never nil.
	Rage(ctx context.Context) (Report, error)
	// Close stops whatever was started.
	Close() error
}

// Main is main of a storm's program: of its workers too.
func Main(worker func() int, run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	if fleet.IsWorker() {
		os.Exit(worker())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends the program at once: workers and servers notice.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Run is the program without its process: start parses the flags, and makes the storm that prints
// to a screen. It returns the exit status.
func Run(
	ctx context.Context,
	name string,
	stdout, stderr io.Writer,
	start func() (o Options, make func(*screen.Screen) Storm, err error),
) int {
	fail := func(status int, err error) int {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			_, _ = fmt.Fprintf(stderr, "%s: %s\n", name, line)
		}
		return status
	}
	o, make, err := start()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return StatusGood
	case err != nil:
		return fail(StatusEnvironment, err)
	}
	human := stdout
	if o.JSON {
		human = stderr
	}
	to := screen.New(human, o.Verbose)
	s := make(to)
	to.Say("seed %d", o.Seed)
	defer to.End()
	if err := s.Open(ctx); err != nil {
		return fail(StatusEnvironment, errors.Join(err, s.Close()))
	}
	r, err := s.Rage(ctx)
	to.End()
	if err != nil {
		r.Shared().Error = err.Error()
		_ = fail(StatusFailed, fmt.Errorf("seed %d: %w", o.Seed, err))
	}
	if err := s.Close(); err != nil {
		_ = fail(StatusFailed, fmt.Errorf("stopping the servers: %w", err))
	}
	if err := write(r, human, stdout, o.JSON); err != nil {
		return fail(StatusEnvironment, err)
	}
	if !r.Shared().OK {
		return StatusFailed
	}
	return StatusGood
}

// StartWorkers starts as many workers as the options say.
func (r *Rig) StartWorkers() error {
	for range r.Workers {
		if _, err := r.Fleet.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Events is how many blows have come.
func (r *Rig) Events() (n int) {
	for _, c := range r.Struck {
		n += c
	}
	return n
}

// Until waits for a condition. It gives up if a worker cannot be started, or if nothing has moved
// for as long as Options.Patience; the error then describes all that may help to find out why.
func (r *Rig) Until(ctx context.Context, what string, is func(context.Context) (bool, error)) error {
	return r.Fleet.Until(ctx, r.Patience, is, r.Progress, func(err error) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		lines := []string{fmt.Sprintf("I13 stuck: waited %v for %s, and nothing moved", r.Patience, what)}
		if err != nil {
			lines = append(lines, "last error: "+err.Error())
		}
		lines = append(lines, r.Stuck(ctx)...)
		return errors.New(strings.Join(append(lines, r.Fleet.Diagnosis()...), "\n  "))
	})
}

// Strike waits until a blow's part of the stream is done, for example for "1200 records to be
// handled", and strikes.
func (r *Rig) Strike(
	ctx context.Context,
	n int,
	part string,
	done func() bool,
	strike func(ctx context.Context, b fleet.Blow) error,
) error {
	if err := r.Until(ctx, fmt.Sprintf("%s, for event %d", part, n+1), func(context.Context) (bool, error) {
		return done(), nil
	}); err != nil {
		return err
	}
	b := r.Plan[n]
	r.Screen.Verbose("%s", b.Kind)
	if err := strike(ctx, b); err != nil {
		return fmt.Errorf("event %d (%s): %w", n+1, b.Kind, err)
	}
	r.Struck[b.Kind]++
	return nil
}

// Kill kills the worker that the shot hits, and starts another in its place.
func (r *Rig) Kill(ctx context.Context, shot *fleet.Shot) (hit *fleet.ShotDown, err error) {
	begun := time.Now()
	err = r.Until(ctx, "a worker to kill", func(context.Context) (bool, error) {
		select {
		case hit = <-shot.Hit:
			return true, nil
		default:
			if time.Since(begun) > blindAfter {
				r.Fleet.Blindly(shot, r.Random)
			}
			return false, nil
		}
	})
	if err != nil {
		return hit, err
	}
	_, err = r.Fleet.Start()
	return hit, err
}

// Freeze suspends a worker for so long that others have taken its work over, and then lets it go on
// as a zombie. The next events come meanwhile.
func (r *Rig) Freeze(ctx context.Context, d time.Duration) error {
	p := r.Fleet.Any(r.Random)
	if p == nil {
		return nil // all are suspended, or are being replaced
	}
	if err := r.Fleet.Freeze(p); err != nil {
		return err
	}
	r.Zombies.Go(func() {
		fleet.Pause(ctx, d)
		if err := r.Fleet.Thaw(p); err != nil {
			r.Screen.Say("worker %d cannot be continued: %v", p.Number, err)
		}
	})
	return nil
}
