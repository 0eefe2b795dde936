package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/retention"
	"github.com/onlyonce/onlyonce/internal/rig/histories"
	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// world is the environment of one history: a database whose clock it moves, a remote, and what was
// promised to whom.
type world struct {
	*histories.Timeline
	*clock
	ctx      context.Context
	db       *workerdb.DB
	remote   *remote
	patience time.Duration
	process  *process.Process

	promises promises
	kept     bool // there is a standby
	promoted bool // there was a failover that lost commits
	mu       sync.Mutex
	breaches []string
}

// effectsSQL makes the table of effects, without a unique constraint, so that doubles show.
const effectsSQL = `create table effects (value text not null, n bigint generated always as identity)`

// effectSQL writes one. In: value.
const effectSQL = `insert into effects (value) values ($1)`

func newWorld(ctx context.Context, w *worker, patience time.Duration) (*world, error) {
	pace := process.Pace{Prune: 1, Sweep: time.Millisecond, PruneIdle: 2 * time.Millisecond, Promote: 50 * time.Millisecond}
	p := &process.Process{Pace: pace}
	x := &world{Timeline: histories.NewTimeline(), clock: &w.clock, ctx: process.With(ctx, p), db: w.db, patience: patience, process: p}
	x.remote = newRemote(x)
	// A worker's database is one that was always watched; see workerdb. Here watched time counts.
	return x, x.exec(`update onlyonce.watched set at = clock_timestamp()`)
}

func (w *world) close() { w.remote.close() }

// say adds a line to the timeline, with the day and the hour of the history.
func (w *world) say(format string, args ...any) {
	now := w.now()
	w.Say(histories.Plain, "day %d %02d:%02d  %s",
		int(now.Hours())/24, int(now.Hours())%24, int(now.Minutes())%60, fmt.Sprintf(format, args...))
}

// breach notes that something does not hold.
func (w *world) breach(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	w.say("BREACH %s", what)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.breaches, what) {
		w.breaches = append(w.breaches, what)
	}
}

// found returns what did not hold.
func (w *world) found() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.breaches)
}

// errStands ends a history in which something stands still; the breach is noted.
var errStands = errors.New("it stands still")

// engine is the run of a part of onlyonce, which ends with its context.
type engine func(context.Context) error

// work runs processes until a condition holds, and stops them. If it does not come to hold, that is
// a breach.
func (w *world) work(what string, done func() (bool, error), engines ...engine) error {
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, len(engines))
	for _, run := range engines {
		go func() { ended <- run(ctx) }()
	}
	err := w.until(what, done, ended)
	cancel()
	if errors.Is(err, errEnded) {
		return err
	}
	for range engines {
		select {
		case ran := <-ended:
			err = errors.Join(err, ran)
		case <-time.After(w.patience):
			w.breach("a process does not stop within %v", w.patience)
			return errStands
		}
	}
	return err
}

var errEnded = errors.New("an engine ended by itself")

