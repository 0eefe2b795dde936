package onlyoncetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/wire"
	"github.com/onlyonce/onlyonce/internal/workerdb"
)

// play is one run of a case, with the faults of a history.
type play struct {
	ctx  context.Context
	db   *workerdb.DB
	c    *Case
	h    history
	logs *logs
	sent []Message

	copies atomic.Bool
	left   sync.WaitGroup // goroutines of processes

	mu        sync.Mutex
	wakeup    chan struct{}
	processes []*Process
	live      *Process // the one that serves
	zombie    *Process // the one that is stopped at a point
	counts    map[string]int
	points    []point
	struck    []bool
	calling   map[string]time.Time // calls of the handler that have not returned
	refused   map[place]bool       // messages that the handler has refused for good
	requests  []request
	remotes   []string // what took effect at remotes
	writes    []write
	answers   []string
	served    bool // all requests have their answers
	wrong     *Verdict
	began     time.Time
	idle      time.Time // since when work has waited for a part that may never start; the loop's own
	timeline  []line
}

// write is a statement that the user's code has sent past the engine.
type write struct {
	sql    string
	caller string
}

// line is one line of a timeline.
type line struct {
	text  string
	fault bool
	minor bool
}

// perPlay bounds one history. It is a variable for tests of handlers that hang.
var perPlay = time.Minute

// outcome is the result of a play.
type outcome struct {
	*play
	state *state
}

// newPlay prepares one.
func newPlay(ctx context.Context, db *workerdb.DB, c *Case, h history) *play {
	return &play{ctx: ctx, db: db, c: c, h: h, logs: newLogs(), wakeup: make(chan struct{}), counts: map[string]int{},
		struck: make([]bool, len(h.events)), calling: map[string]time.Time{}, refused: map[place]bool{}, began: time.Now()}
}

// changed wakes the loop.
func (x *play) changed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	close(x.wakeup)
	x.wakeup = make(chan struct{})
}

// say adds a line to the timeline. The caller has mu.
func (x *play) say(p *Process, kind string, format string, args ...any) {
	who := ""
	if p != nil {
		who = fmt.Sprintf("process %d: ", p.number)
	}
	x.timeline = append(x.timeline, line{text: fmt.Sprintf("%6.0f ms  %s%s", float64(time.Since(x.began).Microseconds())/1000, who, fmt.Sprintf(format, args...)), fault: kind == "fault", minor: kind == "minor"})
}

// strikes counts a point, and returns the fault that happens there. The caller has mu.
func (x *play) strikes(name string, kind wire.Kind, users bool, whats ...string) (what string) {
	x.counts[name]++
	p := point{name: fmt.Sprintf("%s%d", name, x.counts[name]), kind: kind, users: users}
	x.points = append(x.points, p)
	for i, e := range x.h.events {
		if e.at == p.name && !x.struck[i] && slices.Contains(whats, e.what) {
			x.struck[i] = true
			return e.what
		}
	}
	return ""
}

// isUsers reports whether a statement is likely the program's own.
func isUsers(sql string) bool {
	return writing.MatchString(sql) && !strings.Contains(sql, "onlyonce.") && !strings.Contains(sql, "pg_") && !strings.Contains(sql, "current_setting")
}

