package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// scene is a workload of one part of onlyonce.
type scene struct {
	name string
	// command: it runs the program onlyonce, which is built first.
	command bool
	// epoch matches the statements after which a process that looks finds another state. Of the
	// looks between two of them the first is played: see equal.go. Nil: all are.
	epoch *regexp.Regexp
	// snapshots: its process waits for all transactions of the server.
	snapshots bool
	make      func() stage
}

// stage is one playing of a scene.
type stage interface {
	// setUp makes what the process under test finds.
	setUp(r *rig) error
	// start starts a process on a pool: the one under test, or its successor.
	start(r *rig, pool *pgxpool.Pool) (stop func() error, err error)
	// more adds work: after the fault has struck, and for the successor.
	more(r *rig) error
	// done reports whether all work is done. It is called often.
	done(r *rig) (bool, error)
	// check returns what does not hold after all work is done and all processes have ended.
	check(r *rig) ([]string, error)
}

// patient is a stage that can report that it cannot go on because of a fault, although no session
// waits for another one.
type patient interface{ stuck() bool }

// idleFor is how long a clean run goes on after all is done, so that it includes messages that are
// sent now and then. idleLimit is how long a history waits for such a message.
const (
	idleFor   = 1500 * time.Millisecond
	idleLimit = 15 * time.Second
)

// errUnpruned is of a clean run in which late deliveries would show nothing: whenever the process
// looked, a transaction was open, for example one of the rig's.
var errUnpruned = errors.New("nothing was pruned")

// record plays a scene without a fault, and returns the messages that its process sends.
func (w *worker) record(ctx context.Context, o *options, s scene) (sent []point, err error) {
	var out outcome
	for range tries {
		if out, err = w.play(ctx, o, history{scene: s}); !errors.Is(err, errUnpruned) {
			break
		}
	}
	if out.breach != nil {
		err = fmt.Errorf("%s: %w%s", history{scene: s}, out.breach, out.lines)
	}
	spare(out.sent)
	if s.epoch != nil {
		out.sent = slices.DeleteFunc(out.sent, func(p point) bool { return p.n > 1 })
	}
	return out.sent, err
}

// outcome is the result of a history.
type outcome struct {
	sent   []point
	struck bool
	dead   bool // what was delivered late found its session ended
	breach *breach
	lines  string
	took   time.Duration
}

// play plays a history.
func (w *worker) play(ctx context.Context, o *options, h history) (outcome, error) {
	began := time.Now()
	r, err := newRig(ctx, w, o, h)
	if err != nil {
		return outcome{}, err
	}
	defer r.close()
	err = perform(r, h.scene.make())
	out := outcome{sent: r.recorded(), struck: r.hasStruck(), dead: r.dead, took: time.Since(began), lines: r.timeline()}
	if err != nil && !errors.As(err, &out.breach) {
		return out, fmt.Errorf("%s: %w%s", h, err, out.lines)
	}
	return out, nil
}

// perform is the course of every history.
func perform(r *rig, x stage) error {
	if err := x.setUp(r); err != nil {
		return err
	}
	stop, err := x.start(r, r.pool)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }()
	c := &course{r: r, x: x}
	if err := c.finish(); err != nil {
		return err
	}
	if r.target == nil || r.target.point.phase == idle && !r.hasStruck() {
		r.enter(idle)
		wait := idleLimit
		if r.target == nil {
			wait = idleFor
		}
		select {
		case <-r.struck:
		case <-time.After(wait):
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
		if err := c.finish(); err != nil {
			return err
		}
	}
	r.enter(stopping)
	r.say("the process is told to stop")
	if err := stop(); err != nil {
		return err
	}
	r.say("it has stopped, and its successor starts")
	stop, err = x.start(r, r.db.Pool)
	if err != nil {
		return err
	}
	if err := x.more(r); err != nil {
		return err
	}
	c.added = true
	if err := c.finish(); err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	stop = func() error { return nil }
	found, err := x.check(r)
	if err == nil && len(found) > 0 {
		err = &breach{found}
	}
	return err
}

// course is the progress of a history.
type course struct {
	r                *rig
	x                stage
	added, delivered bool
	asked            chan answer // nil: the stage is not being asked whether all is done
}

// answer is what a stage's done returns.
type answer struct {
	done bool
	err  error
}

// done asks the stage whether all is done. The stage asks the database, and may wait there for the
// session that the process was cut off from: meanwhile the answer is no.
func (c *course) done() (bool, error) {
	if c.asked == nil {
		asked := make(chan answer, 1)
		c.asked = asked
		go func() {
			done, err := c.x.done(c.r)
			asked <- answer{done, err}
		}()
	}
	select {
	case a := <-c.asked:
		c.asked = nil
		return a.done, a.err
	case <-time.After(c.r.bound):
		return false, nil
	}
}

// finish returns after all work is done. If the fault strikes meanwhile, it adds more work. The
// message that the fault has kept back is delivered after the process has done all of that, or if
// it cannot go on because of it.
func (c *course) finish() error {
	return c.r.until("done", func() (bool, error) {
		struck := c.r.hasStruck()
		if struck && !c.added && c.asked == nil {
			c.added = true
			return false, c.x.more(c.r)
		}
		done, err := c.done()
		late := struck && c.r.target.fault.name == "late"
		if err != nil || !late || c.delivered {
			return done, err
		}
		why := "the process has gone on"
		if !done {
			blocks, err := c.r.inTheWay()
			if p, ok := c.x.(patient); ok && p.stuck() {
				blocks = true
			}
			if err != nil || !blocks {
				return false, err
			}
			why = "the process cannot go on because of the session that it was cut off from"
		}
		c.delivered = true
		return false, c.r.deliver(why)
	})
}
