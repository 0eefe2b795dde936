package onlyoncetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/rig/histories"
)

// machineError is a failure of what plays, and not of the program that is played.
type machineError struct{ error }

// errStuck ends a play that makes no progress.
var errStuck = errors.New("the work is not done")

// perform runs the case with the history's faults, and returns the state that it leaves. A verdict
// is in x.wrong if the run itself shows one.
func (x *play) perform() (*state, error) {
	ctx, cancel := context.WithTimeout(x.ctx, startTimeout)
	defer cancel()
	if err := x.db.Restore(ctx); err != nil {
		return nil, machineError{err}
	}
	x.sent = pick(x.c.Messages, x.h.only)
	if slices.Contains(x.h.events, event{what: moved}) {
		x.logs.widen(x.sent)
	}
	x.logs.add(x.sent...)
	bounded, over := context.WithTimeout(ctx, perPlay)
	err := x.course(bounded)
	over()
	x.endAll()
	if err != nil {
		return nil, err
	}
	if err := x.db.EndSessions(ctx); err != nil {
		return nil, machineError{err}
	}
	s, err := capture(ctx, x.db.Pool, x.c)
	if err != nil {
		return nil, machineError{err}
	}
	if x.c.Check != nil && x.wrong == nil {
		if err := x.c.Check(ctx, x.db.Pool); err != nil {
			x.wrong = &Verdict{Kind: kindCheckFailed, What: err.Error()}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range s.parkedAt {
		if !x.refused[p.place] {
			s.parkedFor = append(s.parkedFor, p.why)
		}
	}
	s.remotes = slices.Clone(x.remotes)
	s.answers = slices.Clone(x.answers)
	s.order = slices.Clone(x.order)
	s.ordered = x.inOrder()
	for _, r := range x.requests {
		if r.origin.direct {
			r.text = x.c.masked(r.text)
			s.requests = append(s.requests, r)
		}
	}
	return s, nil
}

// inOrder reports whether the program enqueues calls one after the other: its messages are in one
// partition and handled one at a time, or its requests come one at a time. The caller has mu.
func (x *play) inOrder() bool {
	logs := map[place]bool{}
	for _, m := range x.sent {
		logs[place{topic: m.topic(), partition: m.Partition}] = true
	}
	return !x.concurrent.Load() && len(x.c.parts.reads()) == 0 && (len(logs) == 0 || len(logs) == 1 && x.c.Serve == nil)
}

func pick[T any](all []T, only []int) (some []T) {
	if only == nil {
		return all
	}
	for _, i := range only {
		if i < len(all) {
			some = append(some, all[i])
		}
	}
	return some
}

// course starts processes until all work is done.
func (x *play) course(ctx context.Context) error {
	if err := x.startProcess(); err != nil {
		return err
	}
	if x.c.Serve != nil {
		x.left.Go(func() { x.serveAll(ctx) })
	}
	if err := x.finish(ctx); err != nil {
		return err
	}
	for i, e := range x.h.events {
		if e.what == failover || e.what == rewind {
			if err := x.failOver(ctx, e.what); err != nil {
				return err
			}
		}
		again := slices.Clone(x.sent)
		where := "at another offset"
		if x.logs.empty() {
			where = "from its producer"
		}
		switch e.what {
		case copies:
		case moved:
			where = "in another partition"
			for i := range again {
				again[i].Partition++
			}
		default:
			continue
		}
		x.mu.Lock()
		x.struck[i] = true
		x.say(nil, histories.Fault, "each message comes again, %s  <<< %s", where, e.what)
		x.mu.Unlock()
		x.send(again)
		if err := x.finish(ctx); err != nil {
			return err
		}
	}
	x.mu.Lock()
	z := x.zombie
	x.zombie = nil
	if z != nil {
		x.say(z, histories.Fault, "goes on  <<< wakes up")
	}
	x.mu.Unlock()
	if z != nil {
		z.wire.Release()
		if err := x.stop(ctx, z); err != nil {
			return err
		}
	}
	return x.stop(ctx, x.live)
}

// restarts is how often a process may end by itself.
const restarts = 30

// finish waits until all work is done. It starts a successor for each process that has died.
func (x *play) finish(ctx context.Context) error {
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for {
		x.mu.Lock()
		p := x.live
		z := x.zombie
		wakeup := x.wakeup
		x.mu.Unlock()
		switch {
		case p.dead.Load():
			if err := x.wait(ctx, p); err != nil {
				return err
			}
			x.resetOffsets()
			if z == nil { // no process lives, so the rest of their leases is waiting and nothing else
				if err := lease.ExpireAll(ctx, x.db.Pool); err != nil && ctx.Err() == nil {
					return machineError{err}
				}
			}
			if err := x.startProcess(); err != nil {
				return err
			}
			continue
		case z == p:
			if err := x.startProcess(); err != nil {
				return err
			}
			continue
		case p.hasEnded():
			if len(x.processes) > restarts {
				return fmt.Errorf("the process has ended %d times, at last with: %w", restarts, p.failed)
			}
			if err := x.startProcess(); err != nil {
				return err
			}
			continue
		}
		if z != nil {
			if err := x.endBlocking(ctx, z); err != nil && ctx.Err() == nil {
				return machineError{err}
			}
		}
		done, err := x.done(ctx)
		if done && !p.dead.Load() {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return machineError{err}
		}
		select {
		case <-wakeup:
		case <-tick.C:
		case <-ctx.Done():
			return x.stuck()
		}
	}
}

// endBlockingSQL ends sessions of a process that has stopped in a transaction, if another session
// waits for one. It returns how many there were. $1 the name of its sessions.
const endBlockingSQL = `
select count(pg_terminate_backend(z.pid)) from pg_stat_activity z
 where z.datname = current_database() and z.application_name = $1
   and z.pid in (select unnest(pg_blocking_pids(w.pid))
                   from pg_stat_activity w where w.datname = current_database() and w.wait_event_type = 'Lock')`

// endBlocking ends the session of a process that has stopped, if another one waits for it, for
// example because it has claimed the messages. In production the server does that by itself
// (Config.Timeouts.Idle), after a minute.
func (x *play) endBlocking(ctx context.Context, z *Process) error {
	var n int
	if err := x.db.Pool.QueryRow(ctx, endBlockingSQL, z.application()).Scan(&n); err != nil || n == 0 {
		return err
	}
	x.say(z, histories.Plain, "its session was idle in a transaction, and is ended")
	return nil
}

// stuck returns a reason why nothing goes on.
func (x *play) stuck() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, since := range x.calling {
		if time.Since(since) > perPlay/4 {
			return fmt.Errorf("%w within %v: the handler has not returned for %s", errStuck, perPlay, name)
		}
	}
	if x.awaited != "" {
		return fmt.Errorf("%w within %v: %s was made, and has not begun to work: return it from Start or "+
			"Serve, or what runs it", errStuck, perPlay, x.awaited)
	}
	return fmt.Errorf("%w within %v", errStuck, perPlay)
}

// resetOffsets removes the group's offsets, if the history has that.
func (x *play) resetOffsets() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, e := range x.h.events {
		if e.what == reset && !x.struck[i] {
			x.struck[i] = true
			x.say(nil, histories.Fault, "the group's offsets are gone  <<< reset")
			x.logs.clearCommitted()
		}
	}
}