// at is called at each message of a process to Postgres.
func (x *play) at(p *Process, m wire.Message) wire.Action {
	if p.dead.Load() {
		return wire.Unsent
	}
	if m.Kind != wire.Bind && m.Kind != wire.Query && m.Kind != wire.Sync {
		return wire.Pass
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	label := wire.Label(m)
	sql := strings.Join(strings.Fields(m.SQL), " ")
	what := x.strikes(label+".", m.Kind, isUsers(sql), before, after, cut, lost, zombie, rebalance)
	if what == "" {
		if m.Kind != wire.Sync {
			x.say(p, "minor", "%.90s", sql)
		}
		return wire.Pass
	}
	switch what {
	case before:
		x.say(p, "fault", "%.90s  <<< dies before it", sql)
		p.dead.Store(true)
		go p.bury()
		return wire.Unsent
	case after:
		x.say(p, "fault", "%.90s  <<< dies after it, before the answer", sql)
		p.dead.Store(true)
		return wire.Unheard
	case cut:
		x.say(p, "fault", "%.90s  <<< the connection breaks before it", sql)
		return wire.Unsent
	case lost:
		x.say(p, "fault", "%.90s  <<< carried out, and the connection breaks", sql)
		return wire.Unheard
	case zombie:
		x.say(p, "fault", "%.90s  <<< stops before it", sql)
		x.zombie = p
		go x.changed()
		return wire.Stalled
	default:
		x.say(p, "fault", "%.90s  <<< a rebalance", sql)
		go p.rebalance()
		return wire.Pass
	}
}

// answered is called at each answer of Postgres.
func (x *play) answered(p *Process, a wire.Answer) {
	if strings.HasPrefix(a.Text, "ERROR") || a.Text == "COMMIT" || a.Text == "ROLLBACK" {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.say(p, "", "%.160s", a.Text)
	}
}

// statement is called at each statement through the pool.
func (x *play) statement(_ *Process, sql string, o origin) {
	if !o.direct {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.writes = append(x.writes, write{strings.Join(strings.Fields(sql), " "), o.caller})
}

// request is called before a request is sent (over is false), and after its answer. An error means
// that the process has died there.
func (x *play) request(p *Process, r request, over bool) error {
	if p.dead.Load() {
		return errDead
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	what := ""
	if !over {
		what = x.strikes(requestPoint, "", false, before)
		if what == "" {
			x.requests = append(x.requests, r)
		}
	} else {
		for i, e := range x.h.events { // the point was counted when the request was sent
			if e.what == after && e.at == fmt.Sprintf("%s%d", requestPoint, x.counts[requestPoint]) && !x.struck[i] {
				x.struck[i], what = true, after
			}
		}
	}
	x.say(p, map[bool]string{true: "fault", false: ""}[what != ""], "request %.100s %s", r.text, map[string]string{before: " <<< dies before it", after: " <<< dies after its answer"}[what])
	if what == "" {
		return nil
	}
	p.dead.Store(true)
	go p.bury()
	return errDead
}

// handled is the middleware of each consumer.
func (x *play) handled(ctx context.Context, _ consumer.Tx, msgs []*consumer.Message, next func(context.Context) error) error {
	x.mu.Lock()
	name := fmt.Sprintf("%s/%d at %d", msgs[0].Topic, msgs[0].Partition, msgs[0].Offset)
	what := x.strikes(handlePoint, "", false, fail40001, fail40P01)
	x.say(nil, "", "the handler runs for %s", name)
	x.calling[name] = time.Now()
	x.mu.Unlock()
	err := next(ctx)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.calling, name)
	switch {
	case err != nil:
		if consumer.IsPermanent(err) {
			for _, m := range msgs {
				x.refused[placeOf(m)] = true
			}
		}
		x.say(nil, "", "the handler fails: %.160v", err)
	case what != "":
		x.say(nil, "fault", "the handler has returned  <<< its transaction fails with %s", what)
		err = &pgconn.PgError{Severity: "ERROR", Code: what, Message: "forged by onlyoncetest"}
	}
	return err
}

// rebalance ends the generation of the process's sources.
func (p *Process) rebalance() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		for _, part := range s.parts {
			part.Rebalance()
		}
	}
}

// logger writes what a process logs into the timeline.
func (x *play) logger(p *Process) *slog.Logger {
	return slog.New(slog.NewTextHandler(logged{x, p}, &slog.HandlerOptions{Level: slog.LevelError, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}}))
}

type logged struct {
	x *play
	p *Process
}