func (w *world) until(what string, done func() (bool, error), ended <-chan error) error {
	began := time.Now()
	for pause := time.Millisecond; ; pause = min(pause*5/4, 20*time.Millisecond) {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if time.Since(began) > w.patience {
			w.breach("stands still: after %v not %s", w.patience, what)
			return errStands
		}
		select {
		case <-time.After(pause):
		case err := <-ended:
			return fmt.Errorf("%w: %w", errEnded, err)
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
	}
}

// exec runs a statement.
func (w *world) exec(sql string, args ...any) error {
	_, err := w.pool.Exec(w.ctx, sql, args...)
	return err
}

// one reads one value.
func one[T any](w *world, sql string, args ...any) (v T, err error) {
	err = w.pool.QueryRow(w.ctx, sql, args...).Scan(&v)
	return v, err
}

// all reads the rows of a query into structs or values.
func all[T any](w *world, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := w.pool.Query(w.ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// is returns a condition that a query decides.
func (w *world) is(sql string, args ...any) func() (bool, error) {
	return func() (bool, error) { return one[bool](w, sql, args...) }
}

// within runs a transaction of the program's own.
func (w *world) within(do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(w.ctx, w.pool, pgx.TxOptions{}, do)
}

// logger writes what a process logs into the timeline.
func (w *world) logger() *slog.Logger { return w.Logger("process: ", slog.LevelWarn) }

// ---------------------------------------------------------------- time and other events

// pass lets time pass. If it is a day or more, the rings rotate in between, as they do each hour: a
// key is forgotten when its segment has been closed for a horizon.
func (w *world) pass(d time.Duration) error {
	const first = 20 * time.Hour
	w.say("%v pass", d)
	if d < 24*time.Hour {
		return w.watch(d)
	}
	if err := w.watch(first); err != nil {
		return err
	}
	if err := w.rotate(); err != nil {
		return err
	}
	if err := w.watch(d - first); err != nil {
		return err
	}
	return w.rotate()
}

// watch moves the clock, and watched time with it, as processes do that watch it meanwhile (T11).
func (w *world) watch(d time.Duration) error {
	w.move(d)
	return w.exec(`update onlyonce.watched set at = at + $1::interval`, interval(d))
}

// jump does something while the clock is a week ahead.
func (w *world) jump(do ...func(*world) error) error {
	const by = 7 * 24 * time.Hour
	w.say("the clock is a week ahead")
	w.move(by)
	var err error
	for _, f := range do {
		if err == nil {
			err = f(w)
		}
	}
	w.move(-by)
	w.say("the clock is right again")
	return err
}

// rotate takes the steps of the rings that are due. Those of the classes short and long are used
// only after a change of class.
func (w *world) rotate() error {
	for _, of := range append(ring.Keys(), ring.Outbox(), ring.Events()) {
		if strings.Contains(of.Name, ring.Short) {
			continue
		}
		rotator, err := ring.New(w.pool, of, ring.Config{})
		if err != nil {
			return err
		}
		if err := w.steps(of.Name, rotator); err != nil {
			return err
		}
	}
	return nil
}

// steps takes all steps of a ring that are due.
func (w *world) steps(name string, rotator *ring.Rotator) error {
	defer func() { _ = rotator.Release(w.ctx) }()
	for began := time.Now(); time.Since(began) < w.patience; {
		out, err := rotator.Step(w.ctx)
		if errors.Is(err, ring.ErrClock) { // the clock was ahead, and the ring waits until it has caught up
			return nil
		}
		if err != nil {
			return fmt.Errorf("rotating %s: %w", name, err)
		}
		switch {
		case out.Changed():
			w.say("ring %s: %s %d", name, out.Action, out.Slot)
		case out.Action != ring.Waiting && out.Action != ring.Busy:
			return nil
		default:
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// forget lets all that has a retention go: keys, records, operations, settled rows.
func (w *world) forget() error {
	w.say("what has expired is deleted")
	if err := w.rotate(); err != nil {
		return err
	}
	for _, sql := range []string{`select onlyonce.http_purge(1000)`, `select onlyonce.http_abandon(1000)`} {
		if err := w.exec(sql); err != nil {
			return err
		}
	}
	return retention.New(w.pool, nil, w.logger()).Purge(w.ctx)
}

// actKeep and actPromote are the acts of a failover that loses commits.
const (
	actKeep    = "a standby is kept"
	actPromote = "failover"
)

// makeLanes lets a relay make the lanes of the sink. A failover that loses these too loses what
// says that calls may have been made.
func (w *world) makeLanes() error {
	return w.work("the lanes are there", w.is(`select count(*) = 16 from onlyonce.lanes`), w.relay)
}

// keep makes what is committed now the state of a standby.
func (w *world) keep() error {
	w.say("a standby has what is committed until now")
	var err error
	w.kept, err = w.db.Keep(w.ctx)
	w.promises.keep()
	return err
}

// loseHistorySQL gives lanes another history than the server's: a promotion within one server does
// not change its name, as one of a real standby does.
const loseHistorySQL = `update onlyonce.lane_cursors set timeline = 'of the server before', server = null`

// promote loses what was committed since keep.
func (w *world) promote() error {
	if !w.kept {
		return nil
	}
	w.kept = false
	w.promoted = true
	w.say("the standby is promoted: what was committed since is lost")
	ok, err := w.db.Promote(w.ctx)
	if err == nil && !ok {
		err = errors.New("the standby could not be promoted")
	}
	if err != nil {
		return err
	}
	w.promises.lose()
	return w.exec(loseHistorySQL)
}