func (l *logs) clearCommitted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, log := range l.byTo {
		log.ClearCommitted(group)
	}
}

func (p *Process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (x *play) startProcess() error {
	x.giveBack()
	p, err := x.newProcess()
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.live = p
	x.say(p, histories.Plain, "starts")
	x.mu.Unlock()
	if err := p.start(x.c); err != nil {
		if p.dead.Load() { // it died while it started
			close(p.ended)
			return nil
		}
		return fmt.Errorf("Start: %w", err)
	}
	return nil
}

// wait waits until a process that was asked to end, or has died, has ended.
func (x *play) wait(ctx context.Context, p *Process) error {
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return x.stuck()
	}
}

func (x *play) stop(ctx context.Context, p *Process) error {
	p.cancel()
	return x.wait(ctx, p)
}

// endAll ends what is left of all processes, and waits for those that have not died: they may be
// in the program's code. A process that has died sends nothing any more. The engine's goroutines
// in it may still try to connect, for example to find out what became of a COMMIT, for as long as
// Timeouts.Commit, and Run waits for them when the test is over.
func (x *play) endAll() {
	x.mu.Lock()
	all := slices.Clone(x.processes)
	x.mu.Unlock()
	var alive sync.WaitGroup
	alive.Go(x.left.Wait)
	for _, p := range all {
		wait := &alive
		if p.dead.Swap(true) && p.hasEnded() {
			wait = x.dead
		}
		p.bury()
		wait.Go(func() {
			p.left.Wait()
			p.Pool.Close()
			p.disown()
		})
	}
	waitFor(&alive) // or a handler hangs, which the verdict reports
}

// waitFor waits until a group is done, for as long as patience.
func waitFor(g *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		g.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
	}
}