func (l logged) Write(b []byte) (int, error) {
	l.x.mu.Lock()
	defer l.x.mu.Unlock()
	l.x.say(l.p, "", "logs %.200s", strings.TrimSpace(string(b)))
	return len(b), nil
}

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
			x.wrong = &Verdict{Kind: CheckFailed, What: err.Error()}
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
	for _, r := range x.requests {
		if r.origin.direct {
			r.text = x.c.masked(r.text)
			s.requests = append(s.requests, r)
		}
	}
	return s, nil
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
		if e.what != copies {
			continue
		}
		x.mu.Lock()
		x.struck[i] = true
		x.say(nil, "fault", "each message comes again, at another offset  <<< copies")
		x.mu.Unlock()
		x.logs.add(x.sent...)
		if err := x.finish(ctx); err != nil {
			return err
		}
	}
	x.mu.Lock()
	z := x.zombie
	x.zombie = nil
	if z != nil {
		x.say(z, "fault", "goes on  <<< wakes up")
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
		p, z, wakeup := x.live, x.zombie, x.wakeup
		x.mu.Unlock()
		switch {
		case p.dead.Load():
			if err := x.wait(ctx, p); err != nil {
				return err
			}
			x.resetOffsets()
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

// stuck returns a reason why nothing goes on.
func (x *play) stuck() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, since := range x.calling {
		if time.Since(since) > perPlay/4 {
			return fmt.Errorf("%w within %v: the handler has not returned for %s", errStuck, perPlay, name)
		}
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
			x.say(nil, "fault", "the group's offsets are gone  <<< reset")
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
	p, err := x.newProcess()
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.live = p
	x.say(p, "", "starts")
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

// endAll ends what is left of all processes.
func (x *play) endAll() {
	x.mu.Lock()
	all := slices.Clone(x.processes)
	x.mu.Unlock()
	for _, p := range all {
		p.dead.Store(true)
		p.bury()
	}
	done := make(chan struct{})
	go func() {
		x.left.Wait()
		for _, p := range all {
			p.Pool.Close()
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience): // a handler hangs, which the verdict reports
	}
}

// unsettledSQL returns one row: whether calls will change by themselves. Nothing sends them if no
// relay has listed a sink.
const unsettledSQL = `
select exists (select from onlyonce.sinks) and exists (
  select from onlyonce.calls c
   where exists (select from onlyonce.sinks s where s.name = c.sink) and (c.state in ('pending', 'retrying')
      or c.state = 'blocked' and not exists (
           select from onlyonce.parked f where f.order_key = c.order_key and f.settled_at is null and f.state in ('waiting', 'reconcile'))))`

// unreadSQL returns one row: whether events wait for a consumer that has begun to read their
// stream.
const unreadSQL = `
select exists (
  select from (select s.topic, l.partition, max(l."offset") + 1 as next from onlyonce.event_log l join onlyonce.streams s on s.id = l.stream group by 1, 2) e
   where exists (select from onlyonce.cursors c where c.topic = e.topic)
     and not exists (select from onlyonce.positions p where p.topic = e.topic and p.partition = e.partition and p.next_offset >= e.next))`

// Nothing may work on what these return, one row each: whether calls have no relay, and whether
// events have no consumer.
const (
	noRelaySQL  = `select exists (select from onlyonce.outbox_log) and not exists (select from onlyonce.sinks)`
	noReaderSQL = `
select exists (select from onlyonce.event_log l join onlyonce.streams s on s.id = l.stream
                where not exists (select from onlyonce.cursors c where c.topic = s.topic))`
)

// grace is how long a clean run waits for a relay, or for a consumer of events, if it cannot know
// whether the program has one: it may be about to start. Later runs know.
const grace = 5 * time.Second

// unattended reports whether work has no part of the program that does it, although it should have
// one.
func (x *play) unattended(ctx context.Context) (bool, error) {
	for _, w := range []struct {
		sql   string
		never *bool
	}{{noRelaySQL, &x.c.noRelay}, {noReaderSQL, &x.c.noReader}} {
		if *w.never {
			continue
		}
		var without bool
		if err := x.db.Pool.QueryRow(ctx, w.sql).Scan(&without); err != nil {
			return false, err
		}
		if !without {
			continue
		}
		if x.idle.IsZero() {
			x.idle = time.Now()
		}
		if x.c.clean != nil || x.c.hasRelay && w.never == &x.c.noRelay {
			return true, nil
		}
		if time.Since(x.idle) < grace {
			return true, nil
		}
		*w.never = true
	}
	return false, nil
}

const anyRetryingSQL = `select exists (select from onlyonce.parked where kind in ('message', 'event') and state = 'retrying')`

// atEndSQL returns one row: how many partitions of a topic have come to these offsets. $1
// partitions, $2 topics, $3 offsets.
const atEndSQL = `
select count(distinct (u.t, u.p)) from unnest($2::text[], $1::int[], $3::bigint[]) as u (t, p, o)
  join onlyonce.positions x on x.topic = u.t and x.partition = u.p and x.next_offset >= u.o`

// done reports whether all work is done.
func (x *play) done(ctx context.Context) (bool, error) {
	x.mu.Lock()
	served := x.served || x.c.Serve == nil
	x.mu.Unlock()
	if !served {
		return false, nil
	}
	var topics []string
	var partitions []int32
	var offsets []int64
	for p := range x.logs.ends() {
		if p.offset > 0 {
			topics, partitions, offsets = append(topics, p.topic), append(partitions, p.partition), append(offsets, p.offset)
		}
	}
	var n int
	if err := x.db.Pool.QueryRow(ctx, atEndSQL, partitions, topics, offsets).Scan(&n); err != nil || n < len(topics) {
		return false, err
	}
	// First whether each part has begun to do its work: the queries below see nothing of work that
	// has no part yet.
	if without, err := x.unattended(ctx); err != nil || without {
		return false, err
	}
	for _, sql := range []string{unsettledSQL, unreadSQL, anyRetryingSQL} {
		var left bool
		if err := x.db.Pool.QueryRow(ctx, sql).Scan(&left); err != nil || left {
			return false, err
		}
	}
	return true, nil
}
